"""How far a joiner is, for the person who waits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ..units import size, span

__all__ = ["Progress", "told"]


@dataclass(frozen=True, slots=True)
class Progress:
    """A moment of a recovery. Bytes, bytes a second, seconds."""

    total: int
    """0 where it is not known yet."""
    got: int
    rate: float
    """Over the last seconds; 0 where nothing arrived."""
    left: float | None
    """Seconds until all has arrived, at that rate; None where nobody can say."""
    pending: int
    """Averages that wait to be replayed."""
    braking: bool
    """Whether the others wait for this member: for all of the state, or since it cannot hold more averages or keep pace."""
    replayed: int = 0
    """Averages that were."""
    seconds: float = 0.0
    """Since it began."""

    def __str__(self) -> str:
        return told(asdict(self))


def told(progress: Mapping[str, Any]) -> str:
    """A ``Progress`` as plain values, in words; KeyError or TypeError where it is none."""
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
