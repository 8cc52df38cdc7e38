"""A child that has a communicator, as the training process sees it: its orders, and what is under way there."""

from __future__ import annotations

import functools
import itertools
import socket
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch

from ftlib.common.threads import LONGEST
from ftlib.errors import ConfigError, GroupError
from ftlib.frameworks.base import GroupSpec
from ftlib.frameworks.isolated.child_process import ChildProcess
from ftlib.frameworks.isolated.records import Ended, Packed

from ..base import NotYetError
from .memory import Span
from .records import (
    PIECES,
    Ask,
    Begin,
    ChildFacts,
    Decided,
    Facts,
    Launch,
    Piece,
    Record,
    Start,
    Started,
    Trouble,
    telling,
    unpack,
)

_MOST = 1024
"""Launches under way at a time."""
_STARTING = 50
"""As ``ChildProcess.SILENT``, while the accelerator starts or a communicator is built: nobody waits for it, a busy machine may
not let a new process run for a second, and a busy device may not let it load its first kernels, with Python's lock held."""


class Launched(Protocol):
    """What waits for operations of a launch."""

    def end(self, error: str) -> None:
        """A part of them has physically ended: well where ``error`` is empty. On the thread that listens."""


class Builder(Protocol):
    """What waits for the communicator."""

    def decide(self, trouble: str) -> None:
        """It is ready, or will never be for this reason. Once."""

    def fail(self, error: str) -> None:
        """It has failed, but operations may be under way."""


class _Asked:
    """Facts that were asked for."""

    def __init__(self) -> None:
        self.answered = threading.Event()
        self.answer: ChildFacts | None = None
        """None if the child has ended instead."""

    def end(self, answer: ChildFacts | None) -> None:
        """It has come, or never will. Once."""
        self.answer = answer
        self.answered.set()


