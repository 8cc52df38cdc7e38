from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.process
def test_the_example_learns_under_the_launcher(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ftlib.launch.cli", "run", "-n", "2", str(ROOT / "examples" / "digits.py"), "200"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "step 200: loss" in done.stdout and "2 workers in epoch 1" in done.stdout
    (accuracy,) = re.findall(r"test accuracy ([0-9.]+)%", done.stdout)
    assert float(accuracy) > 90
