"""The first words on a stream, before it carries messages.

Who dialled says which group the stream is for, and which making of it; the other side answers with a ``Word``; and who dialled
has the last one: only then does the other side use the stream. So no side takes up a stream that the other has given up.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from ..links.errors import Mismatch
from ..links.link import Link
from .devices.choice import known
from .devices.freight import facts
from .frames import Incoming, Sort, outgoing
from .lane import Terms
from .values import Message

Key = tuple[frozenset[str], str]
"""Of a group: the ids of its members, and its name."""


class Word(IntEnum):
    """The second word, and the third."""

    TAKEN = 0
    """Second: the stream will be used. Third: it is."""
    CLOSED = 1
    """The group was closed at this side."""
    REFUSED = 2
    OTHER = 3
    """This side uses the stream that it has dialled itself."""


@dataclass(frozen=True, slots=True)
class Opening:
    """The first word. ``whose``: the sender's collective; ``number``: of the making; ``terms``: what it accepts."""

    key: Key
    whose: str
    number: int
    terms: Terms

    def fields(self) -> list[Any]:
        """As plain values."""
        return [sorted(self.key[0]), self.key[1], self.whose, self.number, *_said(self.terms)]

    @classmethod
    def of(cls, fields: list[Any]) -> Opening:
        """The inverse; TypeError or ValueError if it is none."""
        ids, name, whose, number, *terms = fields
        return cls((frozenset(map(str, ids)), str(name)), str(whose), int(number), _terms(*terms))


@dataclass(frozen=True, slots=True)
class Answer:
    """The second and the third word. ``number``: as TAKEN that of the making here, as CLOSED that of the next one."""

    word: Word
    why: str
    whose: str
    number: int
    terms: Terms

    def fields(self) -> list[Any]:
        """As plain values."""
        return [int(self.word), self.why, self.whose, self.number, *_said(self.terms)]

    @classmethod
    def of(cls, fields: list[Any]) -> Answer:
        """The inverse; TypeError or ValueError if it is none."""
        word, why, whose, number, *terms = fields
        return cls(Word(word), str(why)[:200], str(whose), int(number), _terms(*terms))


def _said(terms: Terms) -> list[Any]:
    return [terms.allow_pickle, terms.max_bytes, dict(facts())]


def _terms(pickles: Any, most: Any, gpu: Any) -> Terms:
    return Terms(bool(pickles), int(most), known(gpu))


def say(link: Link, words: Opening | Answer) -> None:
    """Send it; it is sealed, as all headers are."""
    link.send(outgoing(Sort.HELLO, words.fields(), Message(b"", [], [])).header, (), lambda _: None, sealed=False)


def hear(link: Link, tell: Callable[[list[Any] | None], None]) -> None:
    """Call ``tell`` with the fields of the next word on ``link``; with None if the link ends before, or says something else."""
    heard: list[list[Any]] = []

    def place(header: bytes) -> None:
        with contextlib.suppress(Mismatch):
            frame = Incoming.of(header)
            if frame.sort is Sort.HELLO:
                heard.append(frame.fields)

    link.receive(place, lambda _header, _error: tell(heard[0] if heard else None))
