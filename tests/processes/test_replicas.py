"""Replicas of two processes, real ones: each process killed, stopped; the other replicas go on, and it comes back whole."""

from __future__ import annotations

import signal
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ftlib.checkpoints.names import Name, of_shards, whole_names
from tests.harness.cluster import Worker
from tests.harness.nursery import Nursery
from tests.processes.jobs.launched import LaunchedRun
from tests.processes.jobs.replicas import Replicas
from tests.processes.programs.sharded import EVERY, MOMENTS, ROOM, SPOILT

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

MORE = [moment for moment in MOMENTS if not moment.startswith("hold")]
PROCESSES = [(replica, shard) for replica in range(2) for shard in range(2)]
QUICK = [PROCESSES[1], *(pytest.param(*each, marks=pytest.mark.soak) for each in PROCESSES if each != PROCESSES[1])]
"""All four; those that ``make test`` does not lose are left to ``make soak``."""


SILENCE = 8.0
"""Seconds after which one that is stopped, or whose program hangs, is given up."""
LEARNS = 2.0
"""Seconds in which the rest of a replica has learned that a process of it has ended. It takes 60 ms, also on a machine with a
load of 7 on two processors; what no end of a connection tells takes ``SILENCE``, and a call's own deadline a minute.
An agent that was held up itself, on a busy machine, counts its waits from then: so it may take some more.
"""


@pytest.fixture
def job(nursery: Nursery, tmp_path: Path) -> Iterator[Replicas]:
    with Replicas(tmp_path, nursery, settings={"exclude_after": SILENCE}) as job:
        yield job


def lost(job: Replicas, mate: Worker, since: float, within: float = LEARNS) -> None:
    """The mate of a process that was lost has learned of it, so many seconds after that at most."""
    job.until(f"{mate.name} ends", lambda: mate.code is not None)
    mate.read()
    told = [event for event in mate.events if event.get("event") == "lost"]
    assert told and mate.code == 3, mate.output()[-3000:]
    took = told[0]["t"] - since
    assert took < within, told


def lose_one(job: Replicas, replica: int, shard: int, **task: Any) -> None:
    """Two replicas run ``task``. A process of one is killed; that comes back as a whole, with the others' weights."""
    both = job.begin(2, **task)
    job.together(*both)
    began = both[replica][shard].kill()
    other = both[1 - replica]
    job.together(other)
    lost(job, both[replica][1 - shard], began)
    back = job.replica(**task)
    job.together(other, back)
    assert job.judge() > 10


@pytest.mark.parametrize(("replica", "shard"), QUICK)
def test_a_process_is_killed(job: Replicas, replica: int, shard: int) -> None:
    lose_one(job, replica, shard)


@pytest.mark.parametrize(("replica", "shard"), QUICK)
def test_a_process_is_stopped(job: Replicas, replica: int, shard: int) -> None:
    both = job.begin(2)
    job.together(*both)
    stopped = both[replica][shard]
    began = stopped.signal(signal.SIGSTOP)
    other = both[1 - replica]
    job.together(other)
    lost(job, both[replica][1 - shard], began, 2 * SILENCE)
    stopped.signal(signal.SIGCONT)
    job.until("the stopped one learns of it", lambda: stopped.code == 3)
    back = job.replica()
    job.together(other, back)
    assert job.judge() > 10


def test_a_program_hangs_though_its_process_lives(nursery: Nursery, tmp_path: Path) -> None:
    """Its agent answers all the time: what is missed is its call."""
    with Replicas(tmp_path, nursery, settings={"stall_timeout": SILENCE}) as job:
        first = job.begin(1)[0]
        job.until("it trains", lambda: all(worker.calls for worker in first))
        second = job.replica(given={"hangs": 1})
        hung = lambda: next((event["t"] for event in second[1].events if event.get("event") == "hangs"), None)  # noqa: E731
        began = job.until("one hangs", hung)
        job.together(first)
        lost(job, second[0], began, 2 * SILENCE)
        assert second[1].code is None, "nothing but its program stands still"
        second[1].kill()
        back = job.replica()
        job.together(first, back)
        assert job.judge() > 10


