"""Whether a program makes one call for each batch: what the loader delivered, compared with what calls used up.

A queue that fills up or empties changes the difference for a few calls only. In a program that leaves out calls, or makes one
call of several batches, the difference goes on in one direction.
"""

from __future__ import annotations

DRIFT = 16
"""Calls in one direction (fewer batches used up than the loader delivered, or more) after which the program is warned."""


_MANY = 64
"""Batches that no call used up: with so many, the reason is not the loader's look-ahead."""


class Drift:
    """The drift of one loop, from its first call on."""

    def __init__(self) -> None:
        self._origin: int | None = None
        self._drift = 0
        self._moves = 0
        """Calls that changed the drift in one direction since it last changed in the other; below 0 if it goes down."""
        self._told = False
        self._uses = False
        """Whether any call has used up batches."""

    def of(self, attempts: int, used: int) -> int | None:
        """Return the difference once, when it has gone on in one direction for ``DRIFT`` calls; else None."""
        if self._origin is None:
            self._origin = attempts
            return None
        self._origin += used
        self._uses = self._uses or used > 0
        if not used and (self._uses or attempts - self._origin < _MANY):  # a call for something else, between two averages
            return None
        before, self._drift = self._drift, attempts - self._origin
        if self._drift > before:
            self._moves = max(0, self._moves) + 1
        elif self._drift < before:
            self._moves = min(0, self._moves) - 1
        if self._told or abs(self._moves) < DRIFT:
            return None
        self._told = True
        return self._drift
