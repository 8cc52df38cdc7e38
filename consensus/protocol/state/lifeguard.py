"""Lifeguard (Dadgar, Phillips, Currey): how far to distrust one's own clock and network, and how long a suspicion lasts.

*Awareness* (section IV-A): a member whose probes fail without even a Nack from its helpers is probably slow itself: it
stretches its own timeouts instead of accusing others.

*Suspicion* (section IV-B): its timeout starts at the maximum and shrinks with every *distinct* further accuser, down to the
minimum at k of them: ``max - (max - min) * ln(C + 1) / ln(k + 1)``.
"""

from __future__ import annotations

import math

ENOUGH = 3
"""The fewest distinct accusers that convict a member of silence in a large view: one or two may be cut off themselves, or lose
packets."""


class Awareness:
    """A score from 0 (healthy) to ``maximum``; timeouts are multiplied by score + 1."""

    def __init__(self, maximum: int) -> None:
        self._maximum = maximum
        self.score = 0

    def better(self) -> None:
        """A probe was answered in time."""
        self.score = max(0, self.score - 1)

    def worse(self, by: int = 1) -> None:
        """A probe failed without nacks, an accusation of oneself had to be refuted, or the own loop stalled."""
        self.score = min(self._maximum, self.score + by)

    def stretch(self, seconds: float) -> float:
        """A timeout as this member should apply it now."""
        return seconds * (self.score + 1)


class Suspicion:
    """A timed accusation. ``needed`` is k: the confirmations, besides the first accuser, at which the timeout is shortest."""

    def __init__(self, accuser: str, needed: int, minimum: float, maximum: float, now: float) -> None:
        self.start = now
        self._needed = needed
        self.enough = max(1, min(ENOUGH, needed))
        """The accusers that convict in a large view; fewer than ENOUGH only if a quorum may have no more members to accuse."""
        self._minimum = minimum
        self._maximum = max(minimum, maximum)
        self._accusers = {accuser}
        self.unanswered: float | None = None
        """When we sent the first ping that was not answered; None if only others suspect."""

    def confirm(self, accuser: str) -> bool:
        """Count one more accuser; returns whether it is a new one that still matters (and is worth passing on)."""
        if accuser in self._accusers or len(self._accusers) > self._needed:
            return False
        self._accusers.add(accuser)
        return True

    def postpone(self, late: float) -> None:
        """This member could receive nothing for ``late`` seconds."""
        self.start += late
        if self.unanswered is not None:
            self.unanswered += late

    @property
    def confirmed(self) -> bool:
        """Whether enough distinct members suspect."""
        return len(self._accusers) >= self.enough

    @property
    def accusers(self) -> tuple[str, ...]:
        """Ids of the accusers, in a fixed order."""
        return tuple(sorted(self._accusers))

    @property
    def timeout(self) -> float:
        """Seconds from the start, with the confirmations so far."""
        if self._needed < 1:
            return self._minimum
        confirmations = len(self._accusers) - 1
        share = math.log(confirmations + 1) / math.log(self._needed + 1)
        return max(self._minimum, self._maximum - (self._maximum - self._minimum) * share)

    @property
    def deadline(self) -> float:
        """When it expires."""
        return self.start + self.timeout
