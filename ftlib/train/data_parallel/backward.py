"""One backward pass after the other: gradients are counted down by hooks, averaged at its end at the latest.

A pass begins when backward reaches an output of ``forward`` (or, if it reached none, the first parameter): there the callback
for its end is queued, since it then runs after everything else, re-entrant checkpoints included. The average is opened with the
first gradient. Where backward fails, the engine drops the callback uncalled, before the program's ``except`` clause runs.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.autograd import profiler

from consensus import CarefulLogger

from ...common.devices import Device, device_at
from ...common.units import size
from ...core.engine.open_average import OpenAverage
from ...core.tensors.compression.compression import Compression
from ...core.tensors.layout import Layout
from ...core.tensors.norms import NO_NORMS, Norms
from ...errors import ConfigError
from ...ftlib import FTLib
from ...status import Status
from ..backward_end import at_end_of_backward, within_backward, within_checkpoint
from ..share import NextShare
from ..wrapped import Outcomes
from .countdown import Countdown
from .outputs import reaches
from .ready_order import ReadyOrder
from .room import FormerGradients
from .trained import Trained
from .used import Used

logger = CarefulLogger("ftlib")

_IDLE, _BEGUN, _OPEN = 0, 1, 2
"""Between passes; backward has begun; the average has been opened. Plain numbers, as hooks compare them."""
_LARGE = 1 << 18
"""Bytes from which on a gradient is staged as soon as it is there. Of smaller ones whole buckets stay in the cache for long."""
_POLLED = 8
"""So many gradients after the last one that did, one looks whether communication has failed or may go on. A look takes 2 us,
all else that the hook does 0.3 us; so a parameter costs 0.6 us."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the program chose."""

    bucket_bytes: int
    first_bytes: int
    views: bool
    static: bool
    find_unused: bool
    compression: Compression | None


