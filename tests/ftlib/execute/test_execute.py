"""``execute``: a step as one unit, with faults at every point of it, over the memory framework."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from ftlib import GroupError
from ftlib.core.calls.call import Call
from ftlib.core.calls.session import Session
from ftlib.core.execute.execution import Executor
from ftlib.core.execute.unit import Unit, UnitStage
from ftlib.core.plane.failures import Failures
from ftlib.state.codec import decode
from ftlib.state.registry import Registered
from ftlib.state.snapshot import Kept
from tests.ftlib.crews.steps import OPERATIONS, STEPS, Learner, Whim, learn, once, reference, the_same
from tests.ftlib.crews.workers import TIMEOUT, Job, Worker
from tests.harness.basics import around, eventually

"""Of one step: three averages or reductions, a collective of the program's, and the commit."""
PLACES = ["begin", "backward", "between", "collective", "end"]


def test_without_failures_every_step_is_carried_out_once() -> None:
    learners: dict[str, Learner] = {}
    with Job(3) as job:
        for history in job.run(dict.fromkeys(("w0", "w1", "w2"), learn(learners))).values():
            the_same(history)
        assert job.cluster.epoch == 1
        assert all(worker.ft.metrics()["level"] for worker in job.workers.values())
    assert all(learner.attempts == STEPS for learner in learners.values())


@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize("skip", range(2 * OPERATIONS + 6))
def test_a_failed_operation_returns_to_the_last_commit(skip: int, elsewhere: bool) -> None:
    """Each operation of two steps in turn; with ``elsewhere`` the others finish it, so that they may have committed."""
    learners: dict[str, Learner] = {}

    def setup(worker: Worker, learner: Learner) -> None:
        if worker.name == "w1":
            learner.hooks["begin"] = once(
                lambda: job.hub.fail_next(1, skip, finish_elsewhere=elsewhere), lambda: worker.ft.step == 3
            )

    with Job(3) as job:
        for history in job.run(dict.fromkeys(("w0", "w1", "w2"), learn(learners, setup))).values():
            the_same(history)
        assert job.cluster.epoch >= 2
        metrics = [worker.ft.metrics() for worker in job.workers.values()]
    assert all(metric["step"] == STEPS for metric in metrics)
    undone = sum(metric["rolled_back"] for metric in metrics)
    assert undone + sum(metric["adopted"] for metric in metrics) > 0
    assert sum(learner.attempts for learner in learners.values()) == 3 * STEPS + undone


@pytest.mark.parametrize("silent", [False, True])
@pytest.mark.parametrize("place", PLACES)
def test_a_member_dies_anywhere(place: str, silent: bool) -> None:
    learners: dict[str, Learner] = {}

    def setup(worker: Worker, learner: Learner) -> None:
        if worker.name == "w1":
            learner.hooks[place] = once(lambda: job.kill("w1", silent=silent), lambda: worker.ft.step == 4)

    with Job(3) as job:
        workers = [job.start(name, learn(learners, setup)) for name in ("w0", "w1", "w2")]
        for worker in (workers[0], workers[2]):
            the_same(worker.join())
        assert job.cluster.history[-1].ids == ("w0", "w2")


def test_two_members_die_one_after_the_other_in_one_step() -> None:
    learners: dict[str, Learner] = {}

    def setup(worker: Worker, learner: Learner) -> None:
        if worker.name == "w1":
            learner.hooks["between"] = once(lambda: job.kill("w1"), lambda: worker.ft.step == 4)
        if worker.name == "w2":  # when the step is run again, in the view without w1
            learner.hooks["end"] = once(lambda: job.kill("w2"), lambda: worker.ft.step == 4 and worker.ft.size == 3)

    with Job(4) as job:
        workers = [job.start(f"w{i}", learn(learners, setup)) for i in range(4)]
        for worker in (workers[0], workers[3]):
            the_same(worker.join())
        assert job.cluster.history[-1].ids == ("w0", "w3")
    assert learners["w0"].attempts == STEPS + 2


def test_the_last_one_goes_on_alone() -> None:
    learners: dict[str, Learner] = {}

    def setup(worker: Worker, learner: Learner) -> None:
        if worker.name == "w0":
            learner.hooks["collective"] = once(lambda: job.kill("w0"), lambda: worker.ft.step == 4)

    with Job(2) as job:
        workers = [job.start(name, learn(learners, setup)) for name in ("w0", "w1")]
        the_same(workers[1].join())
        assert job.cluster.history[-1].ids == ("w1",)


