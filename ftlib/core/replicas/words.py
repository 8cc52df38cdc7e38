"""What the members of one replica tell each other about a call, and what follows once all have: rule 1 of ``agreement``.

A member says a word when its shard's result is complete at it. The flags of the call (freeze after it, no result) are read in
one shard's group alone, so they travel with the word: who has the words of its replica knows those of all shards, and each
replica has a member in each shard. So all members of all replicas come to one verdict.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntFlag
from typing import NamedTuple, Protocol

from .agreement import Holders

__all__ = ["WORD_BYTES", "Heard", "Mates", "Verdict", "Word", "WordFlag"]

_WORD = struct.Struct("<QQII")
WORD_BYTES = _WORD.size


class WordFlag(IntFlag):
    """Bits of a word."""

    FREEZE = 1
    """All members freeze after this call."""
    VOID = 2
    """The call has no result in this shard: inf or nan, or no weight."""
    BYE = 4
    """No word about a call: this member ends, and means to."""
    ENDED = 8
    """With BYE: because its program has come to its end."""
    OUT = 16
    """Of a newcomer: it does not come in with this call, but gets the state once more. With call 0, before the job's first
    call: it has loaded the initial state within that, so that what it has computed does not count."""


class Word(NamedTuple):
    """This member holds its shard's result of ``call`` in the view of ``epoch``."""

    epoch: int
    call: int
    flags: int = 0
    ranks: int = 0
    """A checksum of which replicas' contributions are in the result; 0: not known, as after an adoption."""

    def pack(self) -> bytes:
        """``WORD_BYTES`` bytes."""
        return _WORD.pack(*self)

    @classmethod
    def unpack(cls, data: bytes) -> Word:
        """The inverse of :meth:`pack`."""
        return cls(*_WORD.unpack(data))


class Verdict(NamedTuple):
    """What the words of all members of a replica say of a call. Equal at all members of all replicas."""

    freeze: bool
    void: bool
    alike: bool
    """False if the shards' results are over different replicas. Never seen; nobody applies such a call."""
    out: bool = False
    """True if a process of this replica has said ``OUT``: then it holds for all of them."""


class Heard:
    """The words of one replica, as one of its members has heard them. The owner has a lock around it."""

    def __init__(self, members: Sequence[str]) -> None:
        """``members``: ids of the whole replica, this member included."""
        self._holders = Holders(members)
        self._words: dict[tuple[str, int], Word] = {}
        """The newest word of each member about a call, by member and call; of the newest two calls each."""
        self._members = tuple(members)
        self._call = 0

    def enter(self, epoch: int, call: int) -> None:
        """This member carries out ``call`` in the view of ``epoch``. Words of earlier views count no more."""
        self._call = call
        self._holders.enter(epoch, call)

    def hear(self, member: str, word: Word) -> None:
        """``member`` has said ``word``."""
        self._holders.hear(member, word.epoch, word.call)
        self._words[member, word.call] = word
        self._words.pop((member, word.call - 2), None)

    def missing(self) -> tuple[str, ...]:
        """The members whose word has not come yet."""
        return self._holders.missing

    def verdict(self) -> Verdict | None:
        """The verdict on the call that was entered; None until all members have spoken."""
        if not self._holders.complete:
            return None
        words = [word for member in self._members if (word := self._words.get((member, self._call))) is not None]
        flags = 0
        for word in words:
            flags |= word.flags
        known = {word.ranks for word in words if word.ranks}
        freeze, void, out = (bool(flags & flag) for flag in (WordFlag.FREEZE, WordFlag.VOID, WordFlag.OUT))
        return Verdict(freeze, void, len(known) < 2, out)


class Mates(Protocol):
    """The other members of this one's replica, as the engine knows them."""

    def enter(self, word: Word) -> None:
        """This member holds what ``word`` says: say so, and listen for the others' words about that call in that view."""

    def verdict(self, seconds: float) -> Verdict | None:
        """Listen at most so many seconds. None if some have not spoken yet. Raises ReplicaLost, or JobEnded,
        if one of them never will.
        """

    def vouch(self, word: Word) -> None:
        """Say ``word`` about a call that this member has finished in an earlier view. Any thread."""

    def missing(self) -> str:
        """Those that have not spoken yet, for people."""
