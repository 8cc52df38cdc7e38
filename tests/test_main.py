"""``make test`` itself: what it says at its end, and that no part stops another."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import tests.__main__ as suite
from tests.__main__ import Part, main
from tests.harness.basics import TIMEOUT

GOOD = "def test_it(): pass"
BAD = "def test_it(): assert False"
BROKEN = "import nothing_of_this_name"
MISSING = 'import pytest\ndef test_it(): pytest.skip("thing is not installed: apt-get install thing-server")'


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Runs one part a program, the first one beside the others; the exit code."""

    def run(*programs: str) -> int:
        parts = []
        for number, program in enumerate(programs):
            path = tmp_path / f"test_part{number}.py"
            path.write_text(program)
            options = ("-p", "no:cacheprovider", f"--rootdir={tmp_path}")
            parts.append(Part(f"part{number}", "not soak", 0, (str(path),), options, beside=number == 0))
        monkeypatch.setattr(suite, "PARTS", tuple(parts))
        monkeypatch.setattr(suite, "RESULTS", tmp_path / "results")
        return main([])

    monkeypatch.delenv("CI_WITHOUT", raising=False)
    monkeypatch.setattr(suite, "_step_back", lambda: None)  # on a busy machine it would get no processor for minutes
    return run


def test_no_part_stops_another(run: Callable[..., int], capfd: pytest.CaptureFixture[str]) -> None:
    """And the last lines say what failed."""
    assert run(BAD, BROKEN, GOOD, MISSING) == 1
    said = capfd.readouterr().out
    for part in range(4):
        assert f"== part{part} ==" in said
    assert "assert False" in said, "of the part beside the others, too"
    last = said[said.index("1 passed, 2 failed, 1 skipped in ") :].splitlines()
    assert "     1 test   thing is not installed: apt-get install thing-server" in last
    assert last[-2].startswith("FAILED ") and last[-2].endswith("test_part0.py::test_it")
    assert last[-1].startswith("FAILED ") and last[-1].endswith("test_part1")


def test_what_is_missing_fails_where_all_else_should_be_there(
    run: Callable[..., int], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(MISSING) == 0
    monkeypatch.setenv("CI_WITHOUT", "other thing-server")
    assert run(MISSING) == 0
    capfd.readouterr()
    monkeypatch.setenv("CI_WITHOUT", "other")
    assert run(MISSING) == 1
    assert "FAILED thing-server should be installed: CI_WITHOUT does not name it" in capfd.readouterr().out.splitlines()[-1]


def test_a_part_without_time_for_any_test_fails(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "test_part.py"
    path.write_text(GOOD)
    options = ("-p", "no:cacheprovider", f"--rootdir={tmp_path}", f"--basetemp={tmp_path}/files")
    monkeypatch.setattr(suite, "PARTS", (Part("part", "not soak", 1, (str(path),), options),))
    monkeypatch.setattr(suite, "RESULTS", tmp_path / "results")
    monkeypatch.delenv("CI_WITHOUT", raising=False)
    assert main(["--minutes", "0"]) == 1
    assert "FAILED the part 'part': the time was over before any of its tests had ended" in capfd.readouterr().out
    assert main([]) == 0


def test_what_runs_beside_the_others_gets_what_they_leave() -> None:
    program = "import os\nfrom tests.__main__ import _step_back\n_step_back()\nprint(os.getpid() == os.getsid(0))\n"
    told = subprocess.run(
        [sys.executable, "-c", program + "print(os.sched_getscheduler(0) == os.SCHED_IDLE)"],
        cwd=suite.ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=TIMEOUT,
    )
    assert told.stdout.split() == ["True", "True"]
