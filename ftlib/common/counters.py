"""The figures behind ``FTLib.metrics``, kept from one lifetime of a worker to the next.

Durations go into buckets (``Tally``). Where a worker's time went (``TimeUse``): each second of the wall clock belongs to one
state. The training thread adds up the time as it enters and leaves calls, which takes less than a microsecond. What the call in
progress will turn out to have been is not known before its end: ``shown`` guesses, and puts later guesses right by what comes
after, so that no number ever falls, and the numbers always add up.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

PAUSES = (0.005, 0.01, 0.02, 0.035, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Upper bounds in seconds for pauses: a crash costs tens of milliseconds, silence about ``exclude_after``."""

CALLS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)
"""The same for calls, waiting for slower workers included."""


class Tally:
    """A count, a sum, a maximum and a histogram of durations, for less than a microsecond each.

    There is one writer. Readers may see a duration that is only partly counted.
    """

    __slots__ = ("_bounds", "_counts", "count", "last", "maximum", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        """``bounds``: ascending upper bounds in seconds, inclusive."""
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.count = 0
        self.total = 0.0
        self.last = 0.0
        self.maximum = 0.0

    def add(self, seconds: float) -> None:
        """Count one duration."""
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self.count += 1
        self.total += seconds
        self.last = seconds
        self.maximum = max(self.maximum, seconds)

    def as_dict(self) -> dict[str, Any]:
        """``count``, ``sum``, ``last``, ``max`` and ``buckets``: pairs ``[bound, number of durations up to that bound]``."""
        reached, buckets = 0, []
        for bound, count in zip(self._bounds, self._counts, strict=False):
            reached += count
            buckets.append([bound, reached])
        return {"count": self.count, "sum": self.total, "last": self.last, "max": self.maximum, "buckets": buckets}


class State(Enum):
    """What a worker's program is doing, for its step or instead of it."""

    COMPUTING = "computing"
    """Outside of calls."""
    AVERAGING = "averaging"
    """In calls, all members of which have come."""
    WAITING = "waiting"
    """For slower members in calls, for the job, for admission, or for a view with members enough."""
    CHANGING = "changing"
    """In calls that wait for a view change to end."""
    RECOVERING = "recovering"
    """In calls and restores in which the training state comes."""


_STATES = tuple(State)
_Seconds = tuple[float, float, float, float, float]
_NONE: _Seconds = (0.0, 0.0, 0.0, 0.0, 0.0)
UNKNOWN = float("-inf")
"""A time outside of calls of which nothing is known."""


class TimeUse:
    """The time of one process, in all its lifetimes, and how long its program was outside of calls before the one in progress.
    Times are on the clock of ``Threads.now``.

    The training thread writes, except for ``changed``, which it waits for. ``shown`` is for one reader at a time.
    """

    def __init__(self, now: float) -> None:
        """The worker is about to look for its job."""
        self._account: tuple[float, State, _Seconds] = (now, State.WAITING, _NONE)
        """Since when it is in the state, and the seconds before; replaced as a whole."""
        self._changing = self._waiting = self._behind = 0.0
        """Parts of the call in progress: see ``changed``, ``waited`` and ``behind``."""
        self._recovers = False
        self._shown = _NONE
        self.outside = UNKNOWN
        """Seconds that the program was outside of calls before the call in progress; below 0 if unknown."""
        self._ended = float("inf")
        """When the last call of this lifetime ended; in the future before the first one."""
        self._carried = 0.0
        """See ``carry``."""

    # --- the training thread -------------------------------------------------------------------------------------------

    def turn(self, now: float, state: State, before: State | None = None) -> None:
        """From now on it is in ``state``. ``before``: what it has been in since the last turn, if that was another one."""
        since, was, seconds = self._account
        self._account = now, state, _added(seconds, _STATES.index(before or was), now - since)

    def anew(self, now: float) -> None:
        """Another lifetime begins: the worker waits until its call goes on there."""
        self.turn(now, State.WAITING)
        self.outside, self._ended, self._carried = UNKNOWN, float("inf"), 0.0

    def entered(self, now: float) -> None:
        """A call begins."""
        self.outside, self._carried = now - self._ended + self._carried, 0.0
        since, was, (computing, averaging, waiting, changing, recovering) = self._account
        if was is State.COMPUTING:
            self._account = now, State.AVERAGING, (computing + now - since, averaging, waiting, changing, recovering)
        else:
            self.turn(now, State.AVERAGING)

    def unknown(self) -> None:
        """The time before this call does not show this member's pace."""
        self.outside = UNKNOWN

    def computes(self, now: float) -> None:
        """Within the call the program's code runs from now on."""
        ended = self._ended
        self.left(now)
        self._ended = ended

    def computed(self, now: float) -> None:
        """That code has ended, within the call."""
        outside = self.outside
        self.entered(now)
        self.outside = outside

    def carry(self, seconds: float) -> None:
        """The program computed for so long within an open call, which had said its time already: it counts in the next one.
        So who enters in the middle of backward and who enters at its end say the same.
        """
        self._carried = seconds

    def waited(self, seconds: float) -> None:
        """The call has waited for a view to act in for so long; a view change may have been a part of that."""
        self._waiting += seconds

    def behind(self, seconds: float) -> None:
        """The slowest member came to the call so much later than this one."""
        self._behind = seconds

    def recovered(self) -> None:
        """In the call in progress the training state came."""
        self._recovers = True

    def left(self, now: float) -> None:
        """The call has ended."""
        self._ended = now
        since, was, (computing, averaging, waiting, changing, recovering) = self._account
        if was is not State.AVERAGING:
            return
        rest = now - since
        if self._changing or self._waiting or self._recovers:
            change = min(self._changing, rest)
            wait = min(max(0.0, self._waiting - change), rest - change)
            rest -= change + wait
            changing, waiting = changing + change, waiting + wait
            if self._recovers:
                recovering, rest = recovering + rest, 0.0
            self._changing = self._waiting = 0.0
            self._recovers = False
        wait = min(self._behind, rest)
        self._behind = 0.0
        self._account = now, State.COMPUTING, (computing, averaging + rest - wait, waiting + wait, changing, recovering)

    # --- other threads -------------------------------------------------------------------------------------------------

    def changed(self, seconds: float) -> None:
        """A view change ended that the call in progress has waited for, for so long."""
        self._changing += seconds

    def shown(self, now: float, guess: State = State.AVERAGING) -> dict[str, float]:
        """The seconds by state, which add up to the time since the start. ``guess``: the state of a call in progress."""
        since, state, seconds = self._account
        state = guess if state is State.AVERAGING else state
        found = _added(seconds, _STATES.index(state), max(0.0, now - since))
        before = self._shown
        owed = sum(max(0.0, old - new) for old, new in zip(before, found, strict=True))
        if owed:  # an earlier guess was wrong: take it from what has come since
            gained = sum(max(0.0, new - old) for old, new in zip(before, found, strict=True))
            kept = max(0.0, 1.0 - owed / gained) if gained else 0.0
            computing, averaging, waiting, changing, recovering = (
                old + max(0.0, new - old) * kept for old, new in zip(before, found, strict=True)
            )
            found = computing, averaging, waiting, changing, recovering
        self._shown = found
        return {each.value: value for each, value in zip(_STATES, found, strict=True)}


def _added(seconds: _Seconds, index: int, more: float) -> _Seconds:
    found = list(seconds)
    found[index] += more
    computing, averaging, waiting, changing, recovering = found
    return computing, averaging, waiting, changing, recovering


@dataclass(slots=True)
class Counters:
    """Plain counts; each is written by one thread."""

    time_use: TimeUse
    """Where the time went."""
    calls: int = 0
    accelerated: int = 0
    """Calls whose large buckets went by the accelerators of all members."""
    alone: int = 0
    """Calls of this member alone: nothing was sent."""
    redone: int = 0
    adopted: int = 0
    donated: int = 0
    views: int = 0
    rebuild_failures: int = 0
    vetoed: int = 0
    """Averages that no member applied because they held inf or nan."""
    bytes_averaged: int = 0
    """Bytes of tensors in finished calls."""
    pauses: Tally = field(default_factory=lambda: Tally(PAUSES))
    """From a freeze to the activation that ended it."""
    call_seconds: Tally = field(default_factory=lambda: Tally(CALLS))
    """From entering a call to its result, view changes included."""
    rolled_back: int = 0
    """Attempts at units that were undone."""
    last_wait: float = 0.0
    """Seconds from a call's entry here to the last activation, its cause included; 0 if no call was in progress."""
    rejoins: int = 0
    """Lifetimes after the first."""
    state_loads: int = 0
    state_bytes: int = 0
    recoveries: int = 0
    """States that were loaded while the other members went on training."""
    recovery_fallbacks: int = 0
    """State loads for which the other members had to wait."""
    averages_replayed: int = 0
    stood_in: int = 0
    """Calls in which a backup worker took part, as the program was late."""
    checkpoints: int = 0
    """Checkpoints that this member wrote completely."""
    checkpoint_failures: int = 0
    checkpoints_skipped: int = 0
    """Checkpoints left out because the previous one was still being written."""
    checkpoint_step: int = 0
    """Step of the newest checkpoint that this member completed."""

    @property
    def last_pause(self) -> float:
        """Seconds from the last freeze to the activation that ended it."""
        return self.pauses.last
