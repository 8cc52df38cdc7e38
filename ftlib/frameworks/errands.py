"""Threads that run C++ code in the background and must have ended before the interpreter does.

A daemon thread that returns from C++ while the interpreter finalizes is unwound in the middle of it, which terminates
the process with SIGABRT; a thread that is no daemon would keep a process alive whose errand hangs. So: daemons,
joined for a bounded time.
"""

from __future__ import annotations

import threading
import time
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["errand", "finish_errands"]

_under_way: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
_starting = threading.Lock()
"""Guards ``_under_way``: whoever is in it has started."""


def errand(name: str, function: Callable[[], None]) -> None:
    """Run ``function`` on a thread of its own."""
    thread = threading.Thread(target=function, name=f"ftlib-{name}", daemon=True)
    with _starting:
        thread.start()
        _under_way.add(thread)


def finish_errands(timeout: float) -> bool:
    """Wait at most ``timeout`` seconds for all errands; whether all have ended."""
    deadline = time.monotonic() + timeout
    for thread in _others():
        thread.join(max(0.0, deadline - time.monotonic()))
    return not any(thread.is_alive() for thread in _others())


def _others() -> list[threading.Thread]:
    with _starting:
        return [thread for thread in _under_way if thread is not threading.current_thread()]
