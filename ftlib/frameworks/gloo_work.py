"""Operations under way in Gloo, seen as ``Work``; every exception of Gloo leaves here as a ``GroupError``.

A thread that waits is in C++, and has to be back before the interpreter ends: a daemon thread that comes back later is unwound
in the middle of it, which terminates the process with SIGABRT. ``abroad`` counts these threads. At the process's end their
groups are closed, so that they come back, and then they rest here: an exception on a thread whose program is over would only be
printed, maybe in the middle of the interpreter's end.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Protocol, TypeVar

import numpy as np
import torch

from ftlib.errors import GroupError
from ftlib.frameworks.background import AT_EXIT, finish_tasks, start_task
from ftlib.frameworks.base import Work

T = TypeVar("T")

FOREIGN = (RuntimeError, ValueError, TypeError, IndexError)
"""The exceptions that torch raises, in C++ and in the binding."""

_NEAR = 0.05
"""Seconds by which a wait may be shorter than the group's timeout, and yet take as long as that."""
SPARE_ROWS = 8
"""Memory of so many exchanges is kept: small calls of a step, and of each as many as are under way at once."""
_ABANDONED_SLICE = 0.1
"""Seconds after which a wait checks whether its operation was abandoned; only if sockets cannot be cut."""


class Closable(Protocol):
    """What keeps threads in C++ until it is closed."""

    def close(self) -> None:
        """Make them come back. Idempotent, and returns at once."""


class _Border:
    """Who is in C++, and what is to be closed at the end of the process."""

    def __init__(self) -> None:
        self._came_back = threading.Condition()
        self._away: set[int] = set()
        self._open: weakref.WeakSet[Closable] = weakref.WeakSet()
        self._over = False
        os.register_at_fork(after_in_child=self._forget)  # neither the threads nor the groups are the child's
        atexit.register(self.end)

    def _forget(self) -> None:
        self._came_back = threading.Condition()
        self._away, self._open = set(), weakref.WeakSet()

    def keep(self, closable: Closable) -> None:
        """Close it at the end of the process, if it is still there then."""
        self._open.add(closable)

    def abroad(self, function: Callable[..., T], *given: object) -> T:
        """Return what ``function`` returns, given these arguments: it may be in C++ until something is closed."""
        me = threading.get_ident()
        self._away.add(me)  # before the look: ``end`` looks in the other order
        try:
            if self._over:
                self.rest()
            return function(*given)
        finally:
            self._away.discard(me)
            if self._over:
                self.rest()

    def rest(self) -> None:
        """At the end of the process, stay here: not for the main thread, which ends it."""
        if not self._over or threading.current_thread() is threading.main_thread():
            return
        with self._came_back:
            self._away.discard(threading.get_ident())
            self._came_back.notify_all()
        threading.Event().wait()  # for no time-out: the process ends, and this daemon thread with it

    def end(self) -> None:
        """Bring all threads back, at most ``AT_EXIT`` seconds for each kind."""
        self._over = True
        while self._open:
            self._open.pop().close()
        here = threading.get_ident()
        with self._came_back:
            self._came_back.wait_for(lambda: self._away <= {here}, AT_EXIT)
        finish_tasks(AT_EXIT)


_border = _Border()

abroad = _border.abroad
"""Call a function that waits in C++ for something that was given to ``close_at_exit``, or uses it."""
rest_at_exit = _border.rest
"""Call this before telling a thread that something is closed: at the process's end, the reason then, it does not return."""
close_at_exit = _border.keep
"""Close it at the end of the process, before threads in C++ are waited for, if it is still there then."""
end_abroad = _border.end
"""Bring all threads back, and keep them, as at the end of the process, which calls it last. Idempotent."""


class _Owner(Protocol):
    """What a work needs of its group."""

    backend: Any
    size: int
    exact: bool
    timeout: float

    @property
    def abandoned(self) -> bool: ...

    @property
    def severed(self) -> bool: ...

    def translate(self, error: Exception) -> GroupError: ...


def _in_slices(wait: Callable[[float], bool], timeout: float) -> bool:
    """Wait in slices, to notice an abort that could not cut the sockets."""
    deadline = time.monotonic() + timeout
    while not wait(min(_ABANDONED_SLICE, deadline - time.monotonic())):
        if time.monotonic() >= deadline:
            return False
    return True


