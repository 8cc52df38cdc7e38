"""A process's own clock: what the protocol is told the time is.

The protocol is promised a monotonic clock that runs on while its host is suspended (boot time). Clocks of different hosts have
nothing in common (``skew``), and run at slightly different rates (``drift``): discounting allows two clocks to differ by
``Config.drift`` of what they measure. ``allowance`` is the largest deviation of one clock from true time that keeps any two
within it: (1 - x) / (1 + x) = 1 - drift. A step of the wall clock is not seen by this clock; a ``jump`` of this one is within
the promise where the drift leaves room for it. A suspended host's clock runs on while it sleeps: that is a pause.
"""

from __future__ import annotations

from random import Random

__all__ = ["Clock", "allowance"]


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
    """How far one clock's rate may be from 1, so that no two clocks are further apart than ``Config.drift`` allows."""
    return drift / (2.0 - drift)
