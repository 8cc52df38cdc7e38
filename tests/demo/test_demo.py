"""The demo itself, as short as it can be: real processes, real signals.

A whole demo has ten interpreters that import torch, one after another, as workers die and come back: half a minute of a
processor. They are forks of one that has imported it, but for a soak test; and where the demo is interrupted.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ftlib.cli.demo.crew import Crew
from ftlib.cli.demo.timeline import Fault
from ftlib.cli.demo.trainer import Training
from tests.harness.basics import TIMEOUT, eventually
from tests.harness.nursery import Nursery
from tests.harness.program import ROOT, Program

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

QUIET = ("--json", "--rest", "0.04")
"""Of a demo that goes to its end: without a rest it would take the processors from all other tests."""
OTHERS = ("isolated:gloo", "rehearsal")
"""Frameworks besides the usual one."""


def arguments(out: Path, *more: str) -> list[str]:
    return ["-m", "ftlib.cli.main", "demo", "--seconds", "10", "--out", str(out), *more]


def command(out: Path, *more: str) -> list[str]:
    return [sys.executable, *arguments(out, *more)]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "FTLIB_JOB": "not-the-demos"}


def remaining(out: Path) -> list[int]:
    """Processes that work in the demo's directory."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                at = (entry / "cwd").readlink()
            except OSError:
                continue
            if at == out:
                found.append(int(entry.name))
    return found


@pytest.mark.parametrize("framework", ["gloo", *(pytest.param(name, marks=pytest.mark.soak) for name in OTHERS)])
def test_every_promise_is_kept(nursery: Nursery, tmp_path: Path, framework: str) -> None:
    out = tmp_path / "out"
    with Program(nursery, tmp_path, *arguments(out, "--framework", framework, *QUIET), env=environment()) as done:
        assert done.wait(590) == 0, done.stderr + done.stdout
        all_is_kept(out, done.stdout, done.stderr)
    assert "what was replayed is not" not in (out / "launcher.log").read_text(), "joiners come in beside the others' steps"


@pytest.mark.soak
def test_every_promise_is_kept_by_interpreters_of_their_own(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = subprocess.run(
        command(out, *QUIET), env=environment(), cwd=tmp_path, capture_output=True, text=True, timeout=590, check=False
    )
    assert done.returncode == 0, done.stderr + done.stdout
    all_is_kept(out, done.stdout, done.stderr)


def all_is_kept(out: Path, told: str, shown: str) -> None:
    facts = json.loads(told)
    assert facts == json.loads((out / "report.json").read_text())
    assert facts["kept"] and all(promise["kept"] for promise in facts["promises"])
    assert [found["fault"] for found in facts["consequences"]] == [fault.value for fault in _order()]
    assert all(found["recovery"] is not None and found["back"] is not None for found in facts["consequences"])
    assert facts["steps"] > 50 and facts["steps_lost"] == 0 and facts["divergent"] == 0
    # Eight; on a machine so busy that a worker is silent for two seconds, that one is replaced, too.
    assert facts["compared"] > 3 * facts["steps"] and facts["processes"] >= 8 and facts["epochs"] >= 8
    assert (out / "demo.png").read_bytes().startswith(b"\x89PNG")
    assert "All promises were kept." in shown and str(out / "demo.png") in shown
    assert remaining(out) == []


def _order() -> list[Fault]:
    return [Fault.KILL, Fault.STOP, Fault.ADD, Fault.SENIOR]


@pytest.mark.parametrize(
    "number", [*(pytest.param(number, marks=pytest.mark.soak) for number in (signal.SIGINT, signal.SIGTERM)), signal.SIGKILL]
)
def test_an_interrupted_demo_leaves_nothing_behind(tmp_path: Path, number: signal.Signals) -> None:
    out = tmp_path / "out"
    with subprocess.Popen(
        command(out), env=environment(), cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as demo:
        try:
            deadline = time.monotonic() + 120  # four import torch
            while len(list(out.glob("steps/*.jsonl"))) < 4:
                assert demo.poll() is None and time.monotonic() < deadline
                time.sleep(0.05)
            demo.send_signal(number)
            told, complaint = demo.communicate(timeout=TIMEOUT)
        finally:
            demo.kill()
    deadline = time.monotonic() + 30
    while remaining(out):
        assert time.monotonic() < deadline, f"still there: {remaining(out)}"
        time.sleep(0.05)
    if number != signal.SIGKILL:
        assert demo.returncode == 130, complaint
        assert told.decode().rstrip().endswith("Interrupted. All workers are gone.")
        assert not complaint


def test_whoever_is_left_is_found(tmp_path: Path) -> None:
    """A process of the job, whoever has started it, is known by its environment; forks show that of their first parent."""
    crew = Crew(tmp_path, "a-demos", Training("gloo", 7, 0.0))
    assert crew.left() == []
    with subprocess.Popen(["sleep", "60"], env={**os.environ, "FTLIB_JOB": "a-demos"}) as sleeper:
        try:
            # While a program is being loaded, its process has no environment yet.
            eventually(lambda: crew.left() == [sleeper.pid], "it is found")
        finally:
            sleeper.kill()
    assert crew.left() == []


def test_bad_arguments_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for wrong, text in (
        (["--seconds", "3"], "--seconds"),
        (["--out", "file"], "--out"),
        (["--out", "file/x"], "--out"),
        (["x"], "x"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "ftlib.cli.main", "demo", *wrong],
            env=environment(),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 2, done.stderr
        assert done.stderr.startswith("ftlib: error: ") and text in done.stderr and done.stderr.count("\n") == 1
