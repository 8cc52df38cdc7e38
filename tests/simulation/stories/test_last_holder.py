"""A notice yields while its member is the only one with the state, and another is on its way: else the job is lost."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from consensus.simulation import Host, living
from tests.simulation.data_plane import Trainers, play_plot
from tests.simulation.data_plane.play import settings
from tests.simulation.training import Job

PATIENCE = 8.0


def lost_but_one(job: Job) -> Host:
    """All but the most senior are killed, one after the other, as by a launcher that hears that they are silent."""
    job.world.run(1.0)
    last, *others = job.hosts
    for host in others:
        job.world.kill(host)
        job.world.run(0.7)
    assert living(job.world) == [last]
    return last


def kept(job: Job, joiner: Host, before: int) -> bool:
    """Whether ``joiner`` goes on from where the others were."""
    job.world.run(12.0)
    return joiner.alive and job.calls(joiner) > before and job.trainers.processes[joiner.id].plane.level


def others_may_come(handover: float) -> bool:
    """The last with the state is told to leave, and the others' successors are still starting."""
    with Job(3, 4, compute=0.03, handover=handover) as job:
        last = lost_but_one(job)
        job.trainers.drain(last)
        job.world.run(0.5)
        before = job.calls(last)
        return kept(job, job.world.start("next", introducers=(last.name,)), before)


def it_has_asked(handover: float) -> bool:
    """The notice comes when a joiner is about to be let in."""
    with Job(5, 2, compute=0.03, handover=handover) as job:
        last = lost_but_one(job)
        joiner = job.world.start("next", introducers=(last.name,))
        job.world.run_until(lambda: job.trainers.processes[last.id].plane.boundary_requested, 20.0)
        job.trainers.drain(last)
        return kept(job, joiner, job.calls(last))


def it_said_so_in_a_call_that_failed(handover: float) -> bool:
    """Its goodbye was written in a call with another, which died in it. The senior of two goes on, and says it no more."""
    with Job(7, 2, compute=0.03, handover=handover) as job:
        job.world.run(1.0)
        last, other = job.hosts
        struck: list[float] = []

        def strike(host: Host, moment: str) -> None:
            if moment == "goodbye" and not struck:
                struck.append(job.world.now)
                job.world.kill(other)

        job.trainers.on_moment = strike
        job.trainers.drain(last)
        job.world.run_until(lambda: bool(struck), 20.0)
        before = job.calls(last)
        job.world.run(1.0)
        return kept(job, job.world.start("next", introducers=(last.name,)), before)


@pytest.mark.parametrize("history", [others_may_come, it_has_asked, it_said_so_in_a_call_that_failed])
def test_the_state_is_handed_on_first(history: Callable[[float], bool]) -> None:
    assert history(PATIENCE)
    assert not history(0.0), "without that rule the same history loses it"


def ends_after(job: Job, host: Host) -> float:
    """Seconds from a notice until the program has left."""
    job.trainers.drain(host)
    began, trainer = job.world.now, job.trainers.processes[host.id].trainer
    job.world.run_until(lambda: bool(trainer.ending), 60.0)
    assert trainer.ending == "left"
    return job.world.now - began


def test_nobody_comes_and_it_leaves_at_the_deadline() -> None:
    with Job(3, 4, compute=0.03, handover=PATIENCE) as job:
        assert PATIENCE - 3.0 < ends_after(job, lost_but_one(job)) < PATIENCE + 3.0


def test_nobody_is_expected_and_it_leaves_at_once() -> None:
    """It was alone from the start, or the others left of their own accord."""
    with Job(3, 1, compute=0.03, handover=PATIENCE) as job:
        job.world.run(1.0)
        assert ends_after(job, job.hosts[0]) < 3.0
    with Job(4, 3, compute=0.03, handover=PATIENCE) as job:
        job.world.run(1.0)
        for host in job.hosts:
            job.trainers.drain(host)
        trainers = [job.trainers.processes[host.id].trainer for host in job.hosts]
        began = job.world.now
        job.world.run_until(lambda: all(trainer.ending for trainer in trainers), 60.0)
        assert job.world.now - began < 4.0


def test_others_have_the_state_and_it_leaves_at_once() -> None:
    with Job(4, 3, compute=0.03, handover=PATIENCE) as job:
        job.world.run(1.0)
        job.world.kill(job.hosts[2])
        job.world.run(2.0)
        assert ends_after(job, job.hosts[0]) < 3.0


CHUNK = 12


@pytest.mark.parametrize("first", [0, *(pytest.param(first, marks=pytest.mark.soak) for first in range(CHUNK, 3000, CHUNK))])
def test_promises_hold_though_a_goodbye_is_not_said_again(first: int) -> None:
    """Leavers that fall behind in their last call, and are alone after that: histories whose faults hang together."""
    for seed in range(first, first + CHUNK):
        result, plot = play_plot(seed, leaver=True, make=lambda seed: Trainers(seed, **settings(seed), handover=PATIENCE))
        assert result.good, f"seed {seed}: {plot.script}\n{result.scenario}\n{result}"
