"""Clock, locks and background tasks for product code that takes them from the operating system: simulated where it is.

Accelerators run beside the training, and their code gets no ``Threads``; nor does that of compressed buckets. Inside a
simulated process its modules find these objects in the place of ``time``, ``threading`` and ``start_task``; everybody else
finds the real ones.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any, Self
from unittest import mock

from ftlib.core.tensors.compression import pipeline
from ftlib.frameworks import background
from ftlib.frameworks.accelerators import backoff, figures, framework, group, managed, work
from ftlib.frameworks.accelerators.rehearsal import communicator, stream

from .threads import SimulatedThreads, here

LEAST = 2e-4
"""Seconds that a sleep takes at least: who looks again and again needs no more virtual time to be looked at."""
_MODULES: dict[ModuleType, tuple[str, ...]] = {
    backoff: ("time",),
    figures: ("threading",),
    framework: ("threading",),
    group: ("threading",),
    managed: ("time", "threading", "start_task"),
    work: ("time",),
    pipeline: ("time",),
    communicator: ("time", "threading", "start_task"),
    stream: ("time", "threading", "start_task"),
}
"""Whose names mean the simulated system, and which."""


@contextmanager
def simulated_system() -> Iterator[None]:
    """Until the end of the block. Blocks may be nested."""
    instead = {"time": _Time, "threading": _Threading, "start_task": _start_task}
    with ExitStack() as stack:
        for module, names in _MODULES.items():
            for name in names:
                stack.enter_context(mock.patch.object(module, name, instead[name]))
        yield


class _Time:
    """Of ``time`` what is used."""

    @staticmethod
    def monotonic() -> float:
        threads = here()
        return time.monotonic() if threads is None else threads.now()

    @staticmethod
    def sleep(seconds: float) -> None:
        threads = here()
        if threads is None:
            time.sleep(seconds)
        else:
            threads.sleep(max(LEAST, seconds))


class _Threading:
    """Of ``threading`` the same."""

    @staticmethod
    def Lock() -> Any:  # noqa: N802 - its name there
        threads = here()
        return threading.Lock() if threads is None else _Mutex(threads)

    @staticmethod
    def Condition() -> threading.Condition:  # noqa: N802
        threads = here()
        return threading.Condition() if threads is None else threads.condition()

    @staticmethod
    def Event() -> Any:  # noqa: N802
        threads = here()
        return threading.Event() if threads is None else _Event(threads)


class _Mutex:
    """A lock that is not reentrant. No other thread is switched to while one holds it, so nobody ever waits for it."""

    def __init__(self, threads: SimulatedThreads) -> None:
        self._condition = threads.condition()
        self._held = False

    def __enter__(self) -> Self:
        self._condition.__enter__()
        assert not self._held, "a thread takes a lock that it holds: it would wait for itself"
        self._held = True
        return self

    def __exit__(self, *_error: object) -> None:
        self._held = False
        self._condition.__exit__(None, None, None)


class _Event:
    """Of ``threading.Event`` what is used."""

    def __init__(self, threads: SimulatedThreads) -> None:
        self._changed = threads.condition()
        self._set = False

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        with self._changed:
            self._set = True
            self._changed.notify_all()

    def wait(self, timeout: float | None = None) -> bool:
        with self._changed:
            return self._changed.wait_for(self.is_set, timeout)


def _start_task(name: str, function: Callable[[], None]) -> None:
    threads = here()
    if threads is None:
        background.start_task(name, function)
    elif not threads.over:
        threads.thread(function, name).start()
