"""How a worker's part ends within ``execute``, and what is left of the state then; and how it begins again."""

from __future__ import annotations

import dataclasses
import functools
import threading
from typing import Any

import pytest
import torch

from ftlib import ConfigError, Excluded, FTLibError, RebuildTimeout
from ftlib.core.calls.call import Kind
from ftlib.core.execute.execution import Execution
from ftlib.core.plane.phase import Phase
from ftlib.core.plane.plane import Plane
from tests.ftlib.crews.steps import Learner, reference
from tests.ftlib.crews.trainees import exclude
from tests.ftlib.crews.workers import TIMEOUT, Job, Worker, workers
from tests.harness.basics import around, eventually
from tests.harness.company import at_once, company

STEPS = 8


@pytest.mark.parametrize("place", ["begin", "between", "end"])
def test_a_worker_that_is_excluded_in_its_function_carries_the_step_out_as_a_joiner(place: str) -> None:
    with company(2, rejoin=True) as crew:
        first, second = at_once(*[functools.partial(Learner, ft, seed) for seed, ft in enumerate(crew.members)])
        done: list[int] = []

        def once() -> None:
            if second.ft.step == 3 and not done:
                done.append(1)
                exclude(second.ft)

        second.hooks[place] = once
        over = threading.Event()

        def until_both_are_through() -> None:
            """The last step is carried out by both, so that nobody waits for the other."""
            while not over.is_set():
                first.step()

        def joins_again() -> None:
            while second.ft.step < 3 or second.ft._plane.counters.rejoins == 0:
                second.step()
            over.set()
            second.ft.close()

        at_once(until_both_are_through, joins_again)
        shared = [step for step in second.history if step in first.history]
        assert len(shared) >= 4
        assert all(second.history[step] == first.history[step] for step in shared)
        assert sorted(first.history) == list(range(1, max(first.history) + 1))
        assert {step: first.history[step] for step in (1, 2, 3)} == {step: reference(STEPS)[step] for step in (1, 2, 3)}


def test_whoever_hangs_in_its_function_is_given_up() -> None:
    with company(3, stall_timeout=4.0) as crew:  # a busy machine may keep others for a moment, too
        learners = at_once(*[functools.partial(Learner, ft, seed) for seed, ft in enumerate(crew.members)])
        hung = learners[2]

        def hang() -> None:
            if hung.ft.step == 3:
                eventually(lambda: hung.ft._plane.phase is Phase.STOPPED, "it knows")

        hung.hooks["begin"] = hang

        def train(learner: Learner) -> None:
            if learner is hung:
                with pytest.raises(Excluded, match="stalled"):
                    learner.train(STEPS)
            else:
                assert learner.train(STEPS) == reference(STEPS)

        at_once(*[functools.partial(train, learner) for learner in learners])
        assert hung.digest() == reference(STEPS)[3]


@pytest.mark.parametrize("calls", [False, True], ids=["a function without calls", "a function with a call"])
def test_a_step_that_another_worker_declines_is_an_error(calls: bool) -> None:
    """It has run at one worker alone, or nowhere: that must not look like a step that was done."""
    with company(2) as crew:
        at_once(*[lambda ft=ft: ft.register_state(model=torch.nn.Linear(1, 1)) for ft in crew.members])
        executes, declines = crew.members

        def step() -> None:
            if calls:
                executes.allreduce(torch.ones(1), op="SUM")

        def execute() -> None:
            with pytest.raises(FTLibError, match="another worker has declined this call"):
                executes.execute(step)

        at_once(execute, declines.decline)


