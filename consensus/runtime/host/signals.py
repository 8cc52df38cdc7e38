"""Signals that are the training process's business, not its agent's.

They often reach a whole process group, or all processes of a batch system's job: the training process decides what to do, and
the agent follows it. So the agent ignores them, from its first instant on: it is started while they are blocked.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

_TAKEN = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


@contextmanager
def held_back() -> Iterator[None]:
    """Within this block the signals wait, for this thread and for processes that it starts. Any thread."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _TAKEN)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ignored() -> None:
    """Ignore the signals in this process, also those that came while they were held back. Call on the main thread."""
    for number in _TAKEN:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _TAKEN)
