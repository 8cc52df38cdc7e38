"""An average that is under way while the program still computes its gradients: the handle that a wrapper of a model holds."""

from __future__ import annotations

from collections.abc import Callable

from ...status import Status
from ..calls.open_call import OpenCall
from ..tensors.layout import Layout

__all__ = ["OpenAverage"]


class OpenAverage:
    """One average of gradients, bucket by bucket. Used by one thread, the one that computes the gradients.

    ``push`` each bucket of the layout in order, as soon as its gradients are complete; then ``finish``, or ``abandon`` if there
    will be no gradients. Between the first ``push`` and the end other calls of this thread are a ConfigError.
    """

    def __init__(self, call: OpenCall, finish: Callable[[OpenCall], Status]) -> None:
        """``finish``: carries out what is left of the call."""
        self._call = call
        self._finish = finish
        self._pushed = 0

    @property
    def layout(self) -> Layout:
        """The buckets; their pieces have the indices of the parameters in the list that was passed."""
        return self._call.layout

    def push(self, number: int) -> None:
        """All gradients of bucket ``number`` are complete, and stay as they are until ``finish`` has returned.

        Begins the bucket's operation, if that is possible by now. Never waits for another member, and raises nothing that
        concerns them: ``finish`` does.
        """
        if number != self._pushed:
            raise ValueError(f"bucket {number} was pushed, but bucket {self._pushed} comes next")
        self._pushed += 1

    def restart(self) -> None:
        """A gradient of a pushed bucket has changed after all: what was sent does not count, ``finish`` sends it anew."""

    def finish(self) -> Status:
        """Push what is left, wait for all members, and write the averages to the gradients. Statuses and errors: see
        ``FTLib.allreduce_average``.
        """
        return self._finish(self._call)

    def abandon(self) -> None:
        """There will be no gradients: let no member wait for this one. Idempotent, also after ``finish``."""
