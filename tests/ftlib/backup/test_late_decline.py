"""Late workers and calls that somebody declines: all end up with the same, or a worker is told why it is out."""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn

from ftlib import Excluded, FTLib, RebuildTimeout, Status
from ftlib.core.backup.pattern import WINDOW
from ftlib.core.calls.call import Call
from ftlib.core.calls.follow import Declined
from tests.ftlib.backup.test_backup_worker import Holder
from tests.ftlib.crews.latecomers import DEADLINE, arrive, awaiting, punctual, tardy
from tests.harness.basics import TIMEOUT, eventually
from tests.harness.company import at_once, company

LEFT_BEHIND = 1000.0
"""What a backward pass that has raised has left in the gradients."""


class Pair:
    """The first is never late, the second is whenever it makes no call."""

    def __init__(self, members: Sequence[FTLib], *, flat: bool, also: str) -> None:
        self.members = members
        self.weights = [nn.Parameter(torch.zeros(4)) for _ in members]
        self.optimizers = [torch.optim.SGD([weight], lr=1.0) for weight in self.weights]
        self._flat, self._also = flat, also
        pairs = zip(members, self.weights, self.optimizers, strict=True)
        at_once(*[lambda ft=ft, w=w, o=o: ft.register_state(model=Holder(w), optimizer=o) for ft, w, o in pairs])
        punctual(members[0])
        for _ in range(WINDOW):
            at_once(lambda: self.step(0), lambda: self.step(1))

    def step(self, index: int) -> Status:
        """The average of 1 and 3 is subtracted; of 1 alone where the second is late."""
        ft, weight = self.members[index], self.weights[index]
        weight.grad = torch.full((4,), 1.0 + 2 * index)
        status = ft.allreduce_average([weight.grad] if self._flat else weight)
        if status:
            self.optimizers[index].step()
        return self.rest(index, status)

    def rest(self, index: int, status: Status) -> Status:
        for _ in self._also:
            assert self.members[index].allreduce(torch.ones(1))
        return status

    def miss(self, steps: int) -> None:
        """The second misses so many steps, and its backup worker waits in the next call."""
        for _ in range(steps):
            assert self.step(0) is Status.SUCCESS
        awaiting(self.members[1], self.members[0])
        self.weights[1].grad = torch.full((4,), LEFT_BEHIND)

    def decline_without(self, missed: int) -> None:
        """The first declines what the second's backup worker is in, which has missed so many calls after that."""
        assert self.members[0].decline() is Status.FAIL
        eventually(lambda: self.members[1]._plane.lag.calls == missed, "the backup worker has ended it, too")

    def late(self, call: Callable[[], Any]) -> Any:
        """What the second is told of its call, which its backup worker is in by now, while the first makes another step."""
        thread, told = arrive(self.members[1], call)
        self.step(0)
        thread.join(TIMEOUT)
        return told[0]

    def alike(self) -> bool:
        first, second = self.weights
        return torch.equal(first, second) and self.members[0].step == self.members[1].step

    def go_on(self) -> None:
        for _ in range(3):
            assert at_once(lambda: self.step(0), lambda: self.step(1)) == [Status.SUCCESS] * 2
            assert self.alike()


@contextmanager
def pair(*, flat: bool = False, also: str = "", **settings: Any) -> Iterator[Pair]:
    with company(2, straggler_deadline=DEADLINE, **settings) as crew:
        yield Pair(crew.members, flat=flat, also=also)


@pytest.mark.parametrize("missed", [0, 1, 3])
def test_who_declines_late_has_what_the_others_have_averaged(missed: int) -> None:
    with pair() as both:
        both.miss(missed)
        status = both.late(both.members[1].decline)
        assert both.alike(), "though nobody looked at the status"
        assert status is Status.FAIL, "there is nothing left to apply"
        assert torch.equal(both.weights[0], torch.full((4,), -2.0 * WINDOW - missed - 1))
        assert both.weights[1].grad is not None and bool((both.weights[1].grad == LEFT_BEHIND).all()), "as it was"
        both.go_on()


def test_it_has_dropped_its_gradients() -> None:
    with pair() as both:
        both.miss(2)
        both.weights[1].grad = None
        assert both.late(both.members[1].decline) is Status.FAIL
        assert both.alike()
        assert both.weights[1].grad is None
        both.go_on()


def test_who_adopts_what_its_backup_worker_was_in_has_it_as_well() -> None:
    """The others had finished the call, in a view that ended then, before the program came: the engine ends it as theirs."""
    with pair() as both:
        both.miss(0)
        backup_worker = both.members[1]._lives.life.backup_worker
        assert backup_worker is not None

        def adopted(call: Call) -> Status:
            """As the engine ends a call whose result is another member's."""
            assert isinstance(call, Declined)
            (entry,) = backup_worker._backlog._entries
            with backup_worker._plane.changed:
                backup_worker._plane.lag.shrink(entry.granted)
            backup_worker._backlog.clear()
            call.overtaken(entry.results.number)
            call.learn(entry.results.layout)
            call.deliver(entry.results)
            return Status.SUCCESS

        honest = backup_worker._taken_over
        backup_worker._taken_over = adopted  # type: ignore[method-assign, assignment]
        assert both.late(both.members[1].decline) is Status.FAIL
        backup_worker._taken_over = honest  # type: ignore[method-assign]
        assert both.alike()
        both.go_on()


