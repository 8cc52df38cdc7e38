"""A simulated program whose averages are open calls: its gradients come one by one, and buckets are pushed meanwhile.

All programs of a job make the same calls. When a member enters one is its own affair: in the middle of backward, at the end, or
at first not at all, because backward raises. The order of the buckets is registered state and changes now and then.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import torch

from ftlib import Compression
from ftlib.core.calls.call import Call
from ftlib.core.calls.open_call import OpenCall
from ftlib.core.engine.open_average import CarriesOut, OpenAverage
from ftlib.core.tensors.layout import Bucket, Layout, lay_out_in_order
from ftlib.status import Status

from ..groups.compressing import Halving
from ..peers.habits import Habits
from ..peers.job import Colleague
from .trainer import Trainer

STALE = 0.5
"""What a gradient is off by, before it turns out not to be complete: no contribution has such a fraction."""


class _RaisedError(Exception):
    """Backward raises."""


class Model:
    """One of a program's models: what it has trained so far, the gradients' places, and the order of the buckets."""

    def __init__(self, parameters: Sequence[torch.Tensor], own: Random, compression: Compression | None = None) -> None:
        """``own``: draws alike at all members. ``compression``: of its averages, which are of float32 then."""
        dtype = torch.float64 if compression is None else torch.float32
        count, lanes = len(parameters), parameters[0].numel()
        self.parameters = parameters
        self.owners = [torch.nn.Parameter(torch.zeros(lanes, dtype=dtype)) for _ in parameters]
        self.order = torch.arange(count)
        row = lanes * dtype.itemsize
        self._sizes = own.choice([row, row, row, 2 * row, row // 2]), own.choice([row, row, row // 2])
        self._bare = own.random() < 0.3
        self._specs = [(dtype, (lanes,))] * count
        self._compression = compression
        self._layouts: dict[tuple[int, ...], Layout] = {}
        self.average: OpenAverage | None = None
        """Kept until the next pass."""

    def begin(self, call: OpenCall, calls: CarriesOut) -> OpenAverage:
        """The next average."""
        self.average = OpenAverage(call, calls)
        return self.average

    def layout(self) -> Layout:
        """As the order is now."""
        order = tuple(self.order.tolist())
        if order not in self._layouts:
            layout = lay_out_in_order("average", self._specs, order, *self._sizes, compression=self._compression)
            if self._bare and self._compression is None:  # as if the first bucket were large
                buckets = (Bucket(torch.uint8, 0, "SUM", ()), *layout.buckets)
                layout = replace(layout, buckets=buckets, spares=2, signature=bytes(each ^ 255 for each in layout.signature))
            self._layouts[order] = layout
        return self._layouts[order]


class OpenTrainer(Trainer):
    """See the module."""

    def __init__(self, process: Colleague, rng: Random) -> None:
        super().__init__(process, rng)
        jobs = process.jobs
        self._habits = jobs.habits or Habits()
        self._calls = _Calls(process)
        own = Random(f"{jobs.seed} layouts")
        self._compression = Halving() if self._habits.compressed else None
        self._model = Model(self.parameters, own, self._compression)
        """The one whose turn it is."""
        drawn = own.choice([0.0, 0.0, 0.25])
        self._heavy = drawn if self._habits.heavy is None else self._habits.heavy
        self._views = own.random() < self._habits.views
        self._hurries = Random(f"{jobs.seed} hurries {process.index}")

    # What ``register_state`` is given

    @property
    def _registered(self) -> Model:
        """The model whose order of buckets that is."""
        return self._model

    def state_dict(self) -> dict[str, Any]:
        """The order of the buckets as well."""
        return super().state_dict() | {"order": self._registered.order}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a donor's."""
        super().load_state_dict(state)
        self._registered.order.copy_(state["order"])

    # The program

    def _perform(self) -> tuple[Status, Call]:
        while True:
            self._begin_pass()
            self._zero()
            call = self._call()
            average = self._model.begin(call, self._calls)
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
        model = self._model
        return OpenCall(
            model.layout(),
            model.owners,
            weight=self.weight,
            by_samples=False,
            batches=int(self._draws()),
            veto=self._process.jobs.veto,
            views=self._views,
            relaid=model.layout,
            name="parameter {}".format,
            remark=str,
        )

    def _zero(self) -> None:
        """``zero_grad``, of either kind."""
        for owner in self._model.owners:
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
        dawdles = rng.randrange(len(buckets)) if habits.dawdles and rng.random() < habits.dawdles else -1
        for number, bucket in enumerate(buckets):
            if number == dawdles:
                threads.sleep(rng.uniform(0.0, 0.5))
            if bucket.pieces:
                threads.sleep(rng.expovariate(len(buckets) / self._pace))
            if number == raises:
                raise _RaisedError
            self._compute(bucket, off=STALE if number == restarts else 0.0)
            for piece in bucket.pieces:
                if piece.shape is not None and self._hurries.random() < 0.5:
                    average.stage(number, piece.index)
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
                owner = self._model.owners[piece.index]
                if owner.grad is None:
                    owner.grad = torch.zeros_like(owner)
                with torch.no_grad():
                    owner.grad[self._process.index] = self.token * (piece.index + 1) + off

    def _step(self, call: Call) -> None:
        if self._rng.random() < 0.5:
            self._process.threads.sleep(self._rng.uniform(0.0, self._habits.thinks))
        self._apply_all(self._model, self.clock(call))

    def _apply_all(self, model: Model, clock: int) -> None:
        """Apply the averages in the gradients of ``model``, as the ``clock``-th."""
        seed, habits = self._process.jobs.seed, self._habits
        chance = Random(f"{seed} {clock}")
        clips, unseen = chance.random() < habits.clips, self._process.jobs.veto and chance.random() < habits.unseen
        for owner, parameter in zip(model.owners, model.parameters, strict=True):
            assert owner.grad is not None
            if clips:
                (owner.grad.data if unseen else owner.grad).mul_(0.5)
                if self._rng.random() < 0.1:
                    self._process.threads.sleep(self._rng.uniform(0.0, 0.01))
            self._apply(parameter, owner.grad)
        if habits.reorder and clock % habits.reorder == 0:
            generator, count = Random(f"{seed} order {clock}"), len(model.owners)
            model.order.copy_(torch.tensor(generator.sample(range(count), count)))


