"""A Python that has what the machine has, and what was carried along; and what there is to do without a GPU."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.gpu import __main__ as gpu
from tests.gpu.outfit import absent, outfitted


def asked(python: Path | str, code: str, **environment: str) -> str:
    """What a program of one line prints."""
    command = [str(python), "-c", code]
    return subprocess.run(
        command, env={**os.environ, **environment}, check=True, capture_output=True, text=True, timeout=60
    ).stdout.strip()


@pytest.mark.process
def test_wheels_stand_beside_what_is_there(tmp_path: Path) -> None:
    wheel = tmp_path / "carried_along-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("carried_along.py", "answer = 42\n")
    python = outfitted(tmp_path / "outfit", [wheel])
    code = "import carried_along, pytest; print(carried_along.answer, pytest.__file__)"
    told = asked(python, code, PYTHONPATH=str(tmp_path))  # others set the variable for their own ends
    assert told == f"42 {pytest.__file__}"
    assert python.is_relative_to(tmp_path)
    assert asked(sys.executable, "import importlib.util as u; print(u.find_spec('carried_along'))") == "None"


def test_what_is_absent_is_named_unless_it_is_carried(monkeypatch: pytest.MonkeyPatch) -> None:
    assert absent() == []
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert {"greenlet", "python-json-logger"} <= set(absent())
    carried = [Path("greenlet-3-cp312-x.whl"), Path("python_json_logger-4-py3-none-any.whl")]
    assert not {"greenlet", "python-json-logger"} & set(absent(carried))


@pytest.mark.process
def test_without_a_gpu_one_line_says_why_nothing_was_measured() -> None:
    command = [sys.executable, "-m", "tests.gpu"]
    nothing = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    ended = subprocess.run(command, cwd=gpu.ROOT, env=nothing, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "not measured: no GPU (no CUDA device is visible to torch)\n"


@pytest.mark.process
def test_a_part_that_does_not_end_is_ended(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "GRACE", 0.5)
    stubborn = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(60)"
    assert not gpu.run("stubborn", [sys.executable, "-c", stubborn], 0.5)
    assert gpu.run("quick", [sys.executable, "-c", ""], 5.0)
    assert "stubborn: not ended in time, SIGKILL" in capsys.readouterr().out


def test_only_files_with_tests_for_a_gpu_are_collected() -> None:
    assert {"tests/gpu/test_jobs.py", "tests/test_gpu.py", "tests/ftlib/devices/test_devices.py"} <= set(gpu.files())
    assert "tests/test_structure.py" not in gpu.files()
