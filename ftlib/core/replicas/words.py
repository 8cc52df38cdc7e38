"""What the members of one replica tell each other about a call, and what follows once all have: rule 1 of ``agreement``.

A member says a word when its shard's result is complete at it; a newcomer says another one before its first call, at the
*border*. The flags of the call (freeze after it, no result) are read in one shard's group alone, so they travel with the word:
who has the words of its replica knows those of all shards, and each replica has a member in each shard. So all members of all
replicas come to one verdict.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from enum import IntFlag
from typing import NamedTuple, Protocol

from .agreement import Holders

_WORD = struct.Struct("<QQIII")


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
    """Of a newcomer: it does not come in with this call, but gets the state once more."""
    BORDER = 32
    """No word about a result: this member, a newcomer or a founder, is at the border before the call, with the state."""
    MIDWAY = 64
    """With BORDER: its program cannot begin with this call, so it takes part with nothing of its own."""
    STALE = 128
    """With BORDER: it has loaded the state within the call, so that what it has computed for that does not count."""
    INSIDE = 256
    """With BORDER: it is in the call already."""
    SAVING = 512
    """It still writes a checkpoint."""
    DECLINED = 1024
    """A member has declined the call, in this shard."""
    PREFACE = 2048
    """It is one that a wrapper makes before a call of the program's."""


_TURN = 16
"""The bits of a word's flags from here on say how often it was at that border in that view before."""


class Word(NamedTuple):
    """This member holds its shard's result of ``call`` in the view of ``epoch``; with ``BORDER``: it is before that call."""

    epoch: int
    call: int
    flags: int = 0
    ranks: int = 0
    """A checksum of which replicas' contributions are in the result; 0: not known, as after an adoption. At a border: of which
    replica has given the private state; 0: there is none."""
    drawn: bytes = b""
    """What its sampler says of the call (``Drawing``). Of a founder at the border before its first call: the step from which it
    begins; nothing if that is not known yet."""

    @property
    def said(self) -> WordFlag:
        """The flags."""
        return WordFlag(self.flags & ((1 << _TURN) - 1))

    @property
    def turn(self) -> int:
        """How often its member was at that border in that view before, but not with what its mates had got."""
        return self.flags >> _TURN

    @classmethod
    def about_border(cls, epoch: int, call: int, said: WordFlag, turn: int = 0, donor: int = 0) -> Word:
        """A word of who is at the border before ``call``."""
        return cls(epoch, call, WordFlag.BORDER | said | turn << _TURN, donor)

    def pack(self) -> bytes:
        """28 bytes, and what is drawn: about 10 bytes for each replica."""
        *head, drawn = self
        return _WORD.pack(*head, len(drawn)) + drawn


def read_words(data: bytes) -> tuple[list[Word], bytes]:
    """The words in ``data``, as they were packed one after the other; and the rest, of which more has yet to come."""
    words, at = [], 0
    while at + _WORD.size <= len(data):
        epoch, call, flags, ranks, length = _WORD.unpack_from(data, at)
        if at + _WORD.size + length > len(data):
            break
        at += _WORD.size
        words.append(Word(epoch, call, flags, ranks, data[at : at + length]))
        at += length
    return words, data[at:]


class ReplicaVerdict(NamedTuple):
    """What the words of all members of a replica say of a call. Equal at all members of all replicas; at a border at all of
    this one.
    """

    freeze: bool
    void: bool
    alike: bool
    """False if the shards' results are over different replicas. Never seen; nobody applies such a call. At a border: if private
    state has come from different ones."""
    out: bool = False
    """True if a process of this replica has said ``OUT``: then it holds for all of them."""
    midway: bool = False
    """The same of ``MIDWAY``."""
    stale: bool = False
    """The same of ``STALE``."""
    saving: bool = False
    """The same of ``SAVING``."""
    declined: bool = False
    """The same of ``DECLINED``."""
    preface: bool = False
    """The same of ``PREFACE``."""
    drawn: tuple[bytes, ...] = ()
    """What all of this replica have said of their samplers, by shard; nothing at a border."""
    apart: tuple[bytes, ...] = ()
    """At a border: the steps from which the processes of this replica begin, if these differ."""


