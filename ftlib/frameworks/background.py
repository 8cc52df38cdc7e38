"""Threads that run C++ code in the background and must have ended before the interpreter does.

A daemon thread that returns from C++ while the interpreter finalizes is unwound in the middle of it, which terminates
the process with SIGABRT. A thread that is no daemon would keep the process alive if its task hangs. So the threads are
daemons, and ``finish_tasks`` waits for them for a bounded time.

Other threads, also those of the program, are in C++ as long as they wait for an operation. ``abroad`` counts them. At the
process's end their groups are closed, so that they come back, and then they rest here: an exception on a thread whose program
is over would only be printed, maybe in the middle of the interpreter's end.

A thread that has finished its task waits a while for the next one. On busy processors a new thread takes a millisecond until
it runs, the starting thread waits for that, and moving state through a group takes hundreds of messages.
"""

from __future__ import annotations

import atexit
import os
import queue
import threading
import weakref
from collections.abc import Callable
from typing import Protocol, TypeVar

T = TypeVar("T")

_END = 2.0
"""Seconds that the end of the process waits at most for threads that are in C++."""
_LINGER = 1.0
"""Seconds that a thread waits for another task."""

_changed = threading.Condition()
"""Guards the collections below, which hold only started threads."""
_busy: set[_Runner] = set()
_stuck: set[_Runner] = set()
"""Those of them that have been waited for in vain."""
_idle: list[_Runner] = []


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
        """Bring all threads back, at most ``_END`` seconds for each kind."""
        self._over = True
        while self._open:
            self._open.pop().close()
        here = threading.get_ident()
        with self._came_back:
            self._came_back.wait_for(lambda: self._away <= {here}, _END)
        finish_tasks(_END)


def start_task(name: str, function: Callable[[], None]) -> None:
    """Run ``function`` on a thread that does nothing else meanwhile."""
    with _changed:
        runner = _take()
        if runner is None:
            runner = _Runner()
            runner.start()
        _busy.add(runner)
    runner.orders.put((name, function))


def finish_tasks(timeout: float, *, again: bool = True) -> bool:
    """Wait at most ``timeout`` seconds for all tasks. True if all have ended. Idle threads end.

    ``again``: also for those that were waited for in vain before.
    """
    here = threading.current_thread()

    def left() -> set[_Runner]:
        return {runner for runner in _busy if runner is not here and runner.is_alive() and (again or runner not in _stuck)}

    with _changed:
        while _idle:
            _idle.pop().orders.put(None)
        ended = _changed.wait_for(lambda: not left(), timeout)
        _stuck.update(left())
        return ended


def _take() -> _Runner | None:
    """The thread that became idle last, so that the others time out; None if there is none."""
    return _idle.pop() if _idle else None


def _forget() -> None:
    """In a forked child: the threads are not there, and one of them may have held the lock."""
    global _changed  # noqa: PLW0603
    _changed = threading.Condition()
    for each in (_busy, _stuck, _idle):
        each.clear()


os.register_at_fork(after_in_child=_forget)


class _Runner(threading.Thread):
    """Carries out one task after another."""

    def __init__(self) -> None:
        super().__init__(name="ftlib-background", daemon=True)
        self.orders: queue.SimpleQueue[tuple[str, Callable[[], None]] | None] = queue.SimpleQueue()

    def run(self) -> None:
        """Run tasks until none has come for ``_LINGER`` seconds, or one raises."""
        while (order := self._next()) is not None:
            name, function = order
            self.name = f"ftlib-{name}"
            through = False
            try:
                function()
                through = True
            finally:
                del order, function  # they may hold a group
                with _changed:
                    _busy.discard(self)
                    _stuck.discard(self)
                    if through:
                        self.name = "ftlib-background"
                        _idle.append(self)
                    _changed.notify_all()

    def _next(self) -> tuple[str, Callable[[], None]] | None:
        try:
            return self.orders.get(timeout=_LINGER)
        except queue.Empty:
            with _changed:
                if self in _idle:
                    _idle.remove(self)
                    return None
            return self.orders.get()  # ``_take`` has just chosen this thread


_border = _Border()


abroad = _border.abroad
"""Call a function that waits in C++ for something that was given to ``close_at_exit``, or uses it."""
rest_at_exit = _border.rest
"""Call this before telling a thread that something is closed: at the process's end, the reason then, it does not return."""
close_at_exit = _border.keep
"""Close it at the end of the process, before threads in C++ are waited for, if it is still there then."""
end_abroad = _border.end
"""Bring all threads back, and keep them, as at the end of the process, which calls it last. Idempotent."""
