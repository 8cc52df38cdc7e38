"""What a link asks of its loop, and what it tells of itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, ParamSpec, Protocol

from consensus import CarefulLogger

_LOG = CarefulLogger("ftlib.collective")
P = ParamSpec("P")


def guarded(call: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
    """Call it; whatever it raises goes to the log: one callback must not end the others, nor the thread that moves bytes."""
    try:
        call(*args, **kwargs)
    except Exception:  # noqa: BLE001 - see above
        _LOG.exception("a link's callback failed")


def each_guarded(calls: Iterator[Callable[P, object]], *args: P.args, **kwargs: P.kwargs) -> None:
    """Call them all, even if this thread is interrupted (Ctrl-C) in one of them: whoever waits must hear of the end."""
    for call in calls:
        try:
            guarded(call, *args, **kwargs)
        except BaseException:
            guarded(call, *args, **kwargs)  # it may not have begun
            each_guarded(calls, *args, **kwargs)
            raise


class Loop(Protocol):
    """See ``loop.LinkLoop``."""

    buffer: int
    max_bytes: int
    link_timeout: float
    seal_all: bool
    ring: bool
    trust_refused: bool

    def add(self, fd: int, mask: int, ready: Callable[[int], None]) -> None:
        """Call ``ready(events)`` on the loop's thread when there are some for ``fd``."""

    def change(self, fd: int, mask: int) -> None:
        """From now on wait for ``mask``."""

    def remove(self, fd: int) -> None:
        """Wait no more. Idempotent."""

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        """Call on the loop's thread after so many seconds."""

    def here(self) -> bool:
        """Whether the caller is on the loop's thread."""
        ...


class LinkStats(NamedTuple):
    """Counts of one link. ``queued_out``: messages that wait to be written; ``queued_in``: those that nobody has asked for."""

    sent_bytes: int
    received_bytes: int
    sent: int
    received: int
    queued_out: int
    queued_in: int