class GlooWork(Work):
    """A collective under way on Gloo's threads."""

    __slots__ = ("_error", "_owner", "_raw")

    def __init__(self, owner: _Owner, raw: Any) -> None:
        self._owner = owner
        self._raw = raw
        self._error: GroupError | None = None

    def wait(self, timeout: float) -> bool:
        """Block in Gloo, at most ``timeout`` seconds. Threads may wait at the same time, as one destroys the group."""
        if not self._owner.exact and timeout > _ABANDONED_SLICE:
            return _in_slices(self.wait, timeout)
        if (raw := self._raw) is not None:
            try:
                # Gloo takes a timeout of zero as infinite, and cuts off fractions of a millisecond.
                abroad(raw.wait, timedelta(seconds=max(0.001, timeout)))
                self._raw = None
            except FOREIGN:
                self._look(raw)
            del raw  # the traceback of an error keeps this frame, and so the sockets would stay open
        if self._raw is not None:
            if not self._owner.exact and self._owner.abandoned:
                raise GroupError("operation abandoned: its group was aborted and cannot be interrupted")
            return False
        if self._error is not None:
            raise self._error.afresh()
        return True

    def done(self) -> bool:
        """True once Gloo has finished the operation and no longer uses its buffer."""
        raw = self._raw
        return raw is None or bool(raw.is_completed())

    def _look(self, raw: Any) -> None:
        """A wait ended with an exception: the operation is still under way, ended well at the last moment, or failed."""
        if not raw.is_completed():
            return
        try:
            raw.wait()
        except FOREIGN as real:
            self._error = self._owner.translate(real)
        self._raw = None


class ExchangeRows:
    """Memory for one exchange: what every rank gets from this one, and what comes from every rank."""

    __slots__ = ("came", "key", "outgoing", "rows", "sent")

    def __init__(self, size: int, count: int, dtype: torch.dtype) -> None:
        """``size`` ranks, ``count`` elements of ``dtype`` each."""
        self.key = count, dtype
        self.came = torch.empty(size * count, dtype=dtype, device="cpu")
        self.rows: Any = self.came.numpy().reshape(size, count)
        """``came``, by rank."""
        self.sent: Any = np.empty_like(self.rows)
        self.outgoing = torch.from_numpy(self.sent).view(-1)
        """``sent``, as Gloo takes it."""


class GlooExchange(Work):
    """A reduction of few bytes: Gloo brings the tensors of all ranks, and who waits reduces them, in the order of the ranks.

    So each rank waits for one message of each other one. In Gloo's ring it waits for twice as many messages, one after the
    other: among four ranks on two cores that took 6 ms instead of 3.
    """

    __slots__ = ("_combine", "_flat", "_free", "_moving", "_rows", "_turn")

    def __init__(self, owner: _Owner, tensor: torch.Tensor, combine: Callable[..., Any], free: deque[ExchangeRows]) -> None:
        """Begin. ``tensor``: the one to reduce among the ranks of ``owner``. ``combine(a, b, out=)``: reduces two arrays,
        element by element, so that all processors round alike. ``free``: the memory of the group's exchanges that have ended;
        used last to the right, as a loop wants the same again.
        """
        # With numpy, which is done before torch begins.
        self._flat = flat = tensor.detach().view(-1).numpy()
        key, rows = (flat.size, tensor.dtype), None
        with contextlib.suppress(IndexError):  # another thread was quicker
            for _ in range(len(free)):
                if (oldest := free.popleft()).key == key:
                    rows = oldest
                    break
                free.append(oldest)
        if rows is None:
            rows = ExchangeRows(owner.size, *key)
        rows.sent[:] = flat
        self._moving = GlooWork(owner, owner.backend.alltoall_base(rows.came, rows.outgoing, [], []))
        self._combine = combine
        self._free = free
        self._turn = threading.Lock()
        self._rows: ExchangeRows | None = rows
        """None once the ranks' tensors have come, and are reduced. Guarded by ``_turn``."""

    def wait(self, timeout: float) -> bool:
        """As ``GlooWork``; until then the tensor is as it was."""
        if not self._moving.wait(timeout):
            return False
        with self._turn:
            if (rows := self._rows) is not None:
                flat, combine = self._flat, self._combine
                first, second, *rest = rows.rows
                with np.errstate(all="ignore"):  # inf and nan pass through, without a word, as in Gloo
                    combine(first, second, out=flat)
                    for row in rest:
                        combine(flat, row, out=flat)
                self._rows = None
                self._free.append(rows)
        return True

    def done(self) -> bool:
        """True once Gloo has finished; the tensor may have to be reduced yet, by ``wait``."""
        return self._moving.done()


