"""The examples do what they say, as a user would start them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 300.0
"""Seconds: workers import torch first, and a busy machine takes its time."""


def run(where: Path, workers: int, name: str, *arguments: str) -> str:
    """What it printed."""
    program = str(ROOT / "examples" / name)
    done = subprocess.run(
        [sys.executable, "-m", "ftlib.launch.cli", "run", "-n", str(workers), program, *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=where,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def accuracy(said: str) -> float:
    [found] = re.findall(r"test accuracy ([0-9.]+)%", said)
    return float(found)


@pytest.mark.process
def test_digits(tmp_path: Path) -> None:
    said = run(tmp_path, 2, "digits.py", "5")
    assert re.search(r"epoch 2 step 100: loss [0-9.]+, 2 workers in view 1", said)
    assert accuracy(said) > 80


@pytest.mark.process
def test_digits_with_whole_steps(tmp_path: Path) -> None:
    said = run(tmp_path, 2, "digits_execute.py", "5")
    assert re.search(r"epoch 4 step 100: loss [0-9.]+, about [0-9]+ of 64 right, 2 workers", said)
    assert accuracy(said) > 80


@pytest.mark.process
def test_the_transformer(tmp_path: Path) -> None:
    said = run(tmp_path, 2, "transformer.py", "1", "650000")
    bits = [float(found) for found in re.findall(r"([0-9.]+) bits a letter, 2 workers", said)]
    assert len(bits) == 2
    assert bits[1] < bits[0] < 7.0
    assert "def " in said
