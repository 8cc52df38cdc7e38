"""What the ended workers of one agent still owe: results, which come in pieces, and the last of their lines.

A worker may have begun again before what it left has fully arrived, so everything here is kept by worker *and* start.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..stream.messages import Drained, Ended, Piece

Lifetime = tuple[int, int]
"""A worker's index, and which of its starts."""


@dataclass(slots=True)
class Deliveries:
    """Of one agent, in its present lifetime."""

    _ends: dict[Lifetime, Ended] = field(default_factory=dict)
    """Ends whose result is not whole yet."""
    _pieces: dict[Lifetime, list[bytes]] = field(default_factory=dict)
    _undrained: set[Lifetime] = field(default_factory=set)
    """Whose lines are not all here yet."""

    @property
    def complete(self) -> bool:
        """Whether nothing is owed."""
        return not self._ends and not self._undrained

    @property
    def undrained(self) -> set[int]:
        """The workers of whose lines some are still to come."""
        return {worker for worker, _ in self._undrained}

    def ended(self, message: Ended) -> None:
        """A worker has ended; what it left follows."""
        lifetime = message.worker, message.start
        self._undrained.add(lifetime)
        if message.result:
            self._ends[lifetime] = message
            self._pieces[lifetime] = []

    def piece(self, piece: Piece) -> tuple[Ended, list[bytes]] | None:
        """A part of a result; returns the end and all parts if it was the last one. What nobody awaits is dropped."""
        lifetime = piece.worker, piece.start
        if lifetime not in self._ends:
            return None
        self._pieces[lifetime].append(piece.data)
        return (self._ends.pop(lifetime), self._pieces.pop(lifetime)) if piece.last else None

    def drained(self, message: Drained) -> None:
        """The last of a worker's lines is here."""
        self._undrained.discard((message.worker, message.start))
