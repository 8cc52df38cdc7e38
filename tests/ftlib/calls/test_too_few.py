"""Fewer than ``min_size`` members: calls end with FAIL, and all programs are at the same call when more have come."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import nn

from ftlib import RebuildTimeout, Status
from ftlib.core.calls.call import Call, Kind
from ftlib.core.calls.session import Session
from ftlib.core.engine.waiting import Limits, Waiting
from ftlib.core.plane.phase import Phase
from ftlib.core.plane.plane import Plane
from ftlib.core.tensors.layout import Layout
from ftlib.ftlib import FTLib
from tests.ftlib.crews.workers import Job, Worker
from tests.harness.basics import TIMEOUT, eventually
from tests.harness.company import at_once, company

PATIENCE = 2.0
"""Seconds until a call ends with FAIL."""


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


@pytest.mark.parametrize("settings", [{}, {"straggler_deadline": 0.3}], ids=["", "with deputies"])
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


class Filling:
    """A session with too few members; says when somebody has looked."""

    def __init__(self) -> None:
        self.looked = threading.Event()

    @property
    def size(self) -> int:
        self.looked.set()
        return 1

    def gives(self, _number: int) -> bool:
        return False


def test_a_member_that_comes_as_patience_ends_is_waited_for() -> None:
    """The view changes in that moment, which takes no ``step_timeout``: RebuildTimeout would end this worker's part."""
    plane, few = Plane("a"), Filling()
    plane.phase, plane.session = Phase.ACTIVE, cast("Session", few)
    call = Call(Kind.BARRIER, Layout(b"", "barrier", "barrier()", ()), [])
    call.enter(4, plane.threads.now())
    enough = cast("Session", SimpleNamespace(size=2))

    def change() -> None:
        assert few.looked.wait(TIMEOUT)
        with plane.changed:
            plane.phase = Phase.FROZEN
            plane.changed.notify_all()
        eventually(lambda: plane.threads.now() > call.began + 0.4, "the deadline has passed")
        with plane.changed:
            plane.phase, plane.session = Phase.ACTIVE, enough
            plane.changed.notify_all()

    found, _ = at_once(lambda: Waiting(plane, Limits(0.2, min_size=2), lambda: True).session(call), change)
    assert found is enough


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
