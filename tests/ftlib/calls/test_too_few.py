"""Fewer than ``min_size`` members: calls end with FAIL, and all programs are at the same call when more have come."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest
import torch
from torch import nn

from ftlib import RebuildTimeout, Status, StepMismatch
from ftlib.common.threads import Threads
from ftlib.core.calls.call import Call, Kind
from ftlib.core.calls.session import Session
from ftlib.core.engine.arrival import Arrival
from ftlib.core.engine.catching_up import CatchUp, Obtained, caught_up
from ftlib.core.engine.waiting import Limits, Waiting
from ftlib.core.plane.phase import Phase
from ftlib.core.plane.plane import Plane
from ftlib.core.tensors.layout import Layout
from ftlib.core.tensors.layout_book import LayoutBook
from ftlib.ftlib import FTLib
from tests.ftlib.crews.workers import Job, Worker
from tests.harness.basics import TIMEOUT, eventually
from tests.harness.company import at_once, company

PATIENCE = 2.0
"""Seconds until a call ends with FAIL."""
MOMENT = 0.01
"""Seconds before that."""


class Program:
    """Two kinds of calls a step, as most programs have: an average, and another reduction."""

    def __init__(self, ft: FTLib, over: threading.Event) -> None:
        self.ft, self._over = ft, over
        self.model = nn.Linear(2, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        ft.register_state(model=self.model, optimizer=self.optimizer)
        self.statuses: list[Status] = []
        self.failed = threading.Event()

    def average(self) -> None:
        self.optimizer.zero_grad()
        self.model(torch.ones(1, 2)).sum().backward()
        status = self.ft.allreduce_average(self.model)
        self._note(status)
        if status:
            self.optimizer.step()

    def run(self, rest: float = 0.0, *, once: bool = False) -> list[Status]:
        """Until ``over``, after the same call everywhere. ``rest``: seconds that its first backward takes. ``once``: it is over
        once this program has an average.
        """
        ended = torch.zeros(1)
        time.sleep(rest)
        while True:
            self.average()
            if once and self.statuses[-1]:
                self._over.set()
            ended.fill_(self._over.is_set())
            self._note(status := self.ft.allreduce(ended, "MAX"))
            if status and ended.item():
                return self.statuses

    def _note(self, status: Status) -> None:
        self.statuses.append(status)
        if status is Status.FAIL:
            self.failed.set()


@pytest.mark.parametrize("settings", [{}, {"straggler_deadline": 0.3}], ids=["", "with backup workers"])
@pytest.mark.parametrize("rest", [0.0, PATIENCE / 2], ids=["level", "skewed"])
def test_one_gives_up_and_the_other_has_a_new_member_first(rest: float, settings: dict[str, Any]) -> None:
    """One program has gone on to its next call while the other is in the one that failed there. That fails at both."""
    over = threading.Event()
    with company(3, min_size=3, step_timeout=PATIENCE, **settings) as crew:
        programs = [Program(ft, over) for ft in crew.members]
        at_once(*[program.average for program in programs])
        crew.members[2].close()

        def join() -> list[Status]:
            assert programs[0].failed.wait(60.0)
            return Program(crew.init(), over).run(once=True)

        first, second, joined = at_once(programs[0].run, lambda: programs[1].run(rest), join)
        assert first == second and Status.FAIL in first
        assert joined[-1] is Status.SUCCESS
        parts = [torch.cat([each.flatten() for each in program.model.parameters()]).tolist() for program in programs[:2]]
        assert parts[0] == parts[1]
        assert programs[0].ft.step == programs[1].ft.step


@pytest.mark.parametrize(("given", "newcomer", "found"), [(True, False, True), (False, False, False), (True, True, False)])
def test_what_another_member_has_finished_needs_no_more_of_them(*, given: bool, newcomer: bool, found: bool) -> None:
    """Else its average counted there and not here."""
    plane = Plane("a")
    plane.newcomer = newcomer
    session = cast("Session", SimpleNamespace(size=1, gives=lambda number: given and number == 4))
    plane.phase, plane.session = Phase.ACTIVE, session
    call = Call(Kind.BARRIER, Layout(b"", "barrier", "barrier()", ()), [])
    call.enter(4, plane.threads.now() - 10.0)
    assert Waiting(plane, Limits(1.0, min_size=2), lambda: True).session(call) is (session if found else None)


class Lonely(Threads):
    """Its clock stands still but for waits. A change ends each of them, a moment before the caller's patience does."""

    def __init__(self) -> None:
        self.clock = 100.0
        self.changes: list[Callable[[], None]] = []
        """One for each wait; those after that last until the caller's patience has ended."""

    def now(self) -> float:
        return self.clock

    def condition(self) -> threading.Condition:
        condition = super().condition()
        condition.wait = self.waited  # type: ignore[method-assign]
        return condition

    def waited(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        if self.changes:
            self.clock += timeout - MOMENT
            self.changes.pop(0)()
        else:
            self.clock += timeout + MOMENT
        return True


class Alone:
    """The waits of a call that finds itself in a view of one, though it takes two."""

    def __init__(self) -> None:
        self.threads = Lonely()
        self.plane = Plane("a", threads=self.threads)
        self.enough, self._few = self._session(2), self._session(1)
        self.call = Call(Kind.BARRIER, Layout(b"", "barrier", "barrier()", ()), [])
        self.call.enter(4, self.threads.clock)
        self.waiting = Waiting(self.plane, Limits(PATIENCE, min_size=2), lambda: True)
        self.loses()

    @staticmethod
    def _session(size: int) -> Session:
        view = SimpleNamespace(view_id=f"of {size}", ids=("a",))
        return cast("Session", SimpleNamespace(size=size, view=view, gives=lambda _: False))

    def freezes(self) -> None:
        self.plane.phase = Phase.FROZEN

    def has_enough(self) -> None:
        self.plane.phase, self.plane.session = Phase.ACTIVE, self.enough

    def loses(self) -> None:
        self.plane.phase, self.plane.session = Phase.ACTIVE, self._few


def test_a_call_that_had_to_wait_for_members_has_all_its_time_once_they_are_there() -> None:
    """Else who waited until a moment before its deadline would end with RebuildTimeout, just as the others come."""
    alone = Alone()
    alone.threads.changes = [alone.has_enough]
    assert alone.waiting.session(alone.call) is alone.enough
    came = alone.threads.clock
    for seconds in (MOMENT * 2, PATIENCE - MOMENT):
        alone.threads.clock = came + seconds
        alone.waiting.waited(alone.call, alone.enough, seconds)
    alone.threads.clock = came + PATIENCE + MOMENT
    with pytest.raises(RebuildTimeout, match="not finished within 2 s"):
        alone.waiting.waited(alone.call, alone.enough, PATIENCE + MOMENT)


def test_a_view_change_as_patience_for_members_ends_has_all_its_time() -> None:
    """Also the next one, if the newcomer dies at once. Whoever has too few after that has waited for long enough."""
    alone = Alone()
    alone.threads.changes = [alone.freezes, alone.has_enough]
    assert alone.waiting.session(alone.call) is alone.enough
    alone.threads.clock -= PATIENCE / 2  # that one had been quicker
    alone.freezes()
    alone.threads.changes = [alone.loses]
    assert alone.waiting.session(alone.call) is None


def test_a_view_change_that_does_not_end_is_not_waited_for_any_longer() -> None:
    alone = Alone()
    alone.threads.changes = [alone.freezes]
    with pytest.raises(RebuildTimeout, match="no new view for 2 s"):
        alone.waiting.session(alone.call)


def test_the_state_has_all_its_time_to_come_once_members_are_there() -> None:
    """A joiner asks for it only then, and however often: the time before that is not that of who has it."""
    asked, over = threading.Event(), threading.Event()

    def body(worker: Worker) -> None:
        worker.ft.register_state(state_dict=dict, load_state_dict=lambda _: None)
        give = worker.consensus.sources["/state"]

        def gives(query: Any) -> Any:
            if asked.is_set():
                return give(query)
            asked.set()
            raise LookupError("not yet")

        worker.consensus.sources["/state"] = gives
        worker.ft.barrier()
        job.start("w9", joins)
        while not over.is_set():
            worker.ft.barrier()

    def joins(worker: Worker) -> Status:
        ft = worker.ft
        ft.register_state(state_dict=dict, load_state_dict=lambda _: None)
        load = ft._engine._load

        def after_a_while(call: Call, session: Session) -> bool:
            call.began -= 2 * ft.settings.step_timeout  # for so long there were too few
            with ft._plane.changed:
                ft._plane.lacks()
            return load(call, session)

        ft._engine._load = after_a_while
        try:
            return ft.barrier()
        finally:
            over.set()
            ft.close()  # or the other would wait for it

    with Job(1) as job:
        job.run({"w0": body})
        assert job.workers["w9"].join() is Status.SUCCESS
    assert asked.is_set()


def test_catch_up_has_all_its_time_once_members_are_there() -> None:
    alone, own = Alone(), CatchUp()
    alone.threads.changes = [alone.has_enough]
    own.enter(4, alone.threads.clock)
    limits: list[float] = []

    def obtain(_own: CatchUp, _session: Session, until: float) -> Obtained:
        limits.append(until - alone.threads.clock)
        return Obtained.HERE

    def session_for(call: Call) -> Session | None:
        alone.plane.state_id = alone.plane.current_state_id = "here" if limits else ""
        return alone.waiting.session(call)

    assert caught_up(own, alone.plane, PATIENCE, session_for=session_for, obtain=obtain, agree=None, accompany=lambda _: None)
    assert limits == [PATIENCE]


def test_a_joiner_that_had_to_wait_for_members_is_not_said_to_make_other_calls_than_they() -> None:
    alone = Alone()
    arrival = Arrival(alone.plane, Limits(PATIENCE, min_size=2), Mock(), None, None, LayoutBook(), alone.waiting)
    arrival.begin(alone.call)
    alone.threads.changes = [alone.has_enough]
    assert alone.waiting.session(alone.call) is alone.enough
    alone.threads.clock += PATIENCE - MOMENT
    arrival.accompany(Mock(), alone.call)
    alone.threads.clock += 2 * MOMENT
    with pytest.raises(StepMismatch, match="none like it within 2 s"):
        arrival.accompany(Mock(), alone.call)


def test_a_unit_whose_commit_failed_is_begun_again_once_enough_are_there() -> None:
    """A member dies in the commit, and the others are too few: that nobody has committed is known, so all go on."""
    died = threading.Event()

    def body(worker: Worker) -> tuple[int, list[float], int]:
        ft, model, timeouts = worker.ft, nn.Linear(1, 1, bias=False), 0
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        ft.register_state(model=model, optimizer=optimizer)

        def step() -> None:
            model.weight.grad = torch.ones_like(model.weight)
            if ft.allreduce_average(model):
                optimizer.step()
            if worker.name == "w2" and ft.step == 1:
                others = [job.workers[name].ft._plane for name in ("w0", "w1")]
                eventually(lambda: all(getattr(plane.current, "in_doubt", False) for plane in others), "all have ended it")
                job.kill("w2")

        while ft.step < 4:
            try:
                ft.execute(step)
            except RebuildTimeout:
                timeouts += 1
                died.set()
        return ft.step, model.weight.flatten().tolist(), timeouts

    with Job(3, min_size=3, step_timeout=PATIENCE) as job:
        for name in ("w0", "w1", "w2"):
            job.start(name, body)
        assert died.wait(TIMEOUT)
        job.start("w3", body)
        eventually(lambda: bool(job.cluster.waiting), "it has come")
        job.cluster.admit()
        first, second, third = (job.workers[name].join() for name in ("w0", "w1", "w3"))
        assert first[:2] == second[:2] == third[:2]
        assert first[2] >= 1
