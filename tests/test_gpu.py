"""The marker ``gpu``: without a GPU such tests leave themselves out, in one line that says why, and how many."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness import gpu

ROOT = Path(__file__).resolve().parents[1]
SOME = ("tests/ftlib/tensors/test_targets.py::test_pinned_tensors", "tests/test_gpu.py")


@pytest.mark.gpu
@pytest.mark.parametrize("number", [1, 2])
def test_there_is_a_gpu(number: int) -> None:
    assert not gpu.missing()


@pytest.mark.process
def test_they_leave_themselves_out() -> None:
    """Those of two files, fixtures and all, here with no device to be seen."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-m", "gpu", *SOME]
    nothing = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    ended = subprocess.run(command, cwd=ROOT, env=nothing, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stdout
    [line] = [line for line in ended.stdout.splitlines() if line.startswith("SKIPPED")]
    assert re.fullmatch(r"SKIPPED \[3\] tests/conftest.py:\d+: needs a GPU: no CUDA device is visible to torch", line)
    assert "3 skipped" in ended.stdout