class Backward:
    """The passes of one wrapped module. Used by the thread that runs backward."""

    def __init__(self, ft: FTLib, module: nn.Module, trained: Trained, options: Options, outcomes: Outcomes) -> None:
        """``outcomes`` is told how each pass ended."""
        self._ft = ft
        self._module = module
        self._trained = trained
        self._options = options
        self._outcomes = outcomes
        self._order = ReadyOrder(ft)
        self._queue = _QUEUES.setdefault(ft, [])
        count = len(trained.all)
        self._countdown = Countdown(count + 1)  # the last one: the flags of used parameters
        self._large = [-1] * (count + 1)
        """By number: the index in the layout of a parameter whose gradient is staged as soon as it is there; else -1."""
        self._used = Used() if options.find_unused else None
        self._hooks: dict[int, torch.utils.hooks.RemovableHandle] = {}
        self._registered: list[Mapping[int, Any]] = []
        """All hooks of each of these parameters, the program's included."""
        self._layout: Layout | None = None
        self._key = b""
        """Of the order that ``_layout`` has."""
        self._laid_out = False
        """True if the countdown is of ``_layout``."""
        self._learned = False
        """True once a pass has shown how often each gradient comes."""
        self._phase = [_IDLE]
        self._armed = False
        """True if a gradient begins a pass, though backward reached no output."""
        self._versions: list[int] = []
        """How often each trained parameter had been changed when the pass began, as torch counts it."""
        self._roots: list[Any] = []
        """The nodes of the graph at which backward entered the module."""
        self._average: OpenAverage | None = None
        """The present average; between passes the last one, which keeps the memory of its gradients for the next."""
        self._pushed = 0
        self._unpolled = [_POLLED]
        """How many gradients may come before one looks at what is under way."""
        self._early = False
        """True while buckets may be pushed before the end."""
        self._together = True
        """True if all gradients of ``_layout`` are in one place, and as far as is known on one stream."""
        self._devices: list[Device] = []
        """That place, if it is a device."""
        self._stream: object = None
        """The stream on which the first gradient of this pass came, there."""
        self._room = FormerGradients()
        self._viewing = False
        """True if gradients become views of the present average, or are of the last one."""
        self._clips = False
        """True if the program has asked for the norms of the last average."""
        self._share = NextShare(ft, self._check)
        self._views_told = not options.views

    # --- outside of backward -------------------------------------------------------------------------------------------

    def prepare(self) -> bool:
        """Forward begins, and backward will average; False if nothing is trained."""
        if self._phase[0] != _IDLE and not self.computes_again:
            self.failed()
        self.look()
        self._armed = bool(self._trained.numbers)
        return self._armed

    @property
    def computes_again(self) -> bool:
        """True if forward runs within backward, as checkpoints do."""
        return within_backward()

    def disarm(self) -> None:
        """Forward begins, and backward will not average."""
        self._armed = False

    def weigh(self, weight: float, batches: int) -> None:
        """Of the next average."""
        self._share.say(weight, batches)

    def look(self) -> None:
        """Take account of parameters that were frozen, or are trained again."""
        changed = self._trained.look()
        if changed is None:
            return
        for number in self._trained.numbers:
            if number not in self._hooks:
                hook = self._hook(number)
                parameter = self._trained.all[number]
                handle = parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
                self._hooks[number] = handle
                self._registered.append(handle.hooks_dict_ref())
        self._order.concern(len(self._trained.numbers), self._trained.digest())
        self._countdown.forget()
        self._layout, self._learned = None, False
        if changed:
            logger.info("the buckets of gradients are laid out again, as other parameters are trained: %s", changed)

    def _check(self) -> bytes:
        """That of the next average; empty if nothing is trained."""
        self.look()
        return self._lay_out().check if self._trained.numbers else b""

    def room(self) -> FormerGradients | None:
        """Where ``clip`` may write, as gradients are views of an average; None if they may be changed in place."""
        average = self._average
        if average is None or not self._viewing:
            return None
        inputs = zip(self._trained.numbers, average.inputs, strict=False)
        return self._room.of({number: gradient for number, gradient in inputs if gradient is not None})

    def former_gradients(self) -> Mapping[int, torch.Tensor] | None:
        """See ``Wrapped``."""
        average, trained = self._average, self._trained
        if average is None or not self._viewing:
            return None
        inputs = zip(trained.numbers, average.inputs, strict=False)
        return {id(trained.all[number]): gradient for number, gradient in inputs if gradient is not None}

    def norms(self) -> Norms:
        """The norms of the last average's gradients, as far as they are known; the next average will have them."""
        self._clips = True
        return NO_NORMS if self._average is None else self._average.norms

    def detach(self) -> None:
        """Remove the hooks."""
        for handle in self._hooks.values():
            handle.remove()
        self._hooks.clear()
        self._registered.clear()

    # --- in backward ---------------------------------------------------------------------------------------------------

    def reached(self, _gradient: torch.Tensor) -> None:
        """Backward has reached an output of the module."""
        if self._phase[0] == _IDLE:
            self._begin()
        if self._phase[0] == _BEGUN:
            self._roots.append(torch._C._current_autograd_node())  # noqa: SLF001 - the only way to ask

    def accumulates(self, _gradient: torch.Tensor) -> None:
        """Backward has reached an output of the module, and will not average."""
        if self._phase[0] == _IDLE:
            self._keep_results()

    def failed(self) -> None:
        """There will be no more gradients; or a callback of the program's has raised once they were averaged."""
        opened = self._phase[0] == _OPEN
        average = self._average if opened else None
        status = None if average is None else average.status
        self._close(status)
        if average is not None:
            average.abandon()

    def _hook(self, number: int) -> Callable[[torch.Tensor], None]:
        """The hook of one parameter. It runs for every gradient: nothing here that does not have to be."""
        phase, countdown = self._phase, self._countdown
        remaining, buckets, left, seen = countdown.remaining, countdown.buckets, countdown.left, countdown.seen.append
        opens, odd, complete, large, stage = self._opens, self._odd, self._complete, self._large, self._stage
        unpolled, poll, devices, look_at_stream = self._unpolled, self._poll, self._devices, self._look_at_stream

        def hook(_parameter: torch.Tensor) -> None:
            if phase[0] != _OPEN and not opens():
                return
            if devices:
                look_at_stream()
            count = remaining[number] - 1
            remaining[number] = count
            if count:
                odd(number, count)
                return
            seen(number)
            for bucket in buckets[number]:
                left[bucket] -= 1
                if not left[bucket]:
                    complete(bucket)
                elif large[number] >= 0:
                    stage(bucket, large[number])
            unpolled[0] -= 1
            if not unpolled[0]:
                poll()

        return hook

    def _opens(self) -> bool:
        """A gradient came while no average is open: open one, if this is a pass."""
        ordered = True
        if self._phase[0] == _IDLE:
            if not self._armed:
                return False
            if within_checkpoint():
                raise ConfigError(
                    "backward has reached parameters within a re-entrant checkpoint, but no tensor that forward returned: its "
                    "end cannot be seen there; use checkpoint(..., use_reentrant=False), or return the tensors from forward"
                )
            ordered = self._begin()
        self._open(early=ordered)  # else hooks of the program's may still change the gradient that has come
        return True

    def _odd(self, number: int, count: int) -> None:
        """A gradient came that is not the last one, or one more than was expected."""
        if count < 0 and any(bucket < self._pushed for bucket in self._countdown.buckets[number]):
            self._early = False
            if self._average is not None:
                self._average.restart()

    def _complete(self, bucket: int) -> None:
        """All gradients of ``bucket`` are there."""
        if bucket == self._pushed and self._early:
            self._push()
        else:
            self._poll()

    def _poll(self) -> None:
        """Look at what is under way: the others wait for this member's word when another one has died."""
        self._unpolled[0] = _POLLED
        if self._early and self._average is not None:
            self._average.poll()

    def _stage(self, bucket: int, index: int) -> None:
        """A large gradient is there, others of its bucket are not."""
        if self._early and self._average is not None:
            self._average.stage(bucket, index)

    def _look_at_stream(self) -> None:
        """A bucket is gathered on the stream of its last gradient, which knows nothing of other streams: where there are some,
        everything waits for the end of backward, when all are in order, from now on.
        """
        stream = self._devices[0].stream_id
        if self._stream is None:
            self._stream = stream
        elif stream != self._stream and self._early:
            self._early = self._together = False
            logger.info("gradients come on several streams: they are averaged at the end of backward")
            if self._average is not None:
                self._average.restart()

    def _begin(self) -> bool:
        """A pass begins. False if hooks of the program's would have come after those here, up to now."""
        ordered = self._come_last()
        self._keep_results()
        self._average = None  # and with it the memory of the last gradients
        self._room.of({})
        self._roots.clear()
        self._versions[:] = [owner._version for owner in self._trained.owners]  # noqa: SLF001 - no public name
        self._phase[0] = _BEGUN
        self._queue.append(self)
        at_end_of_backward(self._end, self.failed, last=self._trained.sharded)
        return ordered

    def _come_last(self) -> bool:
        """Let hooks of the program's run before those here, as they may change what is about to be sent: torch calls them in
        the order in which they were registered. True if they did so before.
        """
        if max(map(len, self._registered), default=0) < 2:
            return True  # no parameter has others
        ordered = True
        for handle in self._hooks.values():
            hooks = handle.hooks_dict_ref()
            if hooks is not None and len(hooks) > 1 and handle.id in hooks and next(reversed(hooks)) != handle.id:
                hooks[handle.id] = hooks.pop(handle.id)  # torch goes by the order of keys, not by that of an OrderedDict
                ordered = False
        return ordered

    def _keep_results(self) -> None:
        """Where gradients are still views of the last average, backward would add to it in place: let it add to copies, as
        another worker may have to get that average from here.
        """
        left = [(number, owner, gradient) for number, owner in self._trained.pairs if (gradient := owner.grad) is not None]
        room = self.room() if left else None
        if room is None:
            return
        with torch.no_grad():
            for number, owner, gradient in left:
                if type(gradient) is not torch.Tensor:  # sharded: it has views inside
                    owner.grad = gradient.clone()
                elif gradient._base is not None:  # noqa: SLF001 - no view is none of the average
                    owner.grad = room.room(number, gradient).copy_(gradient)

    def _open(self, *, early: bool = True) -> None:
        """The first gradient is there. Buckets may be on their way from now on, or the average waits for the end: where tensors
        are sharded or in several places, where the order is to be agreed on before, and behind another model's average, as all
        members must have the averages of one backward in the same order.
        """
        layout, trained = self._lay_out(), self._trained
        if not self._laid_out:
            numbers = [*trained.numbers, len(trained.all)]
            self._countdown.lay_out([[numbers[piece.index] for piece in bucket.pieces] for bucket in layout.buckets])
            self._large[:] = [-1] * len(self._large)
            for bucket in layout.buckets:
                for piece in bucket.pieces:
                    if piece.shape is not None and (piece.stop - piece.start) * bucket.dtype.itemsize >= _LARGE:
                        self._large[numbers[piece.index]] = piece.index
            self._laid_out = True
        self._countdown.begin()
        self._pushed = 0
        self._phase[0] = _OPEN
        self._stream = None
        self._early = early and self._queue[0] is self and self._together and not (trained.sharded or self._order.due)
        if self._early:
            self._make()
            self._push()

    def _make(self) -> None:
        """Make the average."""
        options = self._options
        views = options.views and self._ft.has_state
        if not views and not self._views_told:
            self._views_told = True
            logger.info(
                "gradient_as_bucket_view: gradients are copied, as no state is registered, with which another worker could be "
                "helped once they have been changed in place; call register_state before the first backward"
            )
        self._viewing = views
        weight, batches = self._share.get()
        self._average = self._ft.open_average(
            self._owners(),
            self._lay_out(),
            self._lay_out,
            module=self._module,
            weight=weight,
            batches=batches,
            views=views,
            norms=views and self._clips,  # copies may be changed in ways that nobody sees
        )
        self._clips = False

    def _lay_out(self) -> Layout:
        """The buckets, in the order that is agreed by now."""
        key = self._order.key
        if self._layout is None or key != self._key:
            order, owners, options = self._order.order(), self._owners(), self._options
            order += range(len(order), len(owners))  # the flags
            self._layout = self._ft.lay_out_average(
                self._module,
                owners,
                order,
                bucket_bytes=options.bucket_bytes,
                first_bytes=options.first_bytes,
                compression=options.compression,
                purpose=self._order.model,
            )
            self._key, self._laid_out = key, False
            self._locate(self._layout)
        return self._layout

    def _locate(self, layout: Layout) -> None:
        """Note where the gradients are."""
        count = len(self._trained.owners)
        places = {bucket.place for bucket in layout.buckets for index in bucket.indices if index < count}
        self._together = len(places) <= 1
        self._devices[:] = [device_at(place) for place in places if place] if self._together else []

    def _owners(self) -> list[nn.Parameter]:
        owners = self._trained.owners
        return owners if self._used is None else [*owners, self._used.flags(len(owners))]

    def _push(self) -> None:
        """Push the next buckets, as many as are complete."""
        left = self._countdown.left
        self._unpolled[0] = _POLLED
        while self._pushed < len(left) and not left[self._pushed]:
            self._pushed += 1  # at once: a push may let other code run
            self._push_one(self._pushed - 1)

    def _push_one(self, number: int) -> None:
        average = self._average
        assert average is not None
        if profiler._is_profiler_enabled:  # noqa: SLF001 - what torch's own optimizers ask
            with profiler.record_function(f"ftlib bucket {number} ({size(average.layout.buckets[number].nbytes)})"):
                average.push(number)
        else:
            average.push(number)

    # --- its end -------------------------------------------------------------------------------------------------------

    def _end(self) -> None:
        """All gradients that come in this backward are there."""
        if self._phase[0] == _BEGUN and reaches(self._roots, self._trained.ids):
            self._leave()  # parameters were there, but asked for nothing: torch.autograd.grad
            return
        try:
            if self._phase[0] == _BEGUN:
                self._open()
            if self._average is None:
                self._order.agree()
                self._make()
            self._check_none_is_applied()
            status = self._finish()
        except BaseException:
            self.failed()
            raise
        self._close(status)

    def _check_none_is_applied(self) -> None:
        """ConfigError names a parameter to which a hook of the program's has applied this worker's own gradient, and dropped
        it. That its version has changed says little alone: state may have been loaded since.
        """
        trained, seen = self._trained, self._countdown.seen
        for (number, parameter), owner, version in zip(trained.pairs, trained.owners, self._versions, strict=False):
            if parameter.grad is None and owner._version != version and number in seen:  # noqa: SLF001
                raise ConfigError(
                    f"parameter {trained.names[number]} was changed within backward, by an optimizer in a hook of the "
                    "program's, and its gradient was dropped before it was averaged: each worker's weights would go their own "
                    "way; let backward end, and call the optimizer's step() after it"
                )

    def _finish(self) -> Status:
        trained, used, average = self._trained, self._used, self._average
        assert average is not None
        self._countdown.remaining[-1] -= 1  # the flags come now
        if used is not None:
            used.enter(trained.pairs)
        trained.lend()
        for number in range(self._pushed, len(average.layout.buckets)):
            self._push_one(number)
        try:
            if profiler._is_profiler_enabled:  # noqa: SLF001
                with profiler.record_function("ftlib finish"):
                    return average.finish()
            return average.finish()
        finally:  # also where a callback of the program's raises, as the others have this average, too
            self._finished(average.status)

    def _finished(self, status: Status | None) -> None:
        """The average has ended; None: it has not."""
        trained, used = self._trained, self._used
        trained.take_back(averaged=status is Status.SUCCESS)
        if used is not None and status is Status.SUCCESS:
            used.leave(trained.pairs)
        if status is not None and status is not Status.ABORT:
            self._learn()
        if status:  # else a member may have declined it, and would not know that
            self._order.finished(self._countdown.seen, trained.numbers)

    def _learn(self) -> None:
        """This pass shows how often each gradient comes: later ones wait for as many."""
        countdown, static = self._countdown, self._options.static and not self._learned
        if static or min(countdown.remaining) < 0:
            countdown.learn(all_of=static)
        self._learned = True

    def _close(self, status: Status | None) -> None:
        """The pass is over. ``status``: of its average, also where a callback of the program's has raised after that; None: it
        failed before.
        """
        if status is not None:
            self._share.used()
        self._leave()
        self._armed = False
        self._outcomes.ended(status)

    def _leave(self) -> None:
        self._phase[0] = _IDLE
        self._roots.clear()
        if self in self._queue:
            self._queue.remove(self)


_QUEUES: weakref.WeakKeyDictionary[FTLib, list[Backward]] = weakref.WeakKeyDictionary()
"""By worker: the models whose passes are under way, in the order in which they began, which is that of their ends."""