@pytest.mark.parametrize(("replica", "shard"), [PROCESSES[2], pytest.param(*PROCESSES[1], marks=pytest.mark.soak)])
def test_a_notice_comes_to_one_process(job: Replicas, replica: int, shard: int) -> None:
    """It leaves after its call, and its mate, which nobody told, ends with it; the other replica trains on."""
    both = job.begin(2)
    job.together(*both)
    told, mate, other = both[replica][shard], both[replica][1 - shard], both[1 - replica]
    told.signal(signal.SIGTERM)
    job.until("it leaves", lambda: told.code is not None)
    assert told.code == 0, told.output()[-3000:]
    job.together(other)
    job.until("its mate ends", lambda: mate.code is not None)
    assert mate.code == 3, mate.output()[-3000:]
    back = job.replica()
    job.together(other, back)
    assert job.judge() > 10


@pytest.mark.parametrize("whole", [0, 1])
def test_each_of_two_replicas_loses_a_process(job: Replicas, whole: int) -> None:
    """Another shard each, at one moment. Where a third one is whole, that trains on; where none is, the state is lost."""
    replicas = job.begin(2 + whole)
    job.together(*replicas)
    began = [replicas[0][0].kill(), replicas[1][1].kill()]
    mates = [replicas[0][1], replicas[1][0]]
    if whole:
        for mate, since in zip(mates, began, strict=True):
            lost(job, mate, since)
        job.together(replicas[2])
        job.together(replicas[2], job.replica())
        assert job.judge() >= 5
    else:
        job.until("both end", lambda: all(mate.code is not None for mate in mates))
        job.read()
        for mate in mates:  # whichever it learns first: of its mate's death, or of the view without any whole replica
            told = mate.code == 3 or any("StateLost" in str(event) for event in mate.events)
            assert told, (mate.code, mate.output()[-3000:])
    alone = {line["who"] for worker in job.workers for line in worker.calls if line["who"].bit_count() == 1}
    assert alone == ({4} if whole else set()), "a replica that was not whole has made a step"


@pytest.mark.parametrize("moment", ["hold:before", "hold:after", *(pytest.param(m, marks=pytest.mark.soak) for m in MORE)])
def test_a_process_dies_at_a_moment_of_a_call(job: Replicas, moment: str) -> None:
    """When one shard of its replica has its result, and the other may or may not."""
    first = job.begin(1, die=(1, moment))[0]
    job.until("it trains", lambda: all(worker.calls for worker in first))
    second = job.replica()
    third = job.replica()
    job.until("one dies", lambda: first[1].code == -signal.SIGKILL)
    lost(job, first[0], first[1].ended)
    job.together(second, third)
    assert job.judge() > 10


def test_the_launcher_starts_whole_replicas_and_starts_them_again(nursery: Nursery, tmp_path: Path) -> None:
    task = {"program": "tests.processes.programs.sharded:train", "pause": 0.01}
    with LaunchedRun(tmp_path, 2, "--shards", "2", nursery=nursery, restarts=1, **task) as run:

        def together(whos: int, since: int = 0) -> list[Worker] | None:
            alive = [worker for worker in run.alive() if worker.calls]
            there = [worker for worker in alive if worker.last["who"] == whos and worker.last["t"] > since]
            return there if len(there) == len(alive) == 4 else None

        four = run.until("all train", lambda: together(0b11))
        victim = next(worker for worker in four if worker.last["replica"] == 1 and worker.last["shard"] == 0)
        victim.kill()
        again = run.until("the replica is back, under another name", lambda: together(0b1001))
        assert {(worker.last["replica"], worker.last["shard"]) for worker in again} == {(0, 0), (0, 1), (3, 0), (3, 1)}
        assert "2 replicas of 2" in run.said
        run.drain()
    mate = next(worker for worker in four if worker.last["replica"] == 1 and worker.last["shard"] == 1)
    assert victim.code == -signal.SIGKILL
    assert mate.code in (3, -signal.SIGKILL), "it says so, if it comes to that before the launcher ends what is left"
    codes = [worker.code for worker in run.workers if worker not in (victim, mate) and worker.code is not None]
    # Whose mate has left before its own notice came has lost its replica.
    assert len(codes) == 4 and set(codes) <= {0, 3}, (codes, run.said)
    assert codes.count(0) >= 2, "of each replica one at least leaves by itself"