@workers(2)
def test_an_interrupt_in_the_commit_ends_this_workers_part(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot know whether the others have committed."""
    learner = Learner(worker.ft, int(worker.name[1:]))
    if worker.name == "w0":
        assert learner.train(STEPS) == reference(STEPS)
        return
    learner.train(3)

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(worker.ft._plane, "finish", interrupted)
    with pytest.raises(KeyboardInterrupt):
        learner.step()
    assert learner.digest() == reference(STEPS)[3]
    with pytest.raises(Excluded, match="while it was being committed"):
        learner.step()


@pytest.mark.parametrize(("owner", "wait"), [(Execution, "settle"), (Plane, "wait_end")])
def test_an_interrupt_while_a_failure_is_waited_for_leaves_the_state_of_the_last_commit(
    owner: type, wait: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the group's operations to end, or of an error that may have come of a member's death."""
    with company(2) as crew:
        first, second = at_once(*[functools.partial(Learner, ft, seed) for seed, ft in enumerate(crew.members)])

        def fails() -> None:
            if second.ft.step == 3 and second.attempts == 4:
                if wait == "wait_end":
                    raise RuntimeError("of the program")
                crew.hub.fail_next(1)
                second.ft.allreduce(torch.ones(1))

        @around(monkeypatch, owner, wait)
        def interrupted(waits: Any, this: Any, *given: Any) -> None:
            if (this if owner is Plane else this._plane) is second.ft._plane and not seen:
                seen.append(second.digest())
                raise KeyboardInterrupt
            waits(this, *given)

        def is_interrupted() -> None:
            second.train(3)
            with pytest.raises(KeyboardInterrupt):
                second.step()
            found.append(second.digest())
            second.train(STEPS)

        seen: list[str] = []
        found: list[str] = []
        second.hooks["end"] = fails
        at_once(lambda: first.train(STEPS), is_interrupted)
        assert found == [reference(STEPS)[3]] != seen, "the function had changed it"
        assert first.history == second.history == reference(STEPS)


def test_too_few_members_are_an_error_and_the_state_is_that_of_the_last_commit() -> None:
    through = threading.Event()

    def body(worker: Worker) -> None:
        learner = Learner(worker.ft, int(worker.name[1:]))
        learner.train(3)
        if worker.name == "w1":
            assert through.wait(TIMEOUT)
            job.kill("w1")
            return
        plane = worker.ft._plane

        def until_alone() -> None:
            through.set()
            eventually(lambda: plane.session is not None and plane.session.size == 1, "the other one is gone")

        learner.hooks["begin"] = until_alone
        _limit(worker, 0.5)
        with pytest.raises(RebuildTimeout, match="only 1 of at least 2"):
            learner.step()
        assert learner.digest() == reference(STEPS)[3]
        assert worker.ft.step == 3

    with Job(2, min_size=2) as job:
        job.run(dict.fromkeys(("w0", "w1"), body))


def test_a_call_inside_has_a_deadline() -> None:
    waited = threading.Event()

    def body(worker: Worker) -> None:
        learner = Learner(worker.ft, int(worker.name[1:]))
        learner.train(3)
        if worker.name == "w1":
            assert waited.wait(TIMEOUT)
            return
        _limit(worker, 0.5)
        with pytest.raises(RebuildTimeout, match=r"execute average.*not finished within 0.5 s"):
            learner.step()
        assert learner.digest() == reference(STEPS)[3]
        waited.set()

    with Job(2) as job:
        job.run(dict.fromkeys(("w0", "w1"), body))


def _limit(worker: Worker, seconds: float) -> None:
    """From now on, and not before: a busy machine takes its time."""
    engine = worker.ft._engine
    limits = dataclasses.replace(engine._limits, step_timeout=seconds)
    engine._limits = engine._waiting._limits = engine._arrival._limits = limits


@workers(2, step_timeout=6.0)
def test_a_function_may_take_longer_than_a_call_may_wait(worker: Worker) -> None:
    """Its time is no waiting."""
    learner = Learner(worker.ft, int(worker.name[1:]))
    pause = threading.Event()

    def think() -> None:
        if worker.ft.step == 1:
            pause.wait(6.2)  # all of them: it stands for work

    learner.hooks["backward"] = think
    assert learner.train(STEPS) == reference(STEPS)


@workers(2)
def test_a_state_that_cannot_be_restored_ends_this_workers_part(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = Learner(worker.ft, int(worker.name[1:]))
    if worker.name == "w0":
        assert learner.train(STEPS) == reference(STEPS)
        return
    learner.train(3)

    def refuses(*_: Any, **__: Any) -> None:
        raise TypeError("not this")

    monkeypatch.setattr(learner.model, "load_state_dict", refuses)
    learner.hooks["between"] = lambda: worker.job.hub.fail_next(1)
    with pytest.raises(ConfigError, match="not this"):
        learner.step()
    with pytest.raises(Excluded, match="could not be restored"):
        learner.step()


class Absent(Exception):
    """Of the program: at all workers, at one a moment later than at the other."""


def test_a_function_that_raises_everywhere_leads_to_the_same_next_call() -> None:
    """The one that raises first is in its next call before the other has raised: that is no other program, also if the view
    changes meanwhile.
    """
    with company(3) as crew:
        first, second, third = at_once(*[functools.partial(Learner, ft, seed) for seed, ft in enumerate(crew.members)])
        ahead, goes = first.ft._plane, threading.Event()

        def raises(learner: Learner) -> None:
            if learner is second:
                eventually(lambda: ahead.current is not None and ahead.current.kind is Kind.BARRIER, "the other one goes on")
                goes.set()
                eventually(lambda: second.ft._plane.phase is not Phase.ACTIVE or second.ft.size == 2, "the view changes")
            raise Absent

        def train(learner: Learner) -> None:
            learner.step()
            if learner is third:
                assert goes.wait(TIMEOUT)
                learner.ft.leave()
                return
            with pytest.raises(Absent):
                learner.ft.execute(raises, learner)
            assert learner.ft.barrier()
            learner.step()

        at_once(*[functools.partial(train, learner) for learner in (first, second, third)])
        assert first.history == second.history
        assert sorted(first.history) == [1, 2]
