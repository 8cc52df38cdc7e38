"""A member that is more than one call behind, which the protocol rules out, is healed: it goes on with the others' state."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from consensus import View
from consensus.simulation import Host, living
from ftlib.core.calls.salvage import SalvagePlan, plan
from ftlib.core.calls.session import Session
from ftlib.core.plane import rebuild
from ftlib.core.plane.plane import Plane
from tests.harness.basics import around
from tests.simulation.data_plane import Pace
from tests.simulation.training import Job, first_violation


def lag(job: Job, victim: Host, calls: int) -> None:
    """When it freezes next, it has lost so many calls, and its state is anybody's guess."""
    promises, process = job.trainers.promises, job.trainers.processes[victim.id]
    promises.lagging.add(victim.id)

    def alone() -> bool:
        """What nobody else has finished would be gone with it, and is redone otherwise by the others: that breaks a promise."""
        others = [job.trainers.processes[host.id] for host in living(job.world) if host is not victim]
        return all(other.plane.finished < process.plane.finished for other in others)

    def happens(host: Host, moment: str) -> None:
        between = process.plane.current is None and process.call_lock._holder is not None  # a call has ended, and not returned
        if host is not victim or moment != "frozen" or process.plane.finished <= calls or between or alone():
            return
        job.trainers.on_moment = None
        process.plane.finished -= calls
        process.plane.step -= calls
        process.plane.results = None
        for parameter in process.trainer.parameters:
            parameter.fill_(13)

    job.trainers.on_moment = happens


def lagging(seed: int) -> Job:
    """One of them lags when somebody dies, alone or with a joiner at the door; anybody may be the senior.

    Not where all stop after a call: they have reported as soon as that has ended.
    """
    rng = Random(seed)
    with Job(seed, rng.choice([3, 4]), compute=0.02, pace=Pace(unbuilt=0.0)) as job:
        job.world.run(1.0)
        victim, other = rng.sample(living(job.world), 2)
        lag(job, victim, rng.choice([2, 3, 5]))
        if rng.random() < 0.5:
            job.join("j")
            job.world.run(rng.random())
        job.world.kill(other)
        job.world.run(1.5)
        job.join("k")
        job.world.run(1.5)
        job.go_on()
    return job


def test_it_goes_on_with_the_state_of_the_others() -> None:
    jobs = [lagging(seed) for seed in range(20)]
    lagged = [job for job in jobs if job.trainers.on_moment is None]
    assert len(lagged) > 8, "in the others the victim was never stopped within a call, or with what nobody else had finished"
    assert all(job.trainers.promises.counts["healed"] == 1 for job in lagged)
    assert sum(job.total("adopted") for job in jobs), "some of those histories leave a call to be adopted by others"


def keeps_its_state(patch: pytest.MonkeyPatch) -> None:
    """Whoever lags believes that it still has the state."""

    @around(patch, Plane, "activate")
    def activate(honest: Any, self: Plane, session: Session) -> bool:
        state_id = self.state_id
        acting = honest(self, session)
        if acting and self.member_id in session.plan.healed:
            self.state_id = state_id
        return acting


def is_asked_for_it(patch: pytest.MonkeyPatch) -> None:
    """Whoever lags is taken for a holder of the state."""

    def holding(view: View, reports: dict[str, bytes]) -> SalvagePlan:
        honest = plan(view, reports)
        return replace(honest, holders=honest.healed or honest.holders)

    patch.setattr(rebuild, "plan", holding)
    keeps_its_state(patch)


@pytest.mark.parametrize("bug", [keeps_its_state, is_asked_for_it])
def test_a_planted_bug_is_found(bug: object, monkeypatch: pytest.MonkeyPatch) -> None:
    bug(monkeypatch)  # type: ignore[operator]
    assert first_violation(lagging, range(12)) is not None


def test_nobody_lags_by_itself() -> None:
    """The promises take a member that is healed for one that lost steps, unless a script has made it lag."""
    lagged = 0
    for seed in range(12):
        with Job(seed, 3, compute=0.02, pace=Pace(unbuilt=0.0)) as job:
            job.world.run(1.0)
            lag(job, job.hosts[1], 2)
            job.trainers.promises.lagging.clear()
            job.world.kill(job.hosts[2])
            broken = ""
            try:
                job.world.run(1.0)
            except AssertionError as error:
                broken = str(error)
            lags = job.trainers.on_moment is None
            lagged += lags
            assert ("takes m1 for more than one call behind" in broken) == lags
    assert lagged > 2, "in the others it was never stopped within a call"
