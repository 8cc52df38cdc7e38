"""Virtual time: what is to happen when, in order; and each process's own clock, which shows what the protocol is told.

Two things of one moment happen in the order in which they were planned.

The protocol is promised a monotonic clock that runs on while its host is suspended (boot time). Clocks of different hosts have
nothing in common (``skew``), and run at slightly different rates (``drift``): discounting allows two clocks to differ by
``Config.drift`` of what they measure. A step of the wall clock is not seen by this clock. A ``jump`` of this one is within the
promise where the drift leaves room for it. A suspended host's clock runs on while it sleeps: that is a pause.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from random import Random
from typing import Any, TypeVar

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


class Clock:
    """Shows ``offset + rate * (true time)``."""

    __slots__ = ("offset", "rate")

    def __init__(self, offset: float = 0.0, rate: float = 1.0) -> None:
        self.offset = offset
        self.rate = rate

    def shows(self, now: float) -> float:
        """What it shows at true time ``now``."""
        return now * self.rate + self.offset

    def when(self, shown: float) -> float:
        """The true time at which it shows that much, if it does not jump before."""
        return (shown - self.offset) / self.rate

    def jump(self, seconds: float) -> None:
        """Step forward."""
        self.offset += seconds

    @classmethod
    def draw(cls, rng: Random, skew: float, drift: float) -> Clock:
        """A clock off by up to ``skew`` seconds at time 0, with a rate up to ``drift`` from 1."""
        if not skew and not drift:
            return cls()
        return cls(rng.uniform(0.0, skew), 1.0 + rng.uniform(-drift, drift))


def allowance(drift: float) -> float:
    """How far one clock's rate may be from 1: so that no two clocks differ by more than ``Config.drift`` allows.

    With rates 1 - x and 1 + x that is (1 - x) / (1 + x) = 1 - drift.
    """
    return drift / (2.0 - drift)