@pytest.mark.parametrize("alone", [True, False])
def test_joiners_come_in_at_the_border_and_compute_on_the_state_from_their_first_attempt(alone: bool) -> None:
    """They count in full at once: the program's own collective sees them."""
    learners: dict[str, Learner] = {}
    arrived, asked = threading.Event(), threading.Event()

    def founder(worker: Worker, learner: Learner) -> None:
        def wait_for_the_joiner() -> None:
            asked.set()
            eventually(lambda: job.workers["w0"].ft._plane.boundary_requested, "the joiner has asked to join, and w0 was told")

        learner.hooks["between"] = once(wait_for_the_joiner, lambda: worker.ft.step == 3)

    def joiner(worker: Worker, learner: Learner) -> None:
        learner.hooks["begin"] = once(arrived.set, lambda: learner.digest() == reference(STEPS)[worker.ft.step])

    with Job(1 if alone else 2) as job:
        founders = [job.start(f"w{i}", learn(learners, founder)) for i in range(1 if alone else 2)]
        assert asked.wait(TIMEOUT)
        late = job.start("w9", learn(learners, joiner))
        for worker in [*founders, late]:
            the_same(worker.join())
        assert job.cluster.history[-1].ids == (*(worker.name for worker in founders), "w9")
        assert len(job.cluster.history) == 2, "nobody was interrupted"
    assert arrived.is_set(), "its function ran on the state"
    assert learners["w0"].attempts == STEPS
    assert learners["w9"].attempts == STEPS - 4
    assert min(learners["w9"].history) == 5


def test_a_freeze_that_finds_a_lone_worker_within_its_function_waits_for_the_border() -> None:
    """Nothing was copied that it could return to."""
    learners: dict[str, Learner] = {}

    def founder(worker: Worker, learner: Learner) -> None:
        def change() -> None:
            job.start("w9", learn(learners))
            eventually(lambda: bool(job.cluster.waiting), "the joiner has asked to join")
            job.cluster.post("change")  # not after a call, but at once
            eventually(lambda: worker.ft._plane._order is not None, "the freeze has arrived")

        learner.hooks["between"] = once(change, lambda: worker.ft.step == 3)

    with Job(1) as job:
        the_same(job.start("w0", learn(learners, founder)).join())
        the_same(job.workers["w9"].join())
    assert learners["w0"].attempts == STEPS


def test_a_leave_waits_for_the_border() -> None:
    """As SIGTERM does it: the flag is raised within the function."""
    learners: dict[str, Learner] = {}

    def setup(worker: Worker, learner: Learner) -> None:
        if worker.name == "w1":

            def leave() -> None:
                worker.ft._call_lock.leave()

            learner.hooks["between"] = once(leave, lambda: worker.ft.step == 3)

    with Job(3) as job:
        workers = [job.start(f"w{i}", learn(learners, setup)) for i in range(3)]
        with pytest.raises(SystemExit) as end:
            workers[1].join()
        assert end.value.code == 0
        for worker in (workers[0], workers[2]):
            the_same(worker.join())
    assert learners["w1"].digest() == reference(STEPS)[4], "the step was finished before it left"
    assert all(learner.attempts == (STEPS if name != "w1" else 4) for name, learner in learners.items())


@pytest.mark.parametrize("place", PLACES)
def test_an_exception_of_the_programs_passes_through_and_it_may_come_back(place: str) -> None:
    learners: dict[str, Learner] = {}
    whim = Whim("no")

    def body(worker: Worker) -> dict[int, str]:
        learner = learners[worker.name] = Learner(worker.ft, seed=int(worker.name[1:]))

        def throw() -> None:
            raise whim

        if worker.name == "w1":
            learner.hooks[place] = once(throw, lambda: worker.ft.step == 3)
            while worker.ft.step < 3:
                learner.step()
            with pytest.raises(Whim) as caught:
                learner.step()
            assert caught.value is whim
            assert learner.digest() == reference(STEPS)[3]
            assert worker.ft.step == 3
        return learner.train(STEPS)

    with Job(3) as job:
        for history in job.run(dict.fromkeys(("w0", "w1", "w2"), body)).values():
            the_same(history)
        assert job.cluster.history[-1].ids == ("w0", "w1", "w2")


