"""When the other end of a stream counts as lost. Sans-IO: the owner says what it received and what time it is.

The stream *ends* (the process at its other end has ended: that is known within milliseconds), or it is *silent*. Silence is
counted, not measured: each look at the clock adds at most ``2 * interval``. So a process that was itself stopped for an hour
does not take the other end for lost the moment it goes on: it first reads what has come meanwhile.

==========  ==========  ===========  =========
state       received    silent for   ended
==========  ==========  ===========  =========
OPENING     ALIVE       LOST         ENDED
ALIVE       ALIVE       QUIET        ENDED
QUIET       ALIVE       LOST         ENDED
LOST        LOST        LOST         LOST
ENDED       ENDED       ENDED        ENDED
==========  ==========  ===========  =========

OPENING bears ``opening`` seconds of silence, ALIVE a third of ``timeout`` and QUIET the rest of it.
"""

from __future__ import annotations

from enum import Enum

BEAT = 0.25
"""Seconds between two heartbeats, at most: so soon something comes from an end that has nothing to say."""


class Hearing(Enum):
    """What is known of the other end."""

    OPENING = "has said nothing yet"
    ALIVE = "is heard"
    QUIET = "has been silent for a while"
    LOST = "was silent for too long"
    ENDED = "has ended the stream"

    @property
    def over(self) -> bool:
        """Whether nothing can change it any more."""
        return self in (Hearing.LOST, Hearing.ENDED)


class Event(Enum):
    """What changes it."""

    RECEIVED = "received"
    SILENT = "silent"
    ENDED = "ended"


TABLE = {
    (Hearing.OPENING, Event.RECEIVED): Hearing.ALIVE,
    (Hearing.OPENING, Event.SILENT): Hearing.LOST,
    (Hearing.OPENING, Event.ENDED): Hearing.ENDED,
    (Hearing.ALIVE, Event.RECEIVED): Hearing.ALIVE,
    (Hearing.ALIVE, Event.SILENT): Hearing.QUIET,
    (Hearing.ALIVE, Event.ENDED): Hearing.ENDED,
    (Hearing.QUIET, Event.RECEIVED): Hearing.ALIVE,
    (Hearing.QUIET, Event.SILENT): Hearing.LOST,
    (Hearing.QUIET, Event.ENDED): Hearing.ENDED,
    **{(end, event): end for end in (Hearing.LOST, Hearing.ENDED) for event in Event},
}


class Deadline:
    """One end's opinion of the other. Times are seconds of any clock that never goes back."""

    def __init__(self, now: float, *, timeout: float, opening: float) -> None:
        """``timeout``: silence after which the other end is lost; ``opening``: the same until something was received."""
        self.state = Hearing.OPENING
        self.silence = 0.0
        """Seconds of silence counted so far."""
        self.interval = min(BEAT, timeout / 10)
        """How often to look at the clock, and to say something where there is nothing to say."""
        self.longest = 0.0
        """Seconds of the longest gap between two things that were received."""
        self._now = self._received_at = now
        self._timeout = timeout
        self._opening = opening

    def received(self, now: float) -> Hearing:
        """Bytes came."""
        if self.state is not Hearing.OPENING:
            self.longest = max(self.longest, now - self._received_at)
        self._now = self._received_at = now
        self.silence = 0.0
        return self._enter(Event.RECEIVED)

    def ended(self) -> Hearing:
        """The stream came to its end, or broke."""
        return self._enter(Event.ENDED)

    def tick(self, now: float) -> Hearing:
        """A look at the clock, every ``interval`` while this process runs; what has come was given to ``received`` before."""
        self.silence += min(now - self._now, 2 * self.interval)
        self._now = now
        while not self.state.over and self.silence >= self.allowed:
            self._enter(Event.SILENT)
        return self.state

    @property
    def allowed(self) -> float:
        """Seconds of silence that the present state bears."""
        match self.state:
            case Hearing.OPENING:
                return self._opening
            case Hearing.ALIVE:
                return self._timeout / 3
            case _:
                return self._timeout

    def _enter(self, event: Event) -> Hearing:
        self.state = TABLE[self.state, event]
        return self.state

    def __repr__(self) -> str:
        return f"<Deadline {self.state.name}, {self.silence:.1f} s of silence>"
