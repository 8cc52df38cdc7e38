"""Tests for which no time is left are left out, and said so."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.process
def test_what_would_begin_too_late_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text("import time\ndef test_one(): time.sleep(0.6)\ndef test_other(): pass\n")
    options = ["-q", "-rs", "-p", "tests.gpu.deadline", "--seconds=0.5", "-p", "no:cacheprovider", f"--rootdir={tmp_path}"]
    command = [sys.executable, "-m", "pytest", *options, "-c", "/dev/null", str(tmp_path)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stdout
    assert "left out: no time was left" in ended.stdout
