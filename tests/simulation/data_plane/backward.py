"""A simulated program whose averages are open calls: its gradients come one by one, and buckets are pushed meanwhile.

All programs of a job make the same calls. When a member enters one is its own affair: in the middle of backward, at the end, or
at first not at all, because backward raises. The order of the buckets is registered state and changes now and then.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING, Any

import torch

from ftlib.core.calls.call import Call
from ftlib.core.calls.open_call import OpenCall
from ftlib.core.engine.open_average import OpenAverage
from ftlib.core.tensors.layout import Bucket, Layout, lay_out_in_order
from ftlib.status import Status

from .trainer import Trainer

if TYPE_CHECKING:
    from .process import Process

__all__ = ["Habits", "OpenTrainer"]

STALE = 0.5
"""What a gradient is off by, before it turns out not to be complete: no contribution has such a fraction."""


@dataclass(frozen=True)
class Habits:
    """How often a program does what, as a share of its passes; ``late``: pushes nothing before the end of backward."""

    late: float = 0.15
    breaks_off: float = 0.1
    """Pushes only a part of the buckets."""
    raises: float = 0.03
    restarts: float = 0.05
    in_place: float = 0.3
    """Adds to the gradients that are there, views of the last result."""
    clips: float = 0.34
    """Share of the calls after which all clip what they got, in place."""
    unseen: float = 0.5
    """Share of these that do so in a way which no version shows, where sums do."""
    thinks: float = 0.02
    """Seconds at most, now and then, between an average and what is done with it."""
    views: float = 0.7
    """Share of the jobs whose gradients become views of the results."""
    heavy: float | None = None
    """Share of the passes that weigh more; drawn for each job if None."""
    reorder: int = 7
    """After so many steps the buckets are in another order; 0: never."""


class _RaisedError(Exception):
    """Backward raises."""


class OpenTrainer(Trainer):
    """See the module."""

    def __init__(self, process: Process, rng: Random) -> None:
        super().__init__(process, rng)
        jobs = process.jobs
        self._habits = jobs.habits or Habits()
        self._calls = _Calls(process)
        self._owners = [torch.nn.Parameter(torch.zeros(jobs.lanes, dtype=torch.float64)) for _ in range(jobs.tensors)]
        own = Random(f"{jobs.seed} layouts")
        row = jobs.lanes * torch.float64.itemsize
        self._sizes = own.choice([row, row, row, 2 * row, row // 2]), own.choice([row, row, row // 2])
        self._bare = own.random() < 0.3
        drawn = own.choice([0.0, 0.0, 0.25])
        self._heavy = drawn if self._habits.heavy is None else self._habits.heavy
        self._views = own.random() < self._habits.views
        self.order = torch.arange(jobs.tensors)
        self._layouts: dict[tuple[int, ...], Layout] = {}
        self._average: OpenAverage | None = None
        """Kept until the next pass."""

    # What ``register_state`` is given

    def state_dict(self) -> dict[str, Any]:
        """The order of the buckets as well."""
        return super().state_dict() | {"order": self.order}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a donor's."""
        super().load_state_dict(state)
        self.order.copy_(state["order"])

    # The program

    def _perform(self) -> tuple[Status, Call]:
        while True:
            self._begin_pass()
            self._zero()
            call = self._call()
            self._average = average = OpenAverage(call, self._calls)
            self._process.jobs.promises.entered(self._process, call)
            try:
                self._backward_into(average)
            except _RaisedError:
                average.abandon()
                self._process.jobs.promises.abandoned(self._process, call)
                self._process.threads.sleep(self._rng.expovariate(1.0 / self._pace))
                continue
            return average.finish(), call

    def _call(self) -> OpenCall:
        return OpenCall(
            self._layout_now(),
            self._owners,
            weight=self.weight,
            by_samples=False,
            batches=1,
            veto=self._process.jobs.veto,
            views=self._views,
            relaid=self._layout_now,
            name="parameter {}".format,
            remark=str,
        )

    def _zero(self) -> None:
        """``zero_grad``, of either kind."""
        for owner in self._owners:
            if owner.grad is not None and self._rng.random() < self._habits.in_place:
                owner.grad.zero_()
            else:
                owner.grad = None

    def _backward_into(self, average: OpenAverage) -> None:
        """Gradients in the order of the buckets; each takes its time."""
        rng, habits, threads = self._rng, self._habits, self._process.threads
        buckets = average.layout.buckets
        ends = 0 if rng.random() < habits.late else len(buckets)
        if ends and rng.random() < habits.breaks_off:
            ends = rng.randrange(1, len(buckets) + 1)
        raises = rng.randrange(len(buckets) + 1) if rng.random() < habits.raises else -1
        restarts = rng.randrange(len(buckets)) if rng.random() < habits.restarts else -1
        notices = rng.randrange(restarts, len(buckets)) if restarts >= 0 else -1
        for number, bucket in enumerate(buckets):
            if bucket.pieces:
                threads.sleep(rng.expovariate(len(buckets) / self._pace))
            if number == raises:
                raise _RaisedError
            self._compute(bucket, off=STALE if number == restarts else 0.0)
            if number < ends:
                average.push(number)
            if number == notices:
                self._again(average, buckets[restarts])
        if raises == len(buckets):
            raise _RaisedError

    def _again(self, average: OpenAverage, bucket: Bucket) -> None:
        """The gradients of ``bucket`` were not complete after all."""
        self._process.threads.sleep(self._rng.choice([0.0, 1.0, 4.0]) * self._rng.expovariate(1.0 / self._pace))
        average.restart()
        self._compute(bucket)

    def _compute(self, bucket: Bucket, off: float = 0.0) -> None:
        for piece in bucket.pieces:
            if piece.start == 0:
                owner = self._owners[piece.index]
                if owner.grad is None:
                    owner.grad = torch.zeros_like(owner)
                with torch.no_grad():
                    owner.grad[self._process.index] = self.token * (piece.index + 1) + off

    def _step(self, call: Call) -> None:
        if self._rng.random() < 0.5:
            self._process.threads.sleep(self._rng.uniform(0.0, self._habits.thinks))
        chance = Random(f"{self._process.jobs.seed} {call.number}")
        clips, unseen = chance.random() < self._habits.clips, call.veto and chance.random() < self._habits.unseen
        for owner, parameter in zip(self._owners, self.parameters, strict=True):
            assert owner.grad is not None
            if clips:
                (owner.grad.data if unseen else owner.grad).mul_(0.5)
                if self._rng.random() < 0.1:
                    self._process.threads.sleep(self._rng.uniform(0.0, 0.01))
            self._apply(parameter, owner.grad)
        every = self._habits.reorder
        if every and call.number % every == 0:
            generator = Random(f"{self._process.jobs.seed} order {call.number}")
            self.order.copy_(torch.tensor(generator.sample(range(len(self._owners)), len(self._owners))))

    def _layout_now(self) -> Layout:
        order = tuple(self.order.tolist())
        if order not in self._layouts:
            layout = lay_out_in_order("average", self._specs, order, *self._sizes)
            if self._bare:  # as if the first bucket were large
                layout = replace(layout, buckets=(Bucket(torch.uint8, 0, "SUM", ()), *layout.buckets), spares=2)
            self._layouts[order] = layout
        return self._layouts[order]


class _Calls:
    """``FTLib`` as open averages see it (``CarriesOut``)."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def begin_open(self, call: OpenCall) -> bool:
        """See ``CarriesOut``."""
        process = self._process
        if not process.call_lock.try_open(call.layout.text):
            return False
        opened = False
        try:
            opened = process.engine.open(call)
        finally:
            if not opened:
                process.call_lock.end_open()
        process.jobs.promises.opened(opened)
        return opened

    def advance_open(self, complete: int) -> None:
        """See ``CarriesOut``."""
        self._process.engine.advance(complete)

    def restart_open(self) -> None:
        """See ``CarriesOut``."""
        self._process.engine.restart()

    def finish_open(self, call: OpenCall, *, opened: bool) -> Status:
        """See ``CarriesOut``."""
        process = self._process
        call.provide_all()
        carry_out = functools.partial(process.engine.run, call)
        with torch.no_grad():
            if opened:
                return process.call_lock.finish_open(carry_out, lambda: None)
            return process.call_lock.take(call.layout.text, carry_out, lambda: None)

    def abandon_open(self) -> None:
        """See ``CarriesOut``."""
        try:
            self._process.engine.abandon()
        finally:
            self._process.call_lock.end_open()