class ReceivedWords:
    """The words of one replica, as one of its members has received them. The owner has a lock around it."""

    def __init__(self, members: Sequence[str]) -> None:
        """``members``: ids of the whole replica, this member included."""
        self._members = tuple(members)
        self._results, self._borders = Holders(members), Holders(members)
        self._words: dict[tuple[str, int], Word] = {}
        """The newest word of each member about a call, by member and call; of the newest two calls each."""
        self._at_border: dict[tuple[str, int], Word] = {}
        """The newest word of each member about the newest border, by member and epoch."""
        self._entered = Word(0, 0)
        self._earlier = False

    def enter(self, word: Word, *, earlier: bool = False) -> None:
        """This member says ``word``, and listens for those of its mates. Words of earlier views count no more.

        ``earlier``: they do, where in one of them all were at this border with states that fit: a mate that has heard that goes
        on, and says nothing of it in the next view.
        """
        self._entered, self._earlier = word, earlier
        self._holders.enter(word.epoch, word.call)

    def receive(self, member: str, word: Word) -> None:
        """``member`` has said ``word``."""
        self._borders.receive(member, word.epoch, word.call)  # whoever has been in the call has passed the border
        if word.flags & WordFlag.BORDER:
            if any(word.call > known.call for known in self._at_border.values()):
                self._at_border.clear()
            self._at_border[member, word.epoch] = word
        else:
            self._results.receive(member, word.epoch, word.call)
            self._words[member, word.call] = word
            self._words.pop((member, word.call - 2), None)

    def missing(self) -> tuple[str, ...]:
        """The members whose word has not come yet."""
        return self._holders.missing

    def verdict(self) -> ReplicaVerdict | None:
        """The verdict on what was entered; None until all members have spoken."""
        entered, complete = self._entered, self._holders.complete
        if not entered.flags & WordFlag.BORDER:
            found = [self._words.get((member, entered.call)) for member in self._members]
            return _verdict(found)._replace(drawn=tuple(word.drawn for word in found if word)) if complete else None
        if complete and (verdict := self._of_border(entered.epoch, entered.turn)) is not None:
            return verdict
        for epoch in sorted({epoch for _, epoch in self._at_border} - {entered.epoch}) if self._earlier else ():
            words = [self._about(member, epoch) for member in self._members]
            turns = {word.turn for word in words if word is not None}
            if None not in words and len(turns) == 1 and (verdict := _verdict(words)).alike and not verdict.midway:
                return verdict
        return None

    def _of_border(self, epoch: int, turn: int) -> ReplicaVerdict | None:
        """The verdict on the border in that view; None if some have not spoken since they were there together before."""
        words = [self._about(member, epoch) for member in self._members]
        inside = WordFlag.INSIDE in self._entered.said
        others = [] if inside else [word for word in words if word is not None and WordFlag.INSIDE not in word.said]
        if any(word.turn < turn for word in others):
            return None
        begun = sorted({word.drawn for word in words if word is not None and word.drawn})
        verdict = _verdict(words)._replace(apart=tuple(begun) if len(begun) > 1 else ())
        return verdict._replace(alike=False) if any(word.turn > turn for word in others) else verdict

    @property
    def _holders(self) -> Holders:
        return self._borders if self._entered.flags & WordFlag.BORDER else self._results

    def _about(self, member: str, epoch: int) -> Word | None:
        """What ``member`` has said in that view of the border that was entered."""
        word = self._at_border.get((member, epoch))
        return word if word is not None and word.call == self._entered.call else None


def _verdict(words: Iterable[Word | None]) -> ReplicaVerdict:
    flags, known = WordFlag(0), set()
    for word in filter(None, words):
        flags |= word.said
        known.update({word.ranks} - {0})
    return ReplicaVerdict(
        freeze=WordFlag.FREEZE in flags,
        void=WordFlag.VOID in flags,
        alike=len(known) < 2,
        out=WordFlag.OUT in flags,
        midway=WordFlag.MIDWAY in flags,
        stale=WordFlag.STALE in flags,
        saving=WordFlag.SAVING in flags,
        declined=WordFlag.DECLINED in flags,
        preface=WordFlag.PREFACE in flags,
    )


class Mates(Protocol):
    """The other members of this one's replica, as the engine knows them."""

    def enter(self, word: Word, *, earlier: bool = False) -> None:
        """This member holds what ``word`` says, or is where it says: say so, and listen for the others' words about that.

        ``earlier``: see ``ReceivedWords``.
        """

    def verdict(self, seconds: float) -> ReplicaVerdict | None:
        """Listen at most so many seconds. None if some have not spoken yet. Raises ReplicaLost, or JobEnded,
        if one of them never will.
        """

    def vouch(self, word: Word) -> None:
        """Say ``word``, about which there is nothing to agree on here: a call that was finished in an earlier view, or in which
        this member takes part with nothing of its own. Any thread.
        """

    def missing(self) -> str:
        """Those that have not spoken yet, for people."""
