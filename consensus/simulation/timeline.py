"""Virtual time: what is to happen when, in order. Two things of one moment happen in the order in which they were planned."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

__all__ = ["Timeline"]

T = TypeVar("T")


class Timeline:
    """``now`` is true time, in seconds; it goes on in ``run`` and ``run_until`` only."""

    def __init__(self) -> None:
        self.now = 100.0
        self._queue: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0

    def after(self, delay: float, action: Callable[[], None]) -> None:
        """``action`` happens ``delay`` seconds from now, outside of any process."""
        self.at(delay, action)

    def at(self, delay: float, action: Callable[..., None], *arguments: Any) -> None:
        """``action(*arguments)`` happens ``delay`` seconds from now, outside of any process."""
        self.when(self.now + delay, action, *arguments)

    def when(self, time: float, action: Callable[..., None], *arguments: Any) -> None:
        """The same at exactly that true time."""
        self._count += 1
        heapq.heappush(self._queue, (time, self._count, action, arguments))

    def run(self, seconds: float) -> None:
        """Let virtual time pass."""
        end, queue, pop = self.now + seconds, self._queue, heapq.heappop
        while queue and queue[0][0] <= end:
            self.now, _, action, arguments = pop(queue)
            action(*arguments)
        self.now = end

    def run_until(self, done: Callable[[], bool], seconds: float, *, expect: bool = True) -> float:
        """Run until ``done`` or for ``seconds``; how long it took. AssertionError where it never came (``expect``)."""
        start, end = self.now, self.now + seconds
        queue, pop = self._queue, heapq.heappop
        while not done():
            if not queue or queue[0][0] > end:
                self.now = end
                if expect and not done():
                    raise AssertionError(f"not within {seconds} s: {self.shown()}")
                break
            self.now, _, action, arguments = pop(queue)
            action(*arguments)
        return self.now - start

    def run_until_each(self, items: Iterable[T], reached: Callable[[T], bool], seconds: float, *, expect: bool = True) -> float:
        """Run until each of ``items`` was ``reached`` once, or for ``seconds``; how long it took.

        There may be thousands: after an event only the last of those that were not is asked.
        """
        rest = list(items)

        def done() -> bool:
            while rest and reached(rest[-1]):
                rest.pop()
            return not rest

        return self.run_until(done, seconds, expect=expect)

    def shown(self) -> str:
        """What there is, for the text of an expectation that was not met."""
        return ""
