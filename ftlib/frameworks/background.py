"""Threads that run C++ code in the background and must have ended before the interpreter does.

A daemon thread that returns from C++ while the interpreter finalizes is unwound in the middle of it, which terminates
the process with SIGABRT. A thread that is no daemon would keep the process alive if its task hangs. So the threads are
daemons, and ``finish_tasks`` waits for them for a bounded time.

A thread that has finished its task waits a while for the next one. On busy processors a new thread takes a millisecond until
it runs, the starting thread waits for that, and moving state through a group takes hundreds of messages.
"""

from __future__ import annotations

import atexit
import os
import queue
import threading
from collections.abc import Callable

AT_EXIT = 2.0
"""Seconds that the end of the process waits at most for threads that are in C++."""
_LINGER = 1.0
"""Seconds that a thread waits for another task."""

_changed = threading.Condition()
"""Guards the collections below, which hold only started threads."""
_busy: set[_Runner] = set()
_stuck: set[_Runner] = set()
"""Those of them that have been waited for in vain."""
_idle: list[_Runner] = []


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


atexit.register(finish_tasks, AT_EXIT, again=False)
