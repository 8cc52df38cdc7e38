"""What a spare asks of the members that it is in no view with: their state once, and averages from then on (see ``tutor``)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import msgpack

from consensus import Answer, Member

from ..staging import Slot
from ..threads import SYSTEM, Threads
from .feed import Lesson
from .fetch import FetchError, HttpSource, Later
from .lesson import Hello, read

__all__ = ["Begun", "Lessons", "Stream"]

SILENCE = 5.0
"""Seconds without a byte, or a beat, after which a tutor is given up."""
_PAUSE = 0.05
"""Seconds between two questions."""

GoOn = Callable[[], bool]


@dataclass(frozen=True, slots=True)
class Begun:
    """What one member has pinned."""

    nbytes: int
    ground: str
    packed: bytes


class Stream:
    """The averages of one tutor, as they come."""

    def __init__(self, answer: Answer, signature: bytes, slots: Callable[[], Sequence[Slot]]) -> None:
        """Made by ``Lessons.averages``."""
        self._answer, self._signature, self._slots = answer, signature, slots
        self.hello = Hello.read(answer.readinto)

    def next(self) -> Lesson | None:
        """The next call; None now and then where there is none. Raises what ``HttpSource.asked`` translates."""
        return read(self._answer.readinto, self._signature, self._slots)


class Lessons:
    """The HTTP of it."""

    def __init__(self, http: HttpSource, own_id: str, threads: Threads = SYSTEM) -> None:
        """``own_id``: this member's."""
        self._threads = threads
        self.source = http
        self._own_id = own_id

    @contextmanager
    def averages(self, member: Member, signature: bytes, slots: Callable[[], Sequence[Slot]], go_on: GoOn) -> Iterator[Stream]:
        """Listen to ``member``; sums of calls with that ``signature`` come into ``slots()``. FetchError, Later."""
        query = {"ask": "averages", "joiner": self._own_id, "signature": signature.hex()}
        with self.source.asked(member, query, go_on, SILENCE) as answer:
            yield Stream(answer, signature, slots)

    def begin(
        self, member: Member, origin: str, holders: Sequence[Member], turn: int, version: int, go_on: GoOn, *, inline: bool
    ) -> Begun:
        """Have ``member`` pin what it gives on entry to call ``version``, however long that takes. Refused: it is past that."""
        query = {
            "ask": "begin",
            "joiner": self._own_id,
            "origin": origin,
            "holders": ",".join(holder.id for holder in holders),
            "turn": turn,
            "version": version,
            "inline": int(inline),
        }
        while True:
            if not go_on():
                raise FetchError(f"what comes from {member} is not wanted any more")
            try:
                with self.source.asked(member, query, go_on) as answer:
                    return _begun(member, answer.read())
            except Later:
                self._threads.sleep(_PAUSE)


def _begun(member: Member, data: bytes) -> Begun:
    try:
        found = msgpack.unpackb(data)
    except Exception as error:
        raise FetchError(f"{member}: what it has pinned is not readable: {error}") from error
    match found:
        case {
            "nbytes": int(nbytes),
            "ground": str(ground),
            "packed": bytes(packed),
        }:
            return Begun(nbytes, ground, packed)
    raise FetchError(f"{member}: what it has pinned has the wrong shape: run one release everywhere")
