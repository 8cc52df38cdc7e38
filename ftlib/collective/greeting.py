"""The first words on a stream, before it carries messages.

Who dialled says which group the stream is for, and which making of it; the other side answers with a ``Word``; and who dialled
has the last one: only then does the other side use the stream. So no side takes up a stream that the other has given up.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from consensus import Stream

from ..links.errors import CollectiveError, Mismatch
from ..links.link import Link
from ..links.loop import LinkLoop
from .devices import choice
from .frames import Incoming, Sort, outgoing
from .lane import Terms
from .values import Message

_UNCLAIMED = 256
"""Streams of one peer that may wait for their group, or their channel, to be made here."""
_GOODBYE = 1.0
"""The most seconds until a peer's host has the last word on a stream that nobody has used here."""
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
class GreetingReply:
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
    def of(cls, fields: list[Any]) -> GreetingReply:
        """The inverse; TypeError or ValueError if it is none."""
        word, why, whose, number, *terms = fields
        return cls(Word(word), str(why)[:200], str(whose), int(number), _terms(*terms))


def _said(terms: Terms) -> list[Any]:
    return [terms.allow_pickle, terms.max_bytes, dict(choice.facts())]


def _terms(pickles: Any, most: Any, gpu: Any) -> Terms:
    return Terms(bool(pickles), int(most), choice.known(gpu))


def say(link: Link, words: Opening | GreetingReply) -> None:
    """Send it; it is sealed, as all headers are."""
    link.send(outgoing(Sort.HELLO, words.fields(), Message(b"", [], [])).header, (), lambda _: None, sealed=False)


def hear(link: Link, tell: Callable[[list[Any] | None], None]) -> None:
    """Call ``tell`` with the fields of the next word on ``link``; with None if the link ends before, or says something else."""
    received: list[list[Any]] = []

    def place(header: bytes) -> None:
        with contextlib.suppress(Mismatch):
            frame = Incoming.of(header)
            if frame.sort is Sort.HELLO:
                received.append(frame.fields)

    link.receive(place, lambda _header, _error: tell(received[0] if received else None))


def read(of: Callable[[list[Any]], Any], fields: list[Any] | None) -> Any:
    """The words of a peer, None if there are none, or if they make no sense."""
    try:
        return None if fields is None else of(fields)
    except (TypeError, ValueError, LookupError, ArithmeticError):
        return None


@dataclass(frozen=True, eq=False, slots=True)
class Caller:
    """A stream that a peer has dialled, and what it said."""

    link: Link
    opening: Opening

    @property
    def over(self) -> bool:
        """Whether the peer has closed it, or the connection has ended."""
        return self.link.closed or self.link.broken

    @property
    def empty(self) -> bool:
        """Whether nothing has come behind the first word but the last one."""
        return self.link.stats.queued_in <= 1


def no_room(waiting: Iterable[Caller], caller: Caller) -> str:
    """Why ``caller`` may not wait with the others; "" if it may."""
    names = [each.opening.key[1] for each in waiting if each.link.peer.id == caller.link.peer.id]
    if len(names) < _UNCLAIMED:
        return ""
    return f"{_UNCLAIMED} streams from here wait there for groups or channels that were not made there, as {names[0]!r:.60}"


class Greeter:
    """Links that no lane has yet, and what this side says on them. Thread-safe."""

    def __init__(self, loop: LinkLoop, terms: Terms) -> None:
        self._loop = loop
        self._terms = terms
        self._whose = secrets.token_hex(4)
        self._lock = threading.Lock()
        self._links: set[Link] = set()

    def begin(self, stream: Stream) -> Link:
        """A link over ``stream``. GroupClosed if this collective is."""
        link = self._loop.connect(stream)
        with self._lock:
            self._links.add(link)
        return link

    def open(self, link: Link, key: Key, number: int) -> None:
        """Say the first word."""
        say(link, Opening(key, self._whose, number, self._terms))

    def answer(self, link: Link, word: Word, number: int, why: str = "") -> None:
        """Say the second word, or the last one."""
        say(link, GreetingReply(word, why, self._whose, number, self._terms))

    def decline(self, link: Link, word: Word, number: int, why: str = "") -> None:
        """The last word on a stream that is not used."""
        self.answer(link, word, number, why)
        self.bid_goodbye(link)

    def bid_goodbye(self, link: Link) -> None:
        """The peer may use its stream already, and the group that it is for is over here."""
        self.met(link)
        link.close(_GOODBYE)

    def drop(self, link: Link) -> None:
        """Nobody uses it, or waits for it."""
        self.met(link)
        link.close(0.0)

    def met(self, link: Link) -> None:
        """A lane has it from here on."""
        with self._lock:
            self._links.discard(link)

    def lost(self, member_id: str, error: CollectiveError) -> None:
        """That member is over."""
        with self._lock:
            links = [link for link in self._links if link.peer.id == member_id]
        for link in links:
            link.fail(error)

    def end(self, error: CollectiveError, deadline: float) -> None:
        """End them all; until ``deadline`` the peers are told."""
        with self._lock:
            links, self._links = self._links, set()
        for link in links:
            link.close(min(_GOODBYE, max(0.0, deadline - time.monotonic())))
            link.fail(error)
