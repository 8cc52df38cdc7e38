"""One member's replication stream: the records of its finished calls, for all subscribers.

The training thread neither waits nor copies here: it gives a finished call's buffers away, and takes others that no subscriber
reads any more. All subscribers share the buffers. A slow subscriber is cut off, which limits the memory held for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from ...common.threads import SYSTEM, Threads
from ...core.tensors.staging import Slot
from ..layout.replication_log import ReplicationRecord

MOST = 8
"""Number of averages that a subscriber may be behind."""
ROOM = 64 << 20
"""Bytes that a subscriber may be behind in any case."""


class _Delivery:
    """A record on its way to ``readers`` subscribers that want its sums."""

    __slots__ = ("readers", "record")

    def __init__(self, record: ReplicationRecord, readers: int) -> None:
        self.record = record
        self.readers = readers


class ReplicationStream:
    """The stream of one member. Thread-safe."""

    def __init__(self, threads: Threads = SYSTEM) -> None:
        """A stream without subscribers."""
        self._now = threads.now
        self._changed = threads.condition()
        # Guarded by the condition:
        self._subscribers: list[Subscriber] = []
        self._spare: list[Slot] = []
        self._newest = b""
        """Signature of the calls to whose layout the spare slots belong."""

    @property
    def has_subscribers(self) -> bool:
        """True while there is a subscriber."""
        return bool(self._subscribers)

    @property
    def subscribers(self) -> int:
        """How many there are."""
        return len(self._subscribers)

    def append(self, record: ReplicationRecord) -> Sequence[Slot] | None:
        """Queue ``record`` for all subscribers. None: its slots stay the caller's. Else the slots to use instead of them."""
        with self._changed:
            wanting = [each for each in self._subscribers if record.slots and each.signature == record.signature]
            delivery = _Delivery(record, len(wanting))
            for subscriber in list(self._subscribers):
                if subscriber in wanting and subscriber.behind(record.nbytes):
                    self._cut(subscriber, "it takes averages too slowly")
                    delivery.readers -= 1
                else:
                    subscriber.queue.append(delivery)
            self._changed.notify_all()
            if not delivery.readers:
                return None
            if record.signature != self._newest:
                self._newest, self._spare = record.signature, []
            spare, self._spare = self._spare, []
            return spare

    def subscribe(self, signature: bytes) -> Subscriber:
        """Subscribe from now on. ``signature``: that of the calls whose sums are wanted."""
        with self._changed:
            subscriber = Subscriber(self, signature)
            self._subscribers.append(subscriber)
            return subscriber

    def end(self, why: str) -> None:
        """End the stream: subscribers get ``why`` as a LookupError."""
        with self._changed:
            for subscriber in list(self._subscribers):
                self._cut(subscriber, why)
            self._changed.notify_all()

    # --- for subscribers -----------------------------------------------------------------------------------------------

    def next(self, subscriber: Subscriber, patience: float) -> ReplicationRecord | None:
        """See ``Subscriber.next``."""
        deadline = self._now() + patience
        with self._changed:
            self._done(subscriber)
            while not subscriber.queue and not subscriber.why and (left := deadline - self._now()) > 0:
                self._changed.wait(left)
            if subscriber.why:
                raise LookupError(subscriber.why)
            if not subscriber.queue:
                return None
            subscriber.reading = subscriber.queue.popleft()
            return subscriber.reading.record

    def close(self, subscriber: Subscriber) -> None:
        """See ``Subscriber.close``."""
        with self._changed:
            self._done(subscriber)
            self._cut(subscriber, "closed")

    # --- within the lock -----------------------------------------------------------------------------------------------

    def _cut(self, subscriber: Subscriber, why: str) -> None:
        subscriber.why = subscriber.why or why
        if subscriber in self._subscribers:
            self._subscribers.remove(subscriber)
        while subscriber.queue:
            self._read(subscriber, subscriber.queue.popleft())
        if not self._subscribers:
            self._spare = []

    def _done(self, subscriber: Subscriber) -> None:
        if subscriber.reading is not None:
            self._read(subscriber, subscriber.reading)
            subscriber.reading = None

    def _read(self, subscriber: Subscriber, delivery: _Delivery) -> None:
        """One reader less; the last one gives the buffers back."""
        record = delivery.record
        if not record.slots or record.signature != subscriber.signature:
            return
        delivery.readers -= 1
        if not delivery.readers and self._subscribers and record.signature == self._newest:
            self._spare += record.slots


class Subscriber:
    """One reader of the stream: used by one thread, and by the stream itself."""

    def __init__(self, stream: ReplicationStream, signature: bytes) -> None:
        """Made by ``ReplicationStream.subscribe``."""
        self.signature = signature
        self.queue: deque[_Delivery] = deque()
        self.reading: _Delivery | None = None
        """The delivery that ``next`` returned last: its slots are not reused before this subscriber is done with them."""
        self.why = ""
        """Why no more records come; empty while they do."""
        self._stream = stream

    def behind(self, nbytes: int) -> bool:
        """True if ``nbytes`` more would exceed the limit."""
        waiting = sum(delivery.record.nbytes for delivery in self.queue if delivery.record.signature == self.signature)
        return waiting + nbytes > max(ROOM, MOST * nbytes)

    def next(self, patience: float) -> ReplicationRecord | None:
        """The next record, valid until the next call; None after ``patience`` seconds. LookupError says why none comes."""
        return self._stream.next(self, patience)

    def close(self) -> None:
        """Unsubscribe. Idempotent."""
        self._stream.close(self)
