"""Which making of a group at one member belongs to which at the other: the n-th to the n-th. Pure.

Both sides number their makings of one group, and a stream begins with the number that it is for. So a group that was closed
before it had a stream is found closed by the other side, and what is made again under the same name is never taken for it.

The numbers of two collectives are compared from their first word on, whichever group that was for. Who comes late finds a group
that was closed and made again before, and takes over the higher number, so that both go on alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Fate(Enum):
    """What becomes of a stream that a peer has dialled."""

    TAKE = "it is for the group that is open here"
    KEEP = "its group was not made here yet: it waits for that"
    CLOSED = "its group was closed here"
    DROP = "its group has a stream already"


@dataclass(slots=True)
class Place:
    """One group's makings here, towards one peer."""

    number: int = 0
    """Of the newest one."""
    known: str = ""
    """The collective of the peer, drawn anew in each, whose numbers are like ours; "" before the first word."""

    def made(self) -> None:
        """The group is made (again)."""
        self.number += 1

    def judge(self, number: int, whose: str, *, is_open: bool, free: bool) -> Fate:
        """A stream for the making ``number`` has come from the peer's collective ``whose``.

        ``is_open``: whether the newest making here is; ``free``: and has no stream. After KEEP, one that is open and free is at
        its end: the peer has closed what it belonged to.
        """
        if whose != self.known:
            before, self.known = self.known, whose
            if is_open and free:
                self.number = max(self.number, number)
                return Fate.TAKE
            if self.number and not is_open and not before:
                self.number = max(self.number, number)
                return Fate.CLOSED
            self.number = number - 1  # another collective than the one before: it has begun to count anew
        if number > self.number:
            return Fate.KEEP
        if number < self.number or not is_open:
            return Fate.CLOSED
        return Fate.TAKE if free else Fate.DROP

    def agreed(self, number: int, whose: str) -> None:
        """The peer has taken our stream, under this number."""
        self.number, self.known = max(self.number, number), whose

    def next(self, *, is_open: bool) -> int:
        """The number that a stream must be for, so as to be taken here, now or when the group is made again."""
        return self.number if is_open else self.number + 1

    def closed(self, number: int, whose: str) -> None:
        """The peer has closed its part, and says what comes ``next`` there."""
        self.number, self.known = max(self.number, number - 1), whose