class _Calls:
    """``FTLib`` as open averages see it (``CarriesOut``)."""

    def __init__(self, process: Colleague) -> None:
        self._process = process

    def begin_open(self, call: OpenCall) -> bool:
        """See ``CarriesOut``."""
        process = self._process
        if not process.call_lock.try_open(call.layout.text, call):
            return False
        try:
            opened = process.open(call)
        except BaseException:
            self.abandon_open(call)
            raise
        if not opened:
            process.call_lock.end_open()
        process.jobs.promises.opened(opened)
        process.trainer.open = call if opened else None
        return opened

    def advance_open(self, complete: int) -> None:
        """See ``CarriesOut``. A failure that has come by now is reported when this returns."""
        attempt = self._process.engine._open._attempt
        failed = attempt is not None and any(getattr(work, "error", None) is not None for work, _ in attempt._window)
        self._process.engine.advance(complete)
        if attempt is not None and failed:
            self._process.jobs.promises.failed_in_backward(self._process, attempt.session)

    def stage_open(self, number: int, index: int) -> None:
        """See ``CarriesOut``. As ``advance_open``."""
        attempt = self._process.engine._open._attempt
        failed = attempt is not None and any(getattr(work, "error", None) is not None for work, _ in attempt._window)
        self._process.engine.stage(number, index)
        if attempt is not None and failed and attempt.failure is not None:
            self._process.jobs.promises.failed_in_backward(self._process, attempt.session)

    def restart_open(self) -> None:
        """See ``CarriesOut``."""
        self._process.engine.restart()

    def finish_open(self, call: OpenCall, *, opened: bool) -> Status:
        """See ``CarriesOut``."""
        process = self._process
        process.trainer.open = None
        call.provide_all()
        carry_out = functools.partial(process.run, call)
        with torch.no_grad():
            if opened:
                return process.call_lock.finish_open(carry_out, lambda: None)
            return process.call_lock.take(call.layout.text, carry_out, lambda: None)

    def abandon_open(self, call: OpenCall) -> None:
        """See ``CarriesOut``."""
        if not self._process.call_lock.keeps_open(call):
            return
        self._process.trainer.open = None
        attempt = self._process.engine._open._attempt
        try:
            self._process.abandon()
        finally:
            self._process.call_lock.end_open()
        if attempt is not None and not self._process.threads.over:  # else it has died in there
            self._process.jobs.promises.failed_in_backward(self._process, attempt.session)
