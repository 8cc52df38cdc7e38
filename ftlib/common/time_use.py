"""Where a worker's time went: each second of the wall clock belongs to one state.

The training thread adds up the time as it enters and leaves calls, which takes less than a microsecond. What the call in
progress will turn out to have been is not known before its end: ``shown`` guesses, and puts later guesses right by what comes
after, so that no number ever falls, and the numbers always add up.
"""

from __future__ import annotations

from enum import Enum

__all__ = ["State", "TimeUse"]


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


class TimeUse:
    """The time of one process, in all its lifetimes. Times are on the clock of ``Threads.now``.

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

    # --- the training thread -------------------------------------------------------------------------------------------

    def turn(self, now: float, state: State, before: State | None = None) -> None:
        """From now on it is in ``state``. ``before``: what it has been in since the last turn, if that was another one."""
        since, was, seconds = self._account
        self._account = now, state, _added(seconds, _STATES.index(before or was), now - since)

    def entered(self, now: float) -> None:
        """A call begins."""
        since, was, (computing, averaging, waiting, changing, recovering) = self._account
        if was is State.COMPUTING:
            self._account = now, State.AVERAGING, (computing + now - since, averaging, waiting, changing, recovering)
        else:
            self.turn(now, State.AVERAGING)

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