@pytest.mark.parametrize(("replica", "shard"), QUICK)
def test_fsdp_in_a_replica_loses_a_process(job: Replicas, replica: int, shard: int) -> None:
    lose_one(job, replica, shard, program="tests.processes.programs.sharded:fsdp")


@pytest.mark.soak
def test_the_wrapper_over_fsdp_loses_a_process(job: Replicas) -> None:
    lose_one(job, 0, 1, program="tests.processes.programs.sharded:wrapped")


@pytest.mark.parametrize(
    "given", [*(pytest.param(given, marks=pytest.mark.soak) for given in ({}, {"delay": 0})), {"delay": 2}], ids=str
)
def test_the_processes_of_a_replica_draw_the_same(job: Replicas, given: dict[str, int]) -> None:
    """Also where one of them loads ahead and the other does not, after a replica is lost, and after one has come."""
    task: dict[str, Any] = {"program": "tests.processes.programs.sharded:samples", "given": given}
    steps = 10 if given else 40
    three = job.begin(3, **task)
    job.together(*three, steps=steps)
    three[2][0].kill()
    job.together(*three[:2], steps=steps)
    back = job.replica(**task)
    job.together(*three[:2], back, steps=steps)
    job.read()
    used: dict[tuple[int, int], list[list[int]]] = defaultdict(list)
    for worker in job.workers:
        for line in worker.calls:
            used[line["replica"], line["step"]].append(line["used"])
            assert not line["foreign"], line
    apart = {key: found for key, found in used.items() if len(found) == 2 and found[0] != found[1]}
    assert not apart
    epochs = [event for worker in job.workers for event in worker.events if event.get("event") == "epoch"]
    assert len(epochs) > 3 and not [each for each in epochs if each["wrong"]], epochs


@pytest.mark.parametrize("delay", [0, pytest.param(1, marks=pytest.mark.soak)])
def test_diloco_over_fsdp_loses_a_process(job: Replicas, delay: int) -> None:
    """Seldom averages between replicas that shard inside: equal global weights and outer momentum after each sync."""
    lose_one(job, 0, 1, program="tests.processes.programs.sharded:diloco", given={"delay": delay})


@pytest.mark.parametrize("delay", [0, pytest.param(1, marks=pytest.mark.soak)])
def test_an_outer_step_that_overflows_in_one_shard_is_undone_in_all(job: Replicas, delay: int) -> None:
    """The average is finite in both, and the step with it in one of them alone: no process keeps its part of it."""
    both = job.begin(2, program="tests.processes.programs.sharded:diloco", given={"delay": delay, "spoils": 1})
    workers = [worker for row in both for worker in row]
    job.until("they go on", lambda: all(worker.calls and worker.last["step"] > SPOILT + 4 for worker in workers))
    job.read()
    for worker in workers:
        lines = {line["step"]: line for line in worker.calls}
        failed = [step for step, line in lines.items() if not line["applied"]]
        assert failed == [SPOILT], (worker, failed)
        assert lines[SPOILT]["hash"] == lines[SPOILT - 1]["hash"] != lines[SPOILT + 1]["hash"]
    for shard in range(2):
        courses = [[(line["step"], line["hash"]) for line in row[shard].calls][: SPOILT + 4] for row in both]
        assert courses[0] == courses[1]


