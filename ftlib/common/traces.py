"""What a worker remembers for its traces: plain records, appended where things happen, made into spans elsewhere and later.

The queue is bounded: where nobody reads it in time, the oldest records are dropped. Times are on the clock of ``Threads.now``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from enum import Enum
from typing import NamedTuple, cast

MOST = 8192
"""Records that wait to be read, at most."""


class CallRecord(NamedTuple):
    """A call that has ended here."""

    number: int
    kind: str
    nbytes: int
    began: float
    ended: float
    view_id: str
    epoch: int
    size: int
    redone: int
    """Attempts done again so far, of all calls of this process."""
    adopted: int
    """Calls finished with another member's result so far."""


class ViewRecord(NamedTuple):
    """A view that became active here."""

    view_id: str
    epoch: int
    rank: int
    size: int
    frozen: float
    """When the data plane froze for it; 0 if it was not active before."""
    active: float


class FetchRecord(NamedTuple):
    """A part of the training state that came from one donor, or did not."""

    donor: str
    part: int
    """The number of the shard, -1 for the whole state."""
    began: float
    ended: float
    nbytes: int
    error: str


class SendRecord(NamedTuple):
    """A part of the training state that this member gave to another one, or did not."""

    joiner: str
    """The id of that member."""
    part: int
    """As in ``FetchRecord``."""
    began: float
    ended: float
    nbytes: int
    error: str


class RecoveryRecord(NamedTuple):
    """A training state that is here, and its averages since."""

    member: str
    """The id of this member in the lifetime that it came for."""

    began: float
    ended: float
    nbytes: int
    replayed: int
    call: int
    """The first call that counts with it; 0: the one in which it came."""
    view_id: str
    waited_for: bool
    """Whether the others waited meanwhile."""


class CheckpointRecord(NamedTuple):
    """A checkpoint that this member wrote, or could not."""

    step: int
    epoch: int
    began: float
    written: float
    ended: float
    nbytes: int
    error: str


Record = CallRecord | ViewRecord | FetchRecord | SendRecord | RecoveryRecord | CheckpointRecord
CallFacts = tuple[int, Enum, int, float, float, str, int, int, int, int]
"""The fields of a ``CallRecord``, its kind not yet a word: what a healthy step pays for is one plain tuple."""


class Traces:
    """The records of one process, in all its lifetimes. Any thread adds, one takes."""

    def __init__(self, most: int = MOST) -> None:
        self._records: deque[Record | CallFacts] = deque(maxlen=most)
        self.add: Callable[[Record], None] = self._records.append
        """Remember a record. Takes part of a microsecond."""
        self.called: Callable[[CallFacts], None] = self._records.append
        """Remember a call that has ended here."""

    def take(self) -> list[Record]:
        """The records since the last time, oldest first."""
        return list(self.each(lambda _facts: False))

    def each(self, dull: Callable[[CallFacts], bool]) -> Iterator[Record]:
        """The same one by one, without the calls that are ``dull``, which nearly all are: nothing is made of them."""
        while True:
            try:
                record = self._records.popleft()
            except IndexError:
                return
            if type(record) is not tuple:
                yield cast("Record", record)
            elif not dull(facts := cast("CallFacts", record)):
                yield _record(facts)


def _record(facts: CallFacts) -> CallRecord:
    return CallRecord(facts[0], facts[1].value, *facts[2:])
