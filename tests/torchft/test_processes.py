"""Programs as torchft's users write them, as real processes: killed, stopped, started anew, meeting in a storage."""

from __future__ import annotations

import itertools
import json
import os
import signal
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from tests.harness.basics import eventually
from tests.harness.nursery import Nursery
from tests.harness.program import Program, clean, ftlib_run
from tests.harness.servers import RedisServer, running

pytestmark = pytest.mark.process

LONG = 200.0
TRAINER = ("-m", "tests.torchft.trainer")


class Replicas:
    """What the processes of a test have written, by their ids."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def skipped(self, pid: int) -> list[int]:
        """The steps that this process has skipped."""
        path = self.directory / f"{pid}.skipped"
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    @property
    def steps(self) -> dict[int, list[dict[str, Any]]]:
        """Of those that have committed one."""
        found = {}
        for path in self.directory.glob("*.jsonl"):
            lines = path.read_text().splitlines(keepends=True)
            if whole := [json.loads(line) for line in lines if line.endswith("\n")]:
                found[int(path.stem)] = whole
        return found

    def together(
        self, size: int, program: Program | None = None, count: int = 5, *, shards: int = 1
    ) -> dict[int, list[dict[str, Any]]]:
        """Wait until so many replicas of ``shards`` processes, and no others, commit steps together; returns their steps."""
        newest = {pid: len(steps) for pid, steps in self.steps.items()}
        found: dict[int, list[dict[str, Any]]] = {}

        def train() -> bool:
            fresh = {pid: steps[newest.get(pid, 0) :] for pid, steps in self.steps.items()}
            found.clear()
            found.update({pid: steps for pid, steps in fresh.items() if len(steps) >= count and steps[-1]["size"] == size})
            return len(found) >= size * shards and all(
                each["size"] == size for steps in found.values() for each in steps[-count:]
            )

        def explain() -> str:
            return f"{size} replicas commit together: {newest} {program and program.stderr[-4000:]}"

        eventually(train, explain, LONG)
        return dict(found)

    def end(self) -> None:
        """Ask all to end after a step that none has made yet."""
        newest = max(steps[-1]["step"] for steps in self.steps.values())
        temporary = self.directory / "until.new"
        temporary.write_text(str(newest + 250))
        temporary.rename(self.directory / "until")  # whoever reads it reads a number

    def check(self, lost: Collection[int] = ()) -> None:
        """After each step all replicas that made it have the same weights and counters; none has lost a step.

        ``lost``: the processes of replicas that were lost, by their ids. Their last step does not count: what a lost replica
        alone has finished may be done again without it.
        """
        at: dict[tuple[int, int], set[tuple[str, int]]] = {}
        """By step and shard."""
        for pid, steps in self.steps.items():
            for before, after in itertools.pairwise(steps):
                assert after["step"] == before["step"] + 1, (pid, before, after)
            for each in steps[:-1] if pid in lost else steps:
                at.setdefault((each["step"], each["shard"]), set()).add((each["hash"], each["batches"]))
        assert all(len(found) == 1 for found in at.values()), [step for step, found in at.items() if len(found) > 1]
        shards = {shard for _, shard in at}
        last = max(step for step, _ in at)
        assert sorted(at) == [(step, shard) for step in range(1, last + 1) for shard in sorted(shards)]


def launched(nursery: Nursery, directory: Path, *options: str, size: int = 3) -> Program:
    command = ftlib_run("-n", size, "--max-restarts", 5, "--restart-delay", 0.2, *TRAINER, directory, *options)
    # silence is the sign of one that is stopped, and a busy machine lets nobody else be silent for so long
    return Program(nursery, directory, *command, env=clean(FTLIB_EXCLUDE_AFTER="8", FTLIB_BUCKET_MB="0.0002"))


@pytest.mark.parametrize(
    "options",
    [
        pytest.param((), id="ddp"),
        pytest.param(("--pure",), id="pure", marks=pytest.mark.soak),
        pytest.param(("--diloco", "--sync-quorum"), id="diloco", marks=pytest.mark.soak),
    ],
)
def test_a_replica_is_killed_and_comes_back_and_one_is_stopped(
    options: tuple[str, ...], nursery: Nursery, tmp_path: Path
) -> None:
    replicas = Replicas(tmp_path)
    with launched(nursery, tmp_path, *options) as launcher:
        first, second, _ = sorted(replicas.together(3, launcher))
        os.kill(first, signal.SIGKILL)
        assert first not in replicas.together(3, launcher)  # the launcher has started another one, which has caught up
        os.kill(second, signal.SIGSTOP)  # the others find it silent, the launcher kills it
        assert second not in replicas.together(3, launcher)
        replicas.end()
        assert launcher.wait(LONG) == 0, launcher.stdout + launcher.stderr
    replicas.check()
    assert {each["size"] for steps in replicas.steps.values() for each in steps} >= {2, 3}


@pytest.mark.parametrize("where", [pytest.param("forward", marks=pytest.mark.soak), "backward"])
def test_a_program_raises_between_quorum_and_commit(where: str, nursery: Nursery, tmp_path: Path) -> None:
    """Nobody catches it, and nothing is shut down: the others commit that step and all others without it, and it comes back."""
    replicas = Replicas(tmp_path)
    with launched(nursery, tmp_path, "--raise", where) as launcher:
        raised = tmp_path / "raised"
        eventually(lambda: raised.exists() and raised.read_text(), lambda: f"one raises: {launcher.stderr[-4000:]}", LONG)
        failed = int(raised.read_text())
        again = replicas.together(3, launcher)
        replicas.end()
        assert launcher.wait(LONG) == 0, launcher.stdout + launcher.stderr
    assert "ZeroDivisionError: of the program, between quorum and commit" in launcher.stdout + launcher.stderr
    steps = replicas.steps
    assert failed in steps and failed not in again and len(steps) == 4
    replicas.check()
    assert not any(replicas.skipped(pid) for pid in steps), "a step of the others was lost"
    last = steps[failed][-1]["step"]
    sizes = {each["size"] for pid in again for each in steps[pid] if each["step"] == last + 1}
    assert sizes == {2}, "the step in which it raised was committed by the two others"


@pytest.mark.soak
def test_a_spare_takes_the_place_of_one_that_is_killed(nursery: Nursery, tmp_path: Path) -> None:
    replicas = Replicas(tmp_path)
    with launched(nursery, tmp_path, "--spares") as launcher:

        def counting() -> set[int]:
            return {pid for pid, steps in replicas.steps.items() if steps[-1]["rank"] is not None}

        eventually(lambda: len(replicas.steps) == 3, "all three commit", LONG)
        before = counting()
        assert len(before) == 2
        victim = min(before)
        os.kill(victim, signal.SIGKILL)
        eventually(lambda: len(counting() - {victim}) == 2, "the spare counts", LONG)
        assert before - {victim} <= counting()
        eventually(lambda: len(replicas.steps) == 4, "the launcher has started another one", LONG)
        replicas.end()
        assert launcher.wait(LONG) == 0, launcher.stdout + launcher.stderr
    replicas.check()
    assert {each["size"] for steps in replicas.steps.values() for each in steps} == {2}


def in_storage(nursery: Nursery, directory: Path, where: str, **settings: str) -> None:
    """Three replicas meet there, one is killed, one more comes."""
    replicas, programs = Replicas(directory), []

    def start(number: int) -> None:
        place = directory / f"replica-{number}"
        place.mkdir()
        env = clean(TORCHFT_LIGHTHOUSE=where, FTLIB_LEASE="6.0", FTLIB_INITIAL_SIZE="3", FTLIB_JOB="stored", **settings)
        programs.append(Program(nursery, place, *TRAINER, directory, env=env))

    try:
        for number in range(3):
            start(number)
        replicas.together(3, programs[0])
        programs[0].send_signal(signal.SIGKILL)
        replicas.together(2, programs[1])
        start(3)
        replicas.together(3, programs[1])
        replicas.end()
        for program in programs[1:]:
            assert program.wait(LONG) == 0, program.stderr
    finally:
        for program in programs:
            program.kill()
    replicas.check()


@pytest.mark.soak
def test_replicas_meet_in_a_directory(nursery: Nursery, tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    in_storage(nursery, tmp_path, f"file://{tmp_path}/store")


@pytest.mark.soak
def test_replicas_meet_in_redis(nursery: Nursery, tmp_path: Path) -> None:
    with running(RedisServer(tmp_path / "redis")) as server:
        in_storage(nursery, tmp_path, server.url)