def test_an_exception_of_the_programs_ends_it_and_the_others_go_on_without() -> None:
    learners: dict[str, Learner] = {}

    def body(worker: Worker) -> dict[int, str]:
        learner = learners[worker.name] = Learner(worker.ft, seed=int(worker.name[1:]))

        def throw() -> None:
            raise Whim

        if worker.name == "w1":
            learner.hooks["between"] = once(throw, lambda: worker.ft.step == 3)
        try:
            return learner.train(STEPS)
        except Whim:
            job.kill("w1")
            return {}

    with Job(3) as job:
        for name, history in job.run(dict.fromkeys(("w0", "w1", "w2"), body)).items():
            if name != "w1":
                the_same(history)
        assert job.cluster.history[-1].ids == ("w0", "w2")


def test_a_joiner_is_given_the_state_on_entry_though_the_step_has_changed_it() -> None:
    learners: dict[str, Learner] = {}
    given: list[str] = []

    def setup(worker: Worker, learner: Learner) -> None:
        def ask() -> None:
            plane = worker.ft._plane
            assert plane.current is not None
            query = {"call": str(plane.current.number), "origin": plane.state_id}
            tree = decode(b"".join(worker.ft._lives.life.transfer.source(query)))
            nobody = _Nobody()
            other = Learner(nobody)  # type: ignore[arg-type]
            for parameter in other.model.parameters():
                parameter.grad = torch.zeros_like(parameter)
            nobody.registered.load(tree)
            given.append(other.digest())
            assert learner.digest() != reference(STEPS)[3]

        learner.hooks["end"] = once(ask, lambda: worker.ft.step == 3)

    with Job(2) as job:
        job.run(dict.fromkeys(("w0", "w1"), learn(learners, setup)))
    assert given == [reference(STEPS)[3]] * 2


class _Nobody:
    """Takes what is registered."""

    def register_state(self, *, state_dict: Any, load_state_dict: Any, **roles: Any) -> None:
        self.registered = Registered(roles, state_dict, load_state_dict)


def _nothing_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Kept, "restore", lambda _: None)


def _the_copy_is_handed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then an optimizer's steps change the copy."""
    monkeypatch.setattr(Kept, "restore", lambda kept: kept._registered.load(kept.tree()))


def _a_member_in_doubt_undoes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though others may have committed."""

    @around(monkeypatch, Failures, "report")
    def failing(report: Any, failures: Failures, call: Call, session: Session, error: GroupError) -> None:
        report(failures, call, session, error)
        if isinstance(call, Unit) and call.in_doubt and call.kept is not None:
            call.left()
            call.kept.restore()


def _a_member_in_doubt_keeps_what_it_did(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though nobody may have committed."""

    @around(monkeypatch, Executor, "_undo")
    def keeping(undo: Any, executor: Executor, unit: Unit, why: str) -> None:
        if unit.in_doubt:
            unit.stage = UnitStage.READY
        undo(executor, unit, why)


@pytest.mark.parametrize(
    ("bug", "elsewhere", "times"),
    [
        (_nothing_is_restored, False, 1),
        (_the_copy_is_handed_over, False, 2),
        (_a_member_in_doubt_undoes_at_once, True, 1),
        (_a_member_in_doubt_keeps_what_it_did, False, 1),
    ],
)
def test_these_tests_find_planted_bugs(
    monkeypatch: pytest.MonkeyPatch, bug: Callable[[pytest.MonkeyPatch], None], elsewhere: bool, times: int
) -> None:
    """In one of a step's operations at least, with so many failures of it in a row.

    Where one fails in the commit, it is a matter of time whether the other one has finished it: several tries.
    """
    bug(monkeypatch)
    found = False
    for skip in [*reversed(range(OPERATIONS))] * 6:
        learners: dict[str, Learner] = {}

        def setup(worker: Worker, learner: Learner, skip: int = skip) -> None:
            left = [worker.ft.step] * times

            def fail() -> None:
                if worker.ft.step == 3 and left:
                    left.pop()
                    again = len(left) < times - 1  # then each operation has a prelude, as the view is a new one
                    worker.job.hub.fail_next(1, 2 * OPERATIONS - 2 if again else skip, finish_elsewhere=elsewhere)

            if worker.name == "w1":
                learner.hooks["begin"] = fail

        with Job(2) as job:
            histories = job.run(dict.fromkeys(("w0", "w1"), learn(learners, setup)))
        found = any(history != reference(STEPS) for history in histories.values())
        if found:
            break
    assert found
