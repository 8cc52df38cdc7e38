"""What simulated members ask each other beside their calls: which call they are in, how it is laid out, the state."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import Generic, TypeVar

from consensus import Member, RefusalError
from ftlib.core.calls.call import Call
from ftlib.core.engine.inquiry import Inquiry
from ftlib.core.tensors.layout_book import LayoutBook

from ..machine.links import connected
from ..machine.threads import Fibre
from .job import Colleague

T = TypeVar("T")

TRAVELS = 0.01
"""Seconds that a question or an answer takes at most."""

SILENCE = 3.0
"""Seconds without an answer after which another member is asked."""


class Refused(Exception):
    """The member that was asked has no answer. ``status``: see ``Refusal``."""

    def __init__(self, status: int) -> None:
        super().__init__(str(status))
        self.status = status


class Request(Generic[T]):
    """A question of one process to another, which answers it on a thread of its own."""

    def __init__(self, process: Colleague, other: Colleague | None, answer: Callable[[Colleague], T]) -> None:
        """``other``: None if that process is gone."""
        self._process = process
        self._other = other
        self._answer = answer
        self._waiting: Fibre | None = None
        self._result: T | None = None
        self._status: int | None = None
        self.ended = False
        """True once there is an answer, or a refusal."""
        if other is not None and connected(process.host, other.host):
            world = process.host.world
            ask = lambda: other.threads.thread(self._serve, "serve").start()  # noqa: E731
            world.after(self._delay(), lambda: other.threads.happens(ask))

    def result(self, go_on: Callable[[], bool], timeout: float = SILENCE) -> T | None:
        """Wait for the answer; None if none comes in time, or ``go_on`` turns False. Refused."""
        threads = self._process.threads
        end = threads.now() + timeout
        while not self.ended and go_on() and (left := end - threads.now()) > 0:
            self._waiting = threads.current()
            threads.park(min(left, TRAVELS))
            self._waiting = None
        if self._status is not None:
            raise Refused(self._status)
        return self._result

    def _serve(self) -> None:
        assert self._other is not None
        result, status = None, None
        try:
            result = self._answer(self._other)
        except RefusalError as refusal:
            status = refusal.status
        except LookupError:
            status = HTTPStatus.CONFLICT
        self._other.threads.sleep(self._delay())
        if connected(self._process.host, self._other.host):
            self._process.threads.happens(lambda: self._arrive(result, status))

    def _arrive(self, result: T | None, status: int | None) -> None:
        self.ended, self._result, self._status = True, result, status
        if self._waiting is not None:
            self._process.threads.wake(self._waiting)

    def _delay(self) -> float:
        return self._process.jobs.rng.uniform(0.0, TRAVELS)


class SimulatedInquiry(Inquiry):
    """The real one, whose questions travel in the simulated world."""

    def __init__(self, process: Colleague, layouts: LayoutBook) -> None:
        super().__init__(process.plane, layouts, process.transfer.what)
        self._process = process

    def _ask_one(self, member: Member, own: Call) -> bytes | int | None:
        query = {"number": str(own.number), "like": own.layout.signature.hex()}
        request = Request(self._process, self._process.jobs.living(member.id), lambda other: b"".join(other.asked(query)))
        session = self._process.plane.session
        try:
            return request.result(lambda: session is None or self._process.plane.acting_in(session))
        except Refused as refused:
            return refused.status
