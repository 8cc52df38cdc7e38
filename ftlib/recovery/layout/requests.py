"""Shared by donors and joiners: the path of requests, how many blocks go at a time, and bodies of answers.

On the wire and in log lines a shard is a "stripe", a chunk a "portion" and the flat state the "ground": older releases of
ftlib, and people who read logs, know these words.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Generator, Iterator

import torch

from consensus import RefusalError

from ...common.refusals import Refusal
from ...common.threads import Threads
from ...common.traces import SendRecord, Traces
from ...errors import ConfigError, FTLibError

PATH = "/recovery"
ANY = "any"
"""A layout is asked for of which only the order is not known."""
POLL = 5.0
"""Seconds that a donor keeps a request waiting before it answers "ask again"."""
FIRST_TAG = 1 << 30
"""First tag of shards sent through the process group. Adopted results have smaller tags (``ftlib.core.calls.adoption``)."""
RUN = 16
"""Blocks requested at a time through the process group: the joiner receives them all, wanted or not."""
PIECE = 1 << 20
"""Bytes that are passed to a connection at a time, so that a slow reader is not mistaken for a dead one."""
_SHORT = re.compile(
    "can't start new thread|out of memory|can(no|')t allocate memory|temporarily unavailable|too many open files", re.IGNORECASE
)
"""What a RuntimeError says where something is short: Python of threads, torch of memory and of what the system refuses it."""
_PASSING = 3.0
"""Seconds for which a state that cannot be made for want of something is no reason to refuse it for good."""
_APART = 10.0
"""Seconds without a failure after which the next one is the first of its kind."""

Body = Iterator[bytes | memoryview]
"""The body of an answer."""


def pieces(data: bytes | memoryview) -> Body:
    """``data`` in pieces."""
    view = memoryview(data)
    return iter([view[start : start + PIECE] for start in range(0, len(view), PIECE)])


class Failures:
    """What one donor answers where its state's bytes cannot be made. Thread-safe.

    The state's parts are the program's own code, which may raise anything, and the next time again. But a process may also be
    short of memory, descriptors or threads for a moment, and what changes while it is read can be read a moment later.
    """

    def __init__(self, threads: Threads) -> None:
        """Nothing has failed yet."""
        self._now = threads.now
        self._lock = threads.lock()
        self._since = self._latest = -math.inf

    def refusal(self, error: Exception) -> RefusalError | None:
        """The refusal for good; None if the state may be had in a moment, here or from another donor."""
        if isinstance(error, ConfigError):
            return Refusal.UNFIT.error(str(error))
        if isinstance(error, (FTLibError, MemoryError, torch.OutOfMemoryError)):
            return None
        if isinstance(error, (OSError, RuntimeError)) and not self._lasts():
            return None
        return Refusal.UNFIT.error(in_words(error))

    def _lasts(self) -> bool:
        """Note a failure; True if requests have failed for so long that it is no passing one."""
        with self._lock:
            now = self._now()
            if now - self._latest > _APART:
                self._since = now
            self._latest = now
            return now - self._since >= _PASSING


def is_short(error: Exception) -> bool:
    """True where memory, threads or descriptors are short, perhaps for a moment only. Other errors would come again."""
    if isinstance(error, RuntimeError):
        return isinstance(error, torch.OutOfMemoryError) or _SHORT.search(str(error)) is not None
    return isinstance(error, (OSError, MemoryError))


def in_words(error: Exception) -> str:
    """``error`` in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def noted(body: Body, traces: Traces | None, now: Callable[[], float], joiner: str, part: int = -1) -> Body:
    """``body``, a part of the state that is given to ``joiner``, with a record of it in ``traces`` once it has ended.

    ``now``: the clock of records. ``part``: the number of the shard, -1 for the whole state.
    """
    return body if traces is None or not joiner else _noted(body, traces, now, joiner, part)


def _noted(body: Body, traces: Traces, now: Callable[[], float], joiner: str, part: int) -> Generator[bytes | memoryview]:
    began, nbytes, error = now(), 0, "the joiner closed the connection"
    try:
        for piece in body:
            yield piece
            nbytes += memoryview(piece).nbytes
        error = ""
    except Exception as failure:
        error = str(failure) or type(failure).__name__
        raise
    finally:
        traces.add(SendRecord(joiner, part, began, now(), nbytes, error))
