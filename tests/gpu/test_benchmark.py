"""The benchmark of a GPU, rehearsed: that it runs, and that rows which were not measured say why."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import gpu
from benchmarks.gpu import losses, staging
from benchmarks.gpu.stand import REAL, REHEARSED, Stand
from benchmarks.report import Report
from ftlib.frameworks.accelerators.rehearsal.faults import VARIABLE
from tests.harness.cluster import Cluster
from tests.harness.nursery import ROOT, Nursery, Stuck


class Rows(Report):
    """What is told."""

    def __init__(self) -> None:
        super().__init__("a test", 0.0)
        self.told: dict[str, tuple[str, bool | None]] = {}

    def row(self, what: str, *measured: str, bar: str = "", good: bool | None = None) -> None:
        self.told[what] = measured[0], good


def rehearsed(directory: Path, nursery: Nursery, *only: str, seconds: float = 60.0) -> dict[str, tuple[str, bool | None]]:
    """The rows of these parts."""
    report = Rows()
    numbers: dict[str, Any] = {"elements": 20_000, "workers": 3, "kills": 1, "communicators": 3, "seed": 1}
    args = argparse.Namespace(only=list(only), stand=REHEARSED, seconds=seconds, **numbers)
    gpu.measure(args, report, nursery, directory)
    return report.told


def test_without_a_gpu_every_row_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(Stand, "missing", lambda _: "no GPU")
    monkeypatch.setattr(sys, "argv", ["benchmarks gpu"])
    assert gpu.main() == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("│")]
    count = sum(len(part.rows) for part in gpu.PARTS.values())
    assert sum("not measured: no GPU" in row for row in rows) == count >= 12


@pytest.mark.process
def test_deaths_are_rehearsed(tmp_path: Path, nursery: Nursery) -> None:
    told = rehearsed(tmp_path, nursery, "losses")
    assert told["steps lost, results that differ"][1]
    assert told["workers that failed"] == ("0", True)
    assert any("to their next average" in what and measured.endswith("]") for what, (measured, _) in told.items())


@pytest.mark.parametrize("stand", [REHEARSED, pytest.param(REAL, marks=pytest.mark.gpu)], ids=lambda stand: stand.name)
def test_staging_is_measured(monkeypatch: pytest.MonkeyPatch, stand: Stand) -> None:
    monkeypatch.setattr(staging, "ROUNDS", 7)
    device, host = staging.measured(stand, 60)
    assert len(device) == len(host) == 2
    assert min(*device, *host) > 0


def test_a_part_that_fails_keeps_no_other_from_being_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(_: object) -> None:
        raise AssertionError("a long story\nthe reason")

    parts = {"one": gpu.Part(fail, {"a row": ""}, 1.0), "two": gpu.Part(fail, {"another": ""}, 1.0)}
    monkeypatch.setattr(gpu, "PARTS", parts)
    nursery: Any = None
    assert rehearsed(tmp_path, nursery, "one", "two") == dict.fromkeys(
        ("a row", "another"), ("not measured: the reason", False)
    )
    told = rehearsed(tmp_path, nursery, "two", seconds=1.0)
    assert told == {"another": ("not measured: no time was left", None)}


@pytest.mark.process
def test_accelerators_that_never_start_are_not_waited_for_in_vain(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, nursery: Nursery
) -> None:
    monkeypatch.setattr(losses, "START", 0.5)
    settings, faults = {"framework": "rehearsal"}, {VARIABLE: "start=fails"}
    with Cluster(tmp_path, nursery, settings=settings, environment=faults) as cluster:
        cluster.found(2)
        cluster.training(2)
        with pytest.raises(Stuck, match="has no rehearsal accelerator: its start failed on purpose"):
            losses.await_accelerators(cluster, lambda: False)


@pytest.mark.soak
@pytest.mark.process
def test_all_of_it_is_rehearsed() -> None:
    """By the commands that ``make gpu`` runs on a GPU."""
    command = [sys.executable, "-m", "tests.gpu", "--rehearse", "--tests", "100", "--benchmark", "110"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=290, check=False)
    assert "tests: well, benchmark: well" in ended.stdout, ended.stdout + ended.stderr
    assert "no time was left" not in ended.stdout