@pytest.mark.soak
@pytest.mark.parametrize("delay", [0, 1])
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize(("replica", "shard"), PROCESSES)
def test_a_process_dies_within_a_sync(job: Replicas, replica: int, shard: int, moment: str, delay: int) -> None:
    """Any one of a senior replica and of a junior one; the other two finish the sync over each other alone."""
    task: dict[str, Any] = {"program": "tests.processes.programs.sharded:diloco", "given": {"delay": delay}}
    whole = {False: task, True: {**task, "die": (shard, moment)}}
    first = job.begin(1, **whole[replica == 0])[0]
    job.until("it trains", lambda: all(worker.calls for worker in first))
    replicas = [first, job.replica(**task), job.replica(**whole[replica == 1])]
    dying = replicas[2 * replica]
    job.until("one dies", lambda: dying[shard].code == -signal.SIGKILL)
    lost(job, dying[1 - shard], dying[shard].ended)
    job.together(*(each for each in replicas if each is not dying))
    assert job.judge() > 10


def test_a_spare_replica_takes_the_place_of_one_that_is_lost(nursery: Nursery, tmp_path: Path) -> None:
    with Replicas(tmp_path, nursery, settings={"max_size": 2}) as job:
        both = job.begin(2)
        job.together(*both)
        spare = job.replica()
        job.together(*both)
        assert not any(worker.calls for worker in spare), "there was no room for it"
        began = both[0][0].kill()
        job.together(both[1], spare)
        lost(job, both[0][1], began)
        assert job.judge() > 10


def test_a_job_that_died_whole_goes_on_from_a_step_of_all_shards(nursery: Nursery, tmp_path: Path) -> None:
    kept = str(tmp_path / "kept")
    hashes = {}
    with Replicas(tmp_path / "first", nursery) as job:
        both = job.begin(2, given={"checkpoints": kept})
        job.together(*both, steps=40)
        job.until("all shards have written one", lambda: bool(whole_names(of_shards(Path(kept), 2))))
        for worker in job.workers:
            worker.kill()
        job.until("all are gone", lambda: all(worker.code is not None for worker in job.workers))
        job.read()
        hashes = {(line["step"], line["shard"]): line["hash"] for worker in job.workers for line in worker.calls}
    with Replicas(tmp_path / "second", nursery, settings={"resume": kept}) as job:
        both = job.begin(1)
        job.together(*both)
        came = {worker: next(event for event in worker.events if event.get("event") == "resumed") for worker in both[0]}
    steps = {event["at"] for event in came.values()}
    assert len(steps) == 1, came
    assert min(steps) >= 10, came
    for worker, event in came.items():
        assert event["hash"] == hashes[event["at"], worker.task.settings["shard"]], (worker, event)


@pytest.mark.parametrize(("disk", "wanted"), [("slow", (8 * EVERY, 8 * EVERY)), ("full", (12 * EVERY, ROOM * EVERY))])
def test_there_is_always_a_step_of_all_shards(nursery: Nursery, tmp_path: Path, disk: str, wanted: tuple[int, int]) -> None:
    """Where writing takes longer than it is to the next one, each shard might have just the steps that the other one lacks. And
    where one cannot write any more, the other one might remove all that both have.

    ``wanted``: the least step that each shard has come to when this looks, as disks and processors differ in pace.
    """
    kept = tmp_path / "kept"

    def written() -> list[list[Name]] | None:
        names = list(of_shards(kept, 2))
        far = all(own and own[0].step >= least for own, least in zip(names, wanted, strict=True))
        return names if far else None

    with Replicas(tmp_path / "run", nursery) as job:
        job.begin(1, given={"checkpoints": str(kept), "disk": disk})
        names = job.until("both shards have written so much", written)
    assert min(own[0] for own in names) in whole_names(names), names
