"""Progress of members: the others' places in their calls, and a joiner's recovery in words for the person who waits."""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ...common.units import size, span

_REMEMBERED = 64
"""Lost members that are remembered: the newest counts."""


class Peers:
    """The other members' places, from their pings. Part of the plane, guarded by the plane's lock."""

    def __init__(self) -> None:
        self.places: dict[str, tuple[int, int]] = {}
        """(finished, current) by member id."""
        self.changes: dict[str, float] = {}
        """When a member's place changed last, by member id (seconds on the plane's clock)."""
        self.inner: dict[str, tuple[int, float]] = {}
        """How many steps a member has done by itself, and when that number rose last, by member id; without those of none."""
        self._lost: tuple[float, ...] = ()
        """When members were lost in whose place nobody has come yet, the oldest first."""

    def note(self, member_id: str, place: tuple[int, int], now: float, inner: int = 0) -> None:
        """A member has sent its place, and how many steps it has done by itself."""
        if self.places.get(member_id) != place:
            self.places[member_id] = place
            self.changes[member_id] = now
        if inner and self.inner.get(member_id, (0, 0.0))[0] != inner:
            self.inner[member_id] = inner, now

    def changed(self, lost: int, joined: int, now: float) -> None:
        """So many members were lost, without having asked to leave, and so many joined."""
        self._lost = (*self._lost[joined:], *(now,) * lost)[-_REMEMBERED:]

    @property
    def stepped(self) -> float:
        """When one of them has last done a step by itself; -inf if none ever has. Seconds on the plane's clock."""
        return max((when for _, when in self.inner.values()), default=-math.inf)

    def lost_since(self, moment: float) -> bool:
        """True if a member was lost after ``moment``, and nobody has come in its place."""
        return bool(self._lost) and self._lost[-1] > moment

    def keep(self, ids: Container[str]) -> None:
        """Forget all members that are not in ``ids``."""
        self.places = {member_id: place for member_id, place in self.places.items() if member_id in ids}
        self.changes = {member_id: since for member_id, since in self.changes.items() if member_id in ids}
        self.inner = {member_id: told for member_id, told in self.inner.items() if member_id in ids}


@dataclass(frozen=True, slots=True)
class Progress:
    """A moment of a recovery. Bytes, bytes a second, seconds."""

    total: int
    """0 while it is unknown."""
    got: int
    rate: float
    """Over the last seconds; 0 if nothing arrived."""
    left: float | None
    """Seconds until all has arrived, at that rate; None if unknown."""
    pending: int
    """Averages that wait to be replayed."""
    braking: bool
    """True while the others wait for this member: for all of the state, or because of its backpressure, as it cannot hold more
    averages or keep pace. The name is a key of the metrics."""
    replayed: int = 0
    """Averages that were replayed."""
    seconds: float = 0.0
    """Since the recovery began."""

    def __str__(self) -> str:
        return told(asdict(self))


def told(progress: Mapping[str, Any]) -> str:
    """A ``Progress``, given as plain values, in words; KeyError or TypeError if ``progress`` is no such thing."""
    return "; ".join(_parts(progress))


def _parts(progress: Mapping[str, Any]) -> Iterator[str]:
    total, got, rate, left, pending = (progress[name] for name in ("total", "got", "rate", "left", "pending"))
    pace = f" at {size(rate)}/s" if rate >= 1 else ""
    if not total:
        yield f"{size(got)} so far{pace}"
    elif got >= total:
        yield f"all {size(total)} are here"
    else:
        rest = "" if left is None else f", {span(left)} left" if left >= 1 else ", less than 1 s left"
        yield f"{size(got)} of {size(total)} ({100 * got // total}%){pace}{rest}"
    if pending:
        yield f"{pending} average{'s wait' if pending > 1 else ' waits'} to be replayed"
    if progress["braking"]:
        yield "the others wait for it"