class CommunicatorProcess(ChildProcess):
    """See ``ChildProcess``. It has one communicator at most."""

    WORD = "the accelerator's process"

    def __init__(self, sock: socket.socket, pid: int, pidfd: int, lost: Callable[[str], None] = lambda _why: None) -> None:
        self._numbers = itertools.count(1)
        self._started = threading.Event()
        self._outcome = Started("it was not told to start")
        self._ended_first = False
        """Before it could tell what came of its start. Set before ``_started``, as ``_outcome`` is."""
        self._starting = False
        self._asked_for: deque[_Asked] = deque()
        """Facts, in the order in which the child answers. What nobody waits for any more is answered, too, unless it hangs."""
        self._views: set[str] = set()
        """Those for which it was asked for facts."""
        self._builder: Builder | None = None
        self._building = False
        self._timeout = LONGEST
        """That of the communicator's operations, once there is one."""
        self._pending: dict[int, tuple[Launched, Sequence[torch.Tensor]]] = {}
        """With the memory, which must not be used for anything else meanwhile."""
        super().__init__(sock, pid, pidfd, lost)

    @property
    def working(self) -> bool:
        """Whether an operation may be under way there."""
        return bool(self._pending) and not self.gone.is_set()

    @property
    def start_failed(self) -> bool:
        """Whether it has told why it could not start the accelerator."""
        return self._started.is_set() and bool(self._outcome.text)

    def begin_start(self, host: str, place: str) -> None:
        """Have it start the accelerator: see ``Start``."""
        with self._lock:
            self._starting = True
            fine = self._send(Start(host, place))
        if not fine:
            self._give_up("it does not take orders")

    def await_start(self, timeout: float) -> None:
        """Wait for the accelerator. GroupError or ConfigError if it cannot be started.

        NotYetError if it is not within ``timeout`` seconds, or if the process ended before it could tell.
        """
        if not self._started.wait(timeout):
            raise NotYetError(f"{self.WORD} has not started it within {timeout:.3g} s")
        outcome = self._outcome
        if self._ended_first:
            raise NotYetError(outcome.text)
        if outcome.text:
            raise ConfigError(outcome.text) if outcome.mistaken else GroupError(outcome.text)

    def facts(self, spec: GroupSpec, timeout: float) -> Mapping[str, str]:
        """The accelerator's facts for that view. GroupError where there are none within ``timeout`` seconds."""
        asked = _Asked()
        with self._lock:
            fine = not self.gone.is_set() and self._send(Ask(spec))
            if fine:
                self._asked_for.append(asked)
                self._views.add(spec.view_id)
        if not fine or not asked.answered.wait(timeout):
            raise NotYetError(f"{self.WORD} {self.pid} has not answered: {self._why or f'waited {timeout:.3g} s'}")
        if asked.answer is None:
            raise NotYetError(f"{self.WORD} {self.pid} has ended")
        if asked.answer.text:
            raise GroupError(asked.answer.text)
        return asked.answer.facts

    def knows(self, spec: GroupSpec) -> bool:
        """Whether its facts are those that the other ranks of the view were told."""
        return spec.view_id in self._views

    def build(self, spec: GroupSpec, facts: Sequence[Facts], builder: Builder) -> None:
        """Have it build a communicator. GroupError if it cannot be told."""
        records = [*telling(facts), Begin(spec)]
        with self._telling:
            with self._lock:
                if self._why:
                    raise GroupError(f"{self.WORD} {self.pid} is of no use: {self._why}")
                self._builder, self._building, self._timeout = builder, True, spec.timeout
            fine = all(self._send_soon(record) for record in records)
        if not fine:
            self._give_up("it does not take orders")

    def launch(self, pieces: Sequence[tuple[Piece, Span]], tensors: Sequence[torch.Tensor], launched: Launched) -> str:
        """Have it launch operations, in order, some thousands at a time; why that cannot be, or an empty string.

        ``launched.end`` is called once for each part: see ``parts``. Where as many as may be are under way, one ends first:
        in the time-out of operations, or the process is given up, as what hangs on the device has no other end here.
        """
        begins = range(0, len(pieces), PIECES)
        launches = [Launch(next(self._numbers), tuple(piece for piece, _ in pieces[at : at + PIECES])) for at in begins]
        late = f"{_MOST} launches are under way, as many as may be, and none has ended within {self._timeout:g} s"
        self._await_room(lambda: len(self._pending) < _MOST, self._timeout, late)
        with self._telling:
            with self._lock:
                if self._why:
                    return self._why
                self._pending.update({launch.number: (launched, tensors) for launch in launches})
            fine = all(self._give(span.number, functools.partial(_alive, span), span.record, span.fd) for _, span in pieces)
            fine = fine and all(self._send_soon(launch) for launch in launches)
        if not fine:
            self._give_up("it does not take orders")  # and what it was told ends with it
        return ""

    # --- see ChildProcess ----------------------------------------------------------------------------------------------

    def _unpack(self, data: bytes) -> Record:
        return unpack(data)

    def _busy(self) -> bool:
        return bool(self._pending) or self._starting or self._building or bool(self._asked_for)

    def _looks(self) -> int:
        return _STARTING if self._starting or self._building else self.SILENT

    def _told(self, record: Packed) -> None:
        match record:
            case Started():
                self._starting, self._outcome = False, record
                self._started.set()
            case ChildFacts():
                with self._lock:
                    asked = self._asked_for.popleft() if self._asked_for else None
                if asked is not None:
                    asked.end(record)
            case Decided(text):
                self._decide(text)
            case Trouble(text):
                if self._builder is not None:
                    self._builder.fail(text)
            case Ended(number, text):
                with self._lock:
                    launched, _ = self._pending.pop(number, (None, ()))
                    self._changed.notify()
                if launched is not None:
                    launched.end(text)

    def _decide(self, text: str) -> None:
        with self._lock:
            building, self._building = self._building, False
        if building and self._builder is not None:
            self._builder.decide(text)

    def _bury(self) -> Callable[[str], None]:
        pending, self._pending = list(self._pending.values()), {}
        asked_for = list(self._asked_for)
        self._asked_for.clear()
        self._starting = False

        def finish(text: str) -> None:
            if not self._started.is_set():
                self._outcome, self._ended_first = Started(text), True
                self._started.set()
            for asked in asked_for:
                asked.end(None)
            self._decide(text)
            for launched, _ in pending:
                launched.end(text)

        return finish


def parts(count: int) -> int:
    """Into how many parts a launch of so many operations is cut."""
    return -(-count // PIECES)


def _alive(span: Span) -> bool:
    return bool(span.owner.alive)
