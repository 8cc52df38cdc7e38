"""Accelerators with random faults in random histories: no step is lost, all have the same bits, and everybody goes on.

Whatever an accelerator does wrong costs speed. It comes back by itself; nothing is freed that a peer uses, and no member
reports what it has finished while operations of its stopped communicator may still write.
"""

from __future__ import annotations

import functools
from collections import Counter
from dataclasses import replace

import pytest

from ftlib.core.calls import device_attempt
from ftlib.frameworks.accelerators.rehearsal.faults import Faults
from tests.simulation.data_plane import HEALTHY, Accelerators, Pace, accelerated, play, random_history
from tests.simulation.training import Job, interrupted

from .volume import mostly_soak

SEEDS = 30
SOAK = 1000
CHUNK = 50


@functools.cache
def played(seed: int) -> tuple[str, Counter[str], frozenset[str]]:
    """What is wrong with the history of that seed, if anything; what happened, and which faults there were."""
    jobs = accelerated(seed)
    result = play(random_history(seed), jobs=jobs)
    assert jobs.accelerators is not None
    seen = {name for found in jobs.accelerators.equipment for name in str(found).split(", ")}
    return "" if result.good else f"{result.scenario}\n{result}", Counter(jobs.promises.counts), frozenset(seen)


@pytest.mark.parametrize("seed", mostly_soak(range(SEEDS), 12))
def test_promises_hold_whatever_accelerators_do(seed: int) -> None:
    wrong, *_ = played(seed)
    assert not wrong


@pytest.mark.soak
@pytest.mark.parametrize("first", range(0, SOAK, CHUNK))
def test_promises_hold_in_many_more(first: int) -> None:
    bad = []
    for seed in range(first, first + CHUNK):
        result = play(random_history(seed), jobs=accelerated(seed))
        if not result.good:
            bad.append(f"seed {seed}: {result}")
    assert not bad, "\n".join(bad)


def test_a_report_waits_for_a_device_that_another_thread_has_just_stopped() -> None:
    """A call fails here as a member ends, and the thread that made it stops the device. While it waits for that, the change of
    the view is ordered after the call before.
    """
    result = play(random_history(704554, "any"), jobs=accelerated(704554))
    assert result.good, f"{result.scenario}\n{result}"


def test_the_histories_have_every_fault_and_go_by_both_ways() -> None:
    counts: Counter[str] = Counter()
    seen: set[str] = set()
    for _, happened, faults in map(played, range(8)):
        counts.update(happened)
        seen |= faults
    assert counts["accelerated"] > 100
    assert counts["finished"] - counts["accelerated"] > 100
    assert counts["freed"] > 30
    assert seen >= {"start fails", "start hangs", "start_seconds", "launch_seconds", "kernel_seconds", "silent", "error_at"}
    assert seen >= {"stop hangs", "free fails", "free hangs", "absent"}


@pytest.mark.parametrize("seed", range(3))
def test_it_comes_back_by_itself(seed: int) -> None:
    """After every death, and where somebody joins, soon all calls go by accelerators again, if these can be built."""
    accelerators = Accelerators(seed, lambda _rng, _index: HEALTHY)
    with Job(seed, 4, accelerators=accelerators, on_device=3, compute=0.02, long_steps=0.0, pace=Pace(unbuilt=0.0)) as job:
        promises = job.trainers.promises
        for turn in range(3):
            job.world.run(1.0)
            job.ambush("reduced", 1, "kill-other")
            job.world.run(1.0)
            job.join(f"j{turn}")
            job.world.run(2.0)
            before = promises.counts["finished"], promises.counts["accelerated"]
            job.world.run(1.0)
            finished, carried = promises.counts["finished"] - before[0], promises.counts["accelerated"] - before[1]
            assert finished == carried > 10, (turn, finished, carried)
        assert promises.counts["freed"] > 10


@pytest.mark.parametrize("speed", [1e3, 1e9])
@pytest.mark.parametrize("seed", range(2))
def test_one_that_fails_again_and_again_ends_no_training(seed: int, speed: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """It starts well each time, and fails in its first operation; where calls are large, a view's first one waits for it."""
    monkeypatch.setattr(device_attempt, "GLOO_SPEED", speed)
    failing = replace(HEALTHY, faults=Faults(error_at=1))
    accelerators = Accelerators(seed, lambda _rng, index: failing if index == 1 else HEALTHY)
    with Job(seed, 3, accelerators=accelerators, on_device=3, compute=0.05, long_steps=0.0, pace=Pace(unbuilt=0.0)) as job:
        counts = job.trainers.promises.counts
        job.world.run(10.0)
        assert counts["views"] <= 3 * 6, "at first one by one, then after 1, 2, 4 s"
        assert counts["finished"] > 60
        assert counts["accelerated"] == 0


def test_the_same_seed_is_the_same_history() -> None:
    def story() -> list[str]:
        jobs = accelerated(7)
        play(random_history(7), jobs=jobs)
        return list(jobs.promises.story)

    assert story() == story() != []


def test_interrupted_histories_are_clean_without_bugs() -> None:
    assert (
        sum(interrupted(seed, lambda _rng, _index: HEALTHY).trainers.promises.counts["accelerated"] for seed in range(3)) > 50
    )
