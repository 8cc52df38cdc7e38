"""The programs of docs/tracking.md run, and what they log is there, where their trackers are installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .pages import ROOT, fences, section

PAGE = ROOT / "docs" / "tracking.md"
LIMIT = 200


def recipe(heading: str) -> str:
    """The program below ``heading``."""
    [code] = [code for _, code in fences(PAGE, "python") if code in section(PAGE, heading)]
    return code


def run(heading: str, directory: Path, **environment: str) -> None:
    """Run it, in ``directory``, as the only worker."""
    given = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}", **environment}
    command = [sys.executable, "-c", recipe(heading)]
    done = subprocess.run(command, cwd=directory, env=given, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("heading", ["TensorBoard", "Weights & Biases", "MLflow"])
def test_a_recipe_has_about_thirty_lines(heading: str) -> None:
    assert len(recipe(heading).splitlines()) <= 35


@pytest.mark.process
def test_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed: pip install tensorboard")
    run("TensorBoard", tmp_path)
    text = (
        "import sys\nfrom tensorboard.backend.event_processing.event_accumulator import EventAccumulator\n"
        "found = EventAccumulator('runs/job').Reload()\n"
        "assert {'loss', 'members', 'goodput'} <= set(found.Tags()['scalars']), found.Tags()\n"
        "assert [each.step for each in found.Scalars('members')] == [10, 20, 30, 40, 50]\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", text], cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.process
def test_weights_and_biases(tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="wandb is not installed: pip install wandb")
    run("Weights & Biases", tmp_path, WANDB_SILENT="true")
    [found] = (tmp_path / "wandb").glob("offline-run-*-job")
    assert list(found.glob("*.wandb"))


@pytest.mark.process
def test_mlflow(tmp_path: Path) -> None:
    pytest.importorskip("mlflow", reason="mlflow is not installed: pip install mlflow-skinny")
    run("MLflow", tmp_path, MLFLOW_TRACKING_URI=str(tmp_path / "kept"), MLFLOW_ALLOW_FILE_STORE="true")
    [members] = (tmp_path / "kept").glob("0/*/metrics/members")
    assert [int(line.split()[2]) for line in members.read_text().splitlines()] == [10, 20, 30, 40, 50]
