"""Averages for those who wait above ``max_size``: what this member's calls came to, handed on while somebody listens.

The training thread neither waits here nor copies: it gives a finished call's buffers away and takes others that nobody reads
any more. All listeners share them. One that is too slow is cut off, so that what is held for it has a limit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from ..staging import Slot
from ..threads import SYSTEM, Threads

__all__ = ["MOST", "ROOM", "Feed", "Lesson", "Listener"]

MOST = 8
"""Averages that a listener may be behind."""
ROOM = 64 << 20
"""Bytes that it may be behind in any case."""


@dataclass(frozen=True, slots=True)
class Lesson:
    """What a finished call came to."""

    number: int
    signature: bytes
    kind: str
    """Of the layout."""
    weight: float
    """The sum of the weights, by which the sums in ``slots`` have to be divided."""
    slots: tuple[Slot, ...]
    """The buckets' sums; none where nothing is to be applied."""

    @property
    def nbytes(self) -> int:
        """Of all sums."""
        return sum(slot.bucket.nbytes for slot in self.slots)


class _Parcel:
    """A lesson on its way to ``readers`` listeners who want its sums."""

    __slots__ = ("lesson", "readers")

    def __init__(self, lesson: Lesson, readers: int) -> None:
        self.lesson = lesson
        self.readers = readers


class Feed:
    """One member's. Thread-safe."""

    def __init__(self, threads: Threads = SYSTEM) -> None:
        """Nobody listens."""
        self._now = threads.now
        self._changed = threads.condition()
        # Guarded by the condition:
        self._listeners: list[Listener] = []
        self._spare: list[Slot] = []
        self._newest = b""
        """Signature of the calls that the spare slots are of."""

    @property
    def heard(self) -> bool:
        """Whether anybody listens."""
        return bool(self._listeners)

    def hand(self, lesson: Lesson) -> Sequence[Slot] | None:
        """Hand it to all who listen. None: its slots are the caller's as before; else slots to use instead of them."""
        with self._changed:
            wanting = [each for each in self._listeners if lesson.slots and each.signature == lesson.signature]
            parcel = _Parcel(lesson, len(wanting))
            for listener in list(self._listeners):
                if listener in wanting and listener.behind(lesson.nbytes):
                    self._cut(listener, "it takes averages too slowly")
                    parcel.readers -= 1
                else:
                    listener.queue.append(parcel)
            self._changed.notify_all()
            if not parcel.readers:
                return None
            if lesson.signature != self._newest:
                self._newest, self._spare = lesson.signature, []
            spare, self._spare = self._spare, []
            return spare

    def listen(self, signature: bytes) -> Listener:
        """From now on; ``signature``: of the calls whose sums are wanted."""
        with self._changed:
            listener = Listener(self, signature)
            self._listeners.append(listener)
            return listener

    def end(self, why: str) -> None:
        """Nothing more comes from here; whoever listens is told."""
        with self._changed:
            for listener in list(self._listeners):
                self._cut(listener, why)
            self._changed.notify_all()

    # --- for listeners -------------------------------------------------------------------------------------------------

    def next(self, listener: Listener, patience: float) -> Lesson | None:
        """See ``Listener.next``."""
        deadline = self._now() + patience
        with self._changed:
            self._done(listener)
            while not listener.queue and not listener.why and (left := deadline - self._now()) > 0:
                self._changed.wait(left)
            if listener.why:
                raise LookupError(listener.why)
            if not listener.queue:
                return None
            listener.reading = listener.queue.popleft()
            return listener.reading.lesson

    def close(self, listener: Listener) -> None:
        """See ``Listener.close``."""
        with self._changed:
            self._done(listener)
            self._cut(listener, "closed")

    # --- within the lock -----------------------------------------------------------------------------------------------

    def _cut(self, listener: Listener, why: str) -> None:
        listener.why = listener.why or why
        if listener in self._listeners:
            self._listeners.remove(listener)
        while listener.queue:
            self._read(listener, listener.queue.popleft())
        if not self._listeners:
            self._spare = []

    def _done(self, listener: Listener) -> None:
        if listener.reading is not None:
            self._read(listener, listener.reading)
            listener.reading = None

    def _read(self, listener: Listener, parcel: _Parcel) -> None:
        """One reader less; the last one gives the buffers back."""
        lesson = parcel.lesson
        if not lesson.slots or lesson.signature != listener.signature:
            return
        parcel.readers -= 1
        if not parcel.readers and self._listeners and lesson.signature == self._newest:
            self._spare += lesson.slots


class Listener:
    """One of those who listen: used by one thread, but for what the feed does with it."""

    def __init__(self, feed: Feed, signature: bytes) -> None:
        """Made by ``Feed.listen``."""
        self.signature = signature
        self.queue: deque[_Parcel] = deque()
        self.reading: _Parcel | None = None
        """What ``next`` gave last: its slots are not used again before it is done with."""
        self.why = ""
        """Why nothing more comes."""
        self._feed = feed

    def behind(self, nbytes: int) -> bool:
        """Whether so many bytes more would be too many."""
        waiting = sum(parcel.lesson.nbytes for parcel in self.queue if parcel.lesson.signature == self.signature)
        return waiting + nbytes > max(ROOM, MOST * nbytes)

    def next(self, patience: float) -> Lesson | None:
        """The next lesson, valid until this is called again; None after ``patience`` seconds. LookupError: why none comes."""
        return self._feed.next(self, patience)

    def close(self) -> None:
        """Listen no more. Idempotent."""
        self._feed.close(self)
