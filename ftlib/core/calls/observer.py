"""Who looks on at the calls of a member: a donor of the state, a stream of averages, whoever keeps something until a call ends.

Nobody does in a job that just trains. An observer attaches itself when it has something to look for, and detaches itself when
that is over; a call without observers costs one look at an empty tuple.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from ..tensors.staging import Slot
from .call import Call, Results


class Observer:
    """Told of every call of this member, on the thread that carries it out. By itself it does nothing."""

    def entering(self, number: int) -> None:
        """An attempt at call ``number`` begins; nothing of it is under way, and the state is that on entry to it."""

    def ended(self, number: int) -> None:
        """The operations of call ``number`` have ended, and nothing was made of that: the state is still that on entry."""

    def finished(self, call: Call, results: Results) -> Sequence[Slot] | None:  # noqa: ARG002 - nothing is kept
        """``call`` has finished. Where the slots of ``results`` are kept, others to use instead of them; else None."""
        return None


class Observers:
    """Those of one lifetime. Any thread may attach and detach."""

    def __init__(self) -> None:
        self.present: tuple[Observer, ...] = ()
        self._lock = threading.Lock()

    def attach(self, observer: Observer) -> None:
        """From now on it is told. Idempotent."""
        with self._lock:
            if observer not in self.present:
                self.present = (*self.present, observer)

    def detach(self, observer: Observer) -> None:
        """It is told no more. Idempotent."""
        with self._lock:
            self.present = tuple(each for each in self.present if each is not observer)

    def entering(self, number: int) -> None:
        """See ``Observer``."""
        for observer in self.present:
            observer.entering(number)

    def ended(self, number: int) -> None:
        """See ``Observer``."""
        for observer in self.present:
            observer.ended(number)

    def finished(self, call: Call, results: Results) -> Sequence[Slot] | None:
        """See ``Observer``; at most one of them keeps the results."""
        instead = None
        for observer in self.present:
            given = observer.finished(call, results)
            instead = given if instead is None else instead
        return instead