class GlooTransfer(Work):
    """A send or receive. Gloo ends the whole group when a wait for one times out, so it is waited for to the end: by who waits
    as long as the group's own timeout anyway, else by a thread, which costs as much as a small transfer itself.

    Gloo forgets a transfer whose connection breaks when it is half through: that thread then comes back at the group's
    timeout. Once Gloo has closed all connections of the group, nothing uses this tensor any more: then the transfer has ended.
    """

    __slots__ = ("_ended", "_error", "_owner", "_raw", "_tensor", "_turn", "through")

    def __init__(self, owner: _Owner, raw: Any, tensor: torch.Tensor) -> None:
        self._owner = owner
        self._tensor = tensor  # Gloo keeps only its address
        self._error: GroupError | None = None
        self.through = False
        """Whether it is known to have ended. A look at it starts no thread, unlike ``done``."""
        self._turn = threading.Lock()
        # Guarded by it:
        self._raw = raw
        """None once somebody waits for it to the end."""
        self._ended: threading.Event | None = None
        """Made by whoever waits for that, if anybody does: an event costs as much as the rest of this."""

    def wait(self, timeout: float) -> bool:
        """Block at most ``timeout`` seconds; ``_NEAR`` longer where that is about the group's own timeout."""
        if not self._owner.exact:
            return _in_slices(self._wait, timeout)
        if timeout >= self._owner.timeout - _NEAR and (raw := self._take()) is not None:
            self._run(raw)
            return self._over()
        return self._wait(timeout)

    def done(self) -> bool:
        """True once Gloo has finished the transfer and no longer uses its buffer."""
        if not self.through:
            with contextlib.suppress(GroupError):  # whoever asks again tries again
                self._watch()
        return self.through or self._forgotten()

    def _wait(self, timeout: float) -> bool:
        self._watch()
        with self._turn:
            if not self.through and self._ended is None:
                self._ended = threading.Event()
            ended = self._ended
        if not self.through and ended is not None and not ended.wait(timeout):
            if self._owner.abandoned:
                raise GroupError("transfer abandoned: its group was aborted and cannot be interrupted")
            if not self._forgotten():
                return False
        return self._over()

    def _forgotten(self) -> bool:
        """Whether it can only have ended, although Gloo does not say so."""
        if not self._owner.severed:
            return False
        with self._turn:
            if not self.through:
                self._error = GroupError("transfer cut off: its connection broke when it was half through")
                self.through = True
        return True

    def _over(self) -> bool:
        if self._error is not None:
            raise self._error.afresh()
        return True

    def _watch(self) -> None:
        """Have a thread wait, unless somebody does. GroupError if there is no thread for it: the transfer goes on."""
        if (raw := self._take()) is None:
            return
        try:
            start_task("gloo-transfer", lambda: self._run(raw))
        except RuntimeError as error:
            with self._turn:
                self._raw = raw
            raise GroupError(f"no thread can be had that waits for a transfer: {error}") from error

    def _take(self) -> Any:
        with self._turn:
            raw, self._raw = self._raw, None
            return raw

    def _run(self, raw: Any) -> None:
        failure: GroupError | None = None
        try:
            abroad(raw.wait)
        except FOREIGN as error:
            failure = self._owner.translate(error)
        finally:
            with self._turn:
                if not self.through:  # else it was forgotten, and has been told to have ended
                    self._error, self.through = failure, True
                ended = self._ended
            if ended is not None:
                ended.set()


class FailedWork(Work):
    """An operation that could not even start."""

    def __init__(self, error: GroupError) -> None:
        self._error = error

    def wait(self, timeout: float) -> bool:  # noqa: ARG002
        """Raise the error."""
        raise self._error.afresh()

    def done(self) -> bool:
        """True: the operation ended before it began."""
        return True
