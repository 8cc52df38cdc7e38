"""Observers of a member's calls: a donor of the state, a stream of averages, code that keeps something until a call ends.

A job that just trains has none. An observer attaches itself while it needs notifications, and detaches itself afterwards. A
call without observers costs one check of an empty tuple.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from ..tensors.staging import Slot
from .call import Call, Results


class Observer:
    """Notified of every call of this member, on the thread that carries it out. This base class does nothing."""

    def entering(self, number: int) -> None:
        """An attempt at call ``number`` begins, or is to be ended if it was begun in the middle of backward. No member can have
        finished the call, the program computes no more, and the state is as on entry to the call.
        """

    def ended(self, number: int) -> None:
        """The operations of call ``number`` have ended, but their result is not applied: the state is still as on entry."""

    def finished(self, call: Call, results: Results) -> Sequence[Slot] | None:  # noqa: ARG002 - nothing is kept
        """``call`` has finished. An observer that keeps the slots of ``results`` returns others to use instead; else None."""
        return None


class Observers:
    """The observers of one lifetime. Any thread may attach and detach."""

    def __init__(self) -> None:
        self.present: tuple[Observer, ...] = ()
        self._lock = threading.Lock()

    def attach(self, observer: Observer) -> None:
        """Notify ``observer`` from now on. Idempotent."""
        with self._lock:
            if observer not in self.present:
                self.present = (*self.present, observer)

    def detach(self, observer: Observer) -> None:
        """Stop notifying ``observer``. Idempotent."""
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
        """See ``Observer``; at most one observer keeps the results."""
        instead = None
        for observer in self.present:
            given = observer.finished(call, results)
            instead = given if instead is None else instead
        return instead
