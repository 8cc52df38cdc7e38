"""Counts messages on the wire: the figure behind "no control message on the healthy path of a step"."""

from __future__ import annotations

from enum import Enum


class Direction(Enum):
    """What happened to a message. DROPPED: arrived and refused, or could not be sent; counted by reason."""

    SENT = "sent"
    RECEIVED = "received"
    DROPPED = "dropped"


class Traffic:
    """Messages and bytes by direction and message type (or reason). One writer; readers take a copy."""

    def __init__(self) -> None:
        """All zero."""
        self._counts: dict[Direction, dict[str, list[int]]] = {direction: {} for direction in Direction}

    def count(self, direction: Direction, kind: str, size: int) -> None:
        """One message of ``size`` bytes."""
        counts = self._counts[direction]
        entry = counts.get(kind)
        if entry is None:
            counts[kind] = [1, size]
        else:
            entry[0] += 1
            entry[1] += size

    def as_dict(self) -> dict[str, dict[str, dict[str, int]]]:
        """``{direction: {type: {"messages": n, "bytes": n}}}``."""
        return {
            direction.value: {kind: {"messages": entry[0], "bytes": entry[1]} for kind, entry in sorted(counts.items())}
            for direction, counts in self._counts.items()
        }
