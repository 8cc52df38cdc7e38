"""All or nothing bit for bit, and no step lost: the real data plane at each moment of its work."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.simulation.data_plane import Pace, Trainers, play, random_history, settings
from tests.simulation.data_plane.ambush import MOMENTS
from tests.simulation.training import Job, torn


@pytest.mark.parametrize("action", ["kill", "pause", "hold", "isolate"])
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_fault_at_each_moment(moment: str, action: str) -> None:
    """In a job that also has a joiner and, where that is what it is about, an interrupted call whose result is given on."""
    for seed, count in enumerate([1, 4]):
        with Job(seed, 4) as job:
            job.world.run(0.2)
            job.ambush(moment, count, action, length=2.5)
            job.join("j")
            if moment in {"giving", "adopting"}:
                job.ambush("completed", 5, "kill")
            job.world.run(3.5)
            job.world.heal()
            job.world.run(2.5)
            job.go_on()


def test_joins_and_leaves_interrupt_nothing() -> None:
    """All learn in one call that they freeze after it; a call that was begun ends with those who began it."""
    for seed in range(8):
        with Job(seed, 3, compute=0.03, long_steps=0.0, pace=Pace(slow=0.0, unbuilt=0.0)) as job:
            for name in ("j0", "j1"):
                job.join(name)
                job.world.run(0.7)
            job.trainers.drain(job.hosts[seed % 3])
            job.world.run(2.0)
            assert job.total("redone") == job.total("adopted") == 0
            assert job.total("state_loads") >= 2
            job.go_on()


def test_ten_of_sixteen_at_once() -> None:
    with Job(3, 16) as job:
        job.world.run(0.37)
        for host in job.hosts[3:13]:
            job.world.kill(host)
        took = job.world.run_until(lambda: all(len(h.activated[-1]) == 6 for h in job.hosts if h.alive), 5.0)
        assert took < 0.5
        job.go_on()


def test_a_result_is_given_on_and_a_late_one_dies_with_its_holder() -> None:
    """Of the histories that tear operations apart some lead to an adoption, and some to a redo."""
    jobs = [torn(seed) for seed in range(14)]
    assert sum(job.total("adopted") for job in jobs) >= 2
    assert sum(job.total("redone") for job in jobs) >= 10


def story(seeds: tuple[int, ...]) -> str:
    """Everything that happened, to the last byte of every message."""
    lines = []
    for seed in seeds:
        jobs = Trainers(seed, **settings(seed))
        lines += [play(random_history(seed), jobs=jobs).world.digest, *jobs.promises.story]
    return "\n".join(lines)


def test_one_story_under_every_hash_seed() -> None:
    code = "from tests.simulation.stories.test_promises import story; print(story((1, 4, 8)))"
    told = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": "77"}, capture_output=True, text=True, check=True
    ).stdout
    assert told == story((1, 4, 8)) + "\n"
    assert "finished call 3" in told


def test_settings_vary() -> None:
    assert len({str(settings(seed)) for seed in range(20)}) > 5
    assert not Trainers(1).promises.story
