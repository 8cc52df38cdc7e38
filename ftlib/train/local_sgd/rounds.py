"""The syncs of one member: after each inner step, what the schedule says.

A sync is one open call (docs/calls.md#open-calls). Its inputs are complete when it begins, so everything but its last operation
may be under way while inner steps go on. That last one carries eight bytes: whoever ends a sync waits for little.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import nn

from consensus import CarefulLogger

from ...core.engine.open_average import OpenAverage
from ...core.tensors.compression.compression import Compression
from ...core.tensors.layout import Layout
from ...errors import ConfigError
from ...ftlib import FTLib
from ...status import Status
from .global_model import GlobalModel
from .outer_step import OuterStep
from .place import Place
from .schedule import Move, Schedule

logger = CarefulLogger("ftlib")

_COUNTER = 8
"""Bytes of the number of syncs."""


class Rounds:
    """Used by the training thread."""

    def __init__(
        self,
        ft: FTLib,
        model: GlobalModel,
        outer: Sequence[torch.optim.Optimizer],
        schedule: Schedule,
        place: Place,
        *,
        alpha: float,
        compression: Compression | None,
    ) -> None:
        """``outer``: the optimizer of each fragment. ``alpha``: the share of the local weights that stays after a sync."""
        self._ft = ft
        self._model = model
        self._outer = list(outer)
        self._schedule = schedule
        self._place = place
        self._alpha = alpha
        self._compression = compression
        self._counter = ft.agreed.name()
        self._layouts: dict[int, Layout] = {}
        self._tail = nn.Parameter(torch.zeros(1, dtype=torch.float64, device="cpu"))
        """The bucket of the last operation."""
        self._outer_step = OuterStep()
        self._average: OpenAverage | None = None
        """The sync that has begun."""
        self._fragment = 0
        """The fragment that it is of."""
        self._since, self._first = 0.0, 0
        """When the inner steps were begun to be timed, and how many of the round had been done then."""
        self._loads = ft.agreed.loads
        """How often the state had been loaded when the local weights last became the global ones."""
        self.status: Status | None = None
        """How the last sync ended; None before the first."""

    @property
    def syncs(self) -> int:
        """How many syncs the job has made, those included that failed."""
        return int.from_bytes(self._ft.agreed.get(self._counter) or b"", "little")

    @property
    def under_way(self) -> bool:
        """True between the begin of a sync and its end."""
        return self._average is not None

    def enter(self) -> None:
        """A round begins, or goes on."""
        self._since, self._first = time.monotonic(), self._place.steps
        self._take_over()

    def _take_over(self) -> None:
        """If the global weights were loaded meanwhile, the local ones become those: they would count as learned from these."""
        if self._loads != self._ft.agreed.loads:
            self.load_global()

    def load_global(self) -> None:
        """The local weights become the global ones."""
        with torch.no_grad():
            for part in self._model.parts:
                part.merge(0.0)
        self._loads = self._ft.agreed.loads
        self._place.anew()

    def stepped(self) -> Status | None:
        """An inner step was done. The status of the sync that ended with it, if one did."""
        self._place.stepped(self._ft.data_loops)
        self._take_over()  # loaded in another call than a sync: in catch_up, say, or in the sync of another model
        self._ft.stepped(self._place.total)
        move = self._schedule.move(self._place.steps, begun=self._average is not None)
        if move is Move.BEGIN or move is Move.WHOLE:
            self._begin(early=move is Move.BEGIN)
        elif move is Move.NOTHING:
            self.poll()
            patience = self._ft.patience_to_leave
            if patience is not None and self._left() > patience:
                self.abandon()
                self._ft.leave_now()
            return None
        return self.end() if move is not Move.BEGIN else None

    def _left(self) -> float:
        """Seconds until the next sync ends, at the pace of the inner steps since the last one."""
        done = self._place.steps - self._first
        return (self._schedule.period - self._place.steps) * (time.monotonic() - self._since) / max(1, done)

    def poll(self) -> None:
        """Let the sync that is under way go on. Waits for nobody."""
        if self._average is not None:
            self._average.poll()

    def end(self) -> Status | None:
        """End the sync that has begun, if there is one."""
        average = self._average
        if average is None:
            return None
        average.uses(self._place.batches(self._ft))
        try:
            average.finish()
        finally:  # also where a callback of the program's raises: all others take the outer step of a sync that has finished
            self._ended(average)
        return self.status

    def _ended(self, average: OpenAverage) -> None:
        """The sync has ended, by an exception perhaps."""
        status = average.status
        try:
            if status:
                status = self._step(status)
        except BaseException:
            status = self._give_up(status)
            raise
        finally:
            self._average = None
            self._model.parts[self._fragment].clear()
            if status is not None:
                if average.finished:
                    self._place.used()
                self._count(status, made=average.finished and not average.declined)

    def _count(self, status: Status, *, made: bool) -> None:
        """The sync is over, outer step included. ``made``: by all members. One that any had given up counts at none."""
        self.status = status
        if made:
            self._ft.agreed.put(self._counter, (self.syncs + 1).to_bytes(_COUNTER, "little"))
            self._place.ended(self._fragment, applied=bool(status))
            if status:
                with torch.no_grad():
                    self._model.parts[self._fragment].merge(self._alpha)
        self.enter()

    def _give_up(self, status: Status | None) -> Status:
        """The outer step has raised (a hook of the optimizer's, an interrupt), and is undone. The others have taken it, so what
        this member has is not what they share any more: nobody may get it from here, nor may it count in a later sync. Alone it
        is one sync that failed. ``status``: of the average. Returns that of the sync.
        """
        self._outer_step.undo()
        if status is Status.NO_NEED:
            return Status.FAIL
        logger.error(
            "the outer step of fragment %d of %d has raised, and is undone: this worker leaves, as the others have taken it "
            "and go on from other weights; start it again",
            self._fragment + 1,
            len(self._model.parts),
            extra={"ftlib_event": "outer_step_raised", "fragment": self._fragment},
        )
        self._ft.leave()
        return Status.ABORT

    def _step(self, status: Status) -> Status:
        """The outer step with the average that has come, which ended with ``status``; FAIL if no member keeps it.

        Members with one shard find the same, and none asks the others. A replica of several processes has to ask: only one part
        of the model may overflow, and then no process of any replica may keep its part.
        """
        step, ft = self._outer_step, self._ft
        sound = step.make(self._outer[self._fragment], self._model.parts[self._fragment].parameters)
        if ft.settings.shards > 1 and step.may_fail:
            status, _ = ft.vote(0, against=not sound)
        elif not sound:
            status = Status.FAIL
        if status is Status.FAIL:
            step.undo()
            why = "it would hold inf or nan, though the average is finite: lower the outer rate"
            if sound:
                why = "another part of it would hold inf or nan (lower the outer rate), or fewer than min_size are left"
            logger.warning(
                "the outer step of fragment %d of %d is undone at all workers, and the round counts on: %s",
                self._fragment + 1,
                len(self._model.parts),
                why,
                extra={"ftlib_event": "outer_step_undone", "fragment": self._fragment},
            )
        return status

    def abandon(self) -> None:
        """Give up the sync that has begun: let no member wait for this one."""
        average, self._average = self._average, None
        if average is not None:
            average.abandon()
            self._model.parts[self._fragment].clear()

    def _begin(self, *, early: bool) -> None:
        """``early``: inner steps are to be done before the end."""
        ft = self._ft
        if ft.in_unit:
            raise ConfigError("an inner step within execute would sync: make inner steps outside of it")
        self._fragment = fragment = self._schedule.fragment(self.syncs)
        part = self._model.parts[fragment]
        early = early and not ft.data_ends  # a loop is not to end, nor another one to begin, beside an open call
        weight, batches = self._place.begin(ft, fragment)
        with torch.no_grad():
            part.contribute()
            self._tail.grad = torch.zeros_like(self._tail)
        layout = self._layouts.get(fragment) or self._lay_out(fragment)
        owners = [*part.parameters, self._tail]
        self._average = average = ft.open_average(
            owners,
            layout,
            lambda: layout,
            module=part.module,
            weight=weight,
            batches=batches,
            draws_beside=self._schedule.period - self._place.steps if early else 0,
            keeps_batches=True,  # the local weights have learned from them, whatever becomes of this sync
        )
        if early:
            for number in range(len(layout.buckets) - 1):
                average.push(number)

    def _lay_out(self, fragment: int) -> Layout:
        part = self._model.parts[fragment]
        nbytes = max(1, int(self._ft.settings.bucket_mb * 2**20))
        layout = self._ft.lay_out_average(
            part.module,
            [*part.parameters, self._tail],
            range(len(part.parameters) + 1),
            bucket_bytes=nbytes,
            first_bytes=nbytes,
            compression=self._compression,
            purpose=f"of fragment {fragment + 1} of {len(self._model.parts)}",
        )
        self._layouts[fragment] = layout
        return layout