def test_its_next_calls_get_the_rest_of_the_step() -> None:
    with pair(also="L") as both:
        both.miss(2)

        def decline() -> Status:
            return both.rest(1, both.members[1].decline())

        assert both.late(decline) is Status.FAIL
        both.go_on()


def test_where_it_averaged_tensors_nobody_knows_where_the_averages_belong() -> None:
    with pair(flat=True) as both:
        both.miss(1)

        def decline() -> object:
            with pytest.raises(Excluded, match="the others had finished that call, and this worker averages tensors"):
                both.members[1].decline()
            return None

        both.late(decline)
        eventually(lambda: both.members[0].size == 1, "the other goes on without it")


def test_it_comes_back_with_the_state() -> None:
    with pair(flat=True, rejoin=True) as both:
        both.miss(1)
        told: list[Status] = []
        over, ended = threading.Event(), threading.Event()
        other = both.members[0]._plane

        def come_back() -> None:
            told.append(both.members[1].decline())
            over.set()
            finished = both.members[1]._plane.finished

            def in_the_next() -> bool:
                return (call := other.current) is not None and call.number > finished

            eventually(lambda: ended.is_set() or in_the_next(), "the other has seen it, or is in one more call")
            if not ended.is_set():
                both.step(1)

        thread, _ = arrive(both.members[1], come_back)
        while not over.is_set():
            both.step(0)
        ended.set()
        thread.join(TIMEOUT)
        assert told == [Status.FAIL]
        assert both.members[1]._plane.counters.rejoins == 1
        assert both.alike()


@pytest.mark.parametrize("missed", [0, 2])
def test_the_others_decline_what_a_late_worker_misses(missed: int) -> None:
    """Nobody knows what that call was: it is the late worker's, whatever that is."""
    with pair() as both:
        both.miss(missed)
        both.decline_without(missed + 1)
        for _ in range(missed > 0):
            assert both.step(1) is Status.SUCCESS, "the last one that was averaged"
        assert both.step(1) is Status.FAIL, "that was the declined one"
        assert both.alike()
        both.go_on()


def test_both_decline() -> None:
    with pair() as both:
        both.miss(0)
        both.decline_without(1)
        assert both.members[1].decline() is Status.FAIL
        assert both.alike()
        both.go_on()


def test_after_a_call_that_somebody_declined_nobody_waits_for_who_is_late() -> None:
    """In a later view all are holders of the state, whom a member that only follows might ask; who declines has it."""
    with company(4, straggler_deadline=DEADLINE) as crew:
        *members, leaver = crew.members
        weights = [nn.Parameter(torch.zeros(4)) for _ in crew.members]
        optimizers = [torch.optim.SGD([weight], lr=1.0) for weight in weights]
        pairs = list(zip(crew.members, weights, optimizers, strict=True))
        at_once(*[lambda ft=ft, w=w, o=o: ft.register_state(model=Holder(w), optimizer=o) for ft, w, o in pairs])
        for ft in crew.members:
            punctual(ft)

        def step(index: int) -> Status:
            ft, weight, optimizer = pairs[index]
            weight.grad = torch.ones(4)
            if status := ft.allreduce_average(weight):
                optimizer.step()
            return status

        steps = [functools.partial(step, index) for index in range(4)]
        for _ in range(WINDOW):
            at_once(*steps)
        leaver.leave()
        at_once(*steps[:3])
        last = members[2]
        session = last._plane.session
        assert session is not None and len(session.plan.holders) == session.size == 3
        assert at_once(steps[0], members[1].decline, steps[2]) == [Status.FAIL] * 3
        assert not any(peer["following"] for peer in last.metrics()["peers"].values())
        tardy(last)
        assert at_once(*steps[:2]) == [Status.SUCCESS] * 2, "its backup worker was in it"
        assert last._plane.lag.calls == 1


def test_who_waits_for_its_backup_worker_too_long_says_for_whom_that_waits() -> None:
    with pair() as both:
        first, second = both.members
        both.miss(1)
        second._call_lock.timeout = 0.2
        session = second._plane.session
        assert session is not None
        whom = session.name(first._plane.member_id)
        text = f"thread ftlib-deputy was in a call for 0.2 s; waiting for {whom}, not in this call yet"
        with pytest.raises(RebuildTimeout, match=re.escape(text)):
            both.step(1)
