"""An average that is under way while the program still computes its gradients: the handle that a wrapper of a model holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from ...status import Status
from ..calls.open_call import OpenCall
from ..tensors.layout import Layout
from ..tensors.norms import Norms


class CarriesOut(Protocol):
    """Carries out open calls, each in its thread's turn (see ``OpenTurns``)."""

    def begin_open(self, call: OpenCall) -> bool:
        """Enter ``call`` now, if that may be."""

    def advance_open(self, complete: int) -> None:
        """The gradients of so many buckets are complete."""

    def stage_open(self, number: int, index: int) -> None:
        """The gradient of parameter ``index`` is complete, the rest of bucket ``number`` is not."""

    def restart_open(self) -> None:
        """A gradient that was staged has changed."""

    def finish_open(self, call: OpenCall, *, opened: bool) -> Status:
        """Carry out what is left of ``call``."""

    def abandon_open(self, call: OpenCall) -> None:
        """``call`` gets no gradients. Does nothing if it is not open: its entry, or its end, may have been interrupted."""

    def has_finished(self, call: OpenCall) -> bool:
        """True if ``call`` has finished, with whatever status."""


class OpenAverage:
    """One average of gradients, bucket by bucket. Used by one thread, the one that computes the gradients.

    ``push`` each bucket of the layout in order, as soon as its gradients are complete; then ``finish``, or ``abandon`` if there
    will be no gradients. Between the first ``push`` and the end other calls of this thread are a ConfigError.
    """

    def __init__(self, call: OpenCall, calls: CarriesOut) -> None:
        """``calls``: carries out ``call``."""
        self._call = call
        self._calls = calls
        self._pushed = 0
        self._late = len(call.layout.buckets) == 1  # that one begins at the end in any case
        """True if the call will not be entered before the end any more."""
        self._opened = False

    @property
    def layout(self) -> Layout:
        """The buckets; their pieces have the indices of the parameters in the list that was passed."""
        return self._call.layout

    @property
    def inputs(self) -> Sequence[torch.Tensor | None]:
        """This member's gradients as they were averaged, by the parameters' indices; kept as long as this object."""
        return self._call.sources

    @property
    def norms(self) -> Norms:
        """The norms of the averages, where they were wanted."""
        return self._call.gradient_norms

    def push(self, number: int) -> None:
        """All gradients of bucket ``number`` are complete, and stay as they are until ``finish`` has returned.

        Begins the bucket's operation, if that is possible by now. Never waits for another member, and raises nothing that
        concerns them: ``finish`` does.
        """
        if number != self._pushed:
            raise ValueError(f"bucket {number} was pushed, but bucket {self._pushed} comes next")
        self._pushed += 1
        try:
            if not (self._opened or self._late) and self._call.layout.buckets[number].count:  # what forbids it may be over
                self._opened = True  # before it is: an interrupt may come as soon as it is
                self._opened = self._calls.begin_open(self._call)
            if self._opened:
                self._calls.advance_open(self._pushed)
        except BaseException:
            self.abandon()
            raise

    def stage(self, number: int, index: int) -> None:
        """The gradient of parameter ``index``, all of which is in bucket ``number``, is complete, and others of the bucket are
        not: it may be copied now, which is quicker than later. Should it change after all, it is copied again.
        """
        if self._opened:
            self._calls.stage_open(number, index)

    def uses(self, batches: int) -> None:
        """Said right before ``finish``: nothing more is drawn beside the call. And so many batches of the elastic sampler's it
        uses up, if it has not been entered yet: they may be others than when it was made.
        """
        self._call.draws_no_more()
        if not self._opened:
            self._call.uses(batches)

    def poll(self) -> None:
        """Begin what may begin by now, as ``push`` does: for programs that push all buckets at once."""
        if self._opened:
            self._calls.advance_open(self._pushed)

    def restart(self) -> None:
        """A gradient of a pushed bucket has changed after all: what was sent does not count, ``finish`` sends it anew."""
        if self._opened:
            self._calls.restart_open()

    def finish(self) -> Status:
        """Push what is left, wait for all members, and write the averages to the gradients. Statuses and errors: see
        ``FTLib.allreduce_average``.
        """
        self._late = True
        try:
            status = self._calls.finish_open(self._call, opened=self._opened)
        except BaseException:
            self.abandon()
            raise
        self._opened = False
        return status

    @property
    def status(self) -> Status | None:
        """What ``finish`` returns, also where a callback of the program's has raised instead, once the call had ended: the
        averages are there. None: the call itself has raised, or has not ended.
        """
        return self._call.status

    @property
    def finished(self) -> bool:
        """After ``finish``: False if no member has a result, as too few are there, or this one has left."""
        return self._calls.has_finished(self._call)

    @property
    def declined(self) -> bool:
        """After ``finish``: True if it ended without a result, as a member declined it, or had given it up before this one."""
        return self._call.declined

    def abandon(self) -> None:
        """There will be no gradients: let no member wait for this one. Idempotent, also after ``finish``."""
        opened, self._late, self._opened = self._opened, True, False
        if opened:
            self._calls.abandon_open(self._call)
