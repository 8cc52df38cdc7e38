"""The calls of ``FTLib``: makes a ``Call`` of a program's arguments, and runs one call at a time."""

from __future__ import annotations

import functools
import math
import operator
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar, overload

import torch

from consensus import CarefulLogger, View

from .common.devices import device_at
from .common.memory import bytes_of
from .core.calls.call import PREFACE, Call, Kind
from .core.calls.follow import Declined
from .core.calls.learner import NoFollowing
from .core.calls.open_call import OpenCall
from .core.engine.call_lock import CallLock
from .core.engine.callbacks import Listeners
from .core.engine.catching_up import CatchUp
from .core.engine.engine import Engine
from .core.engine.open_average import OpenAverage
from .core.engine.reminders import Reminders
from .core.engine.whole_average import WholeAverage
from .core.execute.inner import PendingCall
from .core.execute.unit import WITHIN, Running, Unit
from .core.plane.phase import Phase
from .core.plane.plane import Plane
from .core.plane.step_times import Straggler
from .core.tensors.compression.compression import Compression
from .core.tensors.compression.names import compression_of
from .core.tensors.device_copies import assign, duplicate
from .core.tensors.layout import Layout
from .core.tensors.presentation import Inputs
from .core.tensors.targets import Layouts, Targets, check_writable, targets_of
from .data.unregistered import READ
from .errors import ConfigError, Excluded, FTLibError, JobEnded
from .lifecycle.faults import Faults
from .lifecycle.open_turns import OpenTurns
from .lifecycle.rejoin import Rejoin
from .state.agreed import Agreed
from .status import Status

logger = CarefulLogger("ftlib")

Result = TypeVar("Result")

_UNCOMPRESSED = "compression= does not work within execute: leave it out there, or average outside of execute"

_TRIES = 8
"""How often it is made again after the worker that had rank 0 was lost."""
_OPERATIONS = ("MEAN", "SUM", "MIN", "MAX", "PRODUCT")
LIGHTEST, HEAVIEST = 1e-12, 1e12
"""Range of a weight, besides 0: tensors are multiplied by the weight in float32, which holds 1e-38 to 1e38."""

MOST_BATCHES = 65535
"""Most batches that one call may use up: rank records of the trailer have 16 bits for such counts."""


class Calls(ABC):
    """The calls of a program's training loop. Thread-safe: calls of several threads are carried out one by one."""

    def __init__(
        self,
        lives: Rejoin,
        call_lock: CallLock,
        layouts: Layouts,
        listeners: Listeners,
        *,
        veto: bool,
        faults: Faults | None = None,
    ) -> None:
        """``listeners``: the callbacks for views. ``veto``: whether no member applies an average with inf or nan. ``faults``:
        those that are ordered for calls; None where none may be.
        """
        self.faults = faults
        self._lives = lives
        self._call_lock = call_lock
        self._layouts = layouts
        self._veto = veto
        self._listeners = listeners
        self._on_straggler: list[Callable[[Straggler], None]] = []
        self._untold: list[Callable[[], None]] = []
        """Callbacks with their views that are still to be run."""
        self._unit: Unit | None = None
        """The unit of the thread that has the call lock."""
        self._told = False
        """Whether the warning that there is no gradient was logged."""
        self._trains = False
        """Whether gradients were averaged."""
        self._on_decline: list[Callable[[bytes], None]] = []
        self._prefaces: list[weakref.WeakMethod[Callable[[], list[torch.Tensor]]]] = []
        self._counting: list[str] = []
        """What of the program counts its calls, and has to know of each, by name."""
        self._reminders = Reminders()
        self.agreed = Agreed()
        """Values that the members agreed upon; they travel with the registered state."""
        self._inputs = Inputs()
        self._open_turns = OpenTurns(lives, call_lock, self._finish_open, faults)
        self._told_copies = False
        """Whether the log shows why gradients are no views."""

    @property
    def _plane(self) -> Plane:
        return self._lives.life.plane

    @property
    def _engine(self) -> Engine:
        return self._lives.life.engine

    @overload
    def allreduce_average(
        self,
        target: Any,
        *,
        weight: float | None = None,
        batches: int = 1,
        views: bool = False,
        compression: str | Compression | None = None,
        wait: Literal[True] = True,
    ) -> Status: ...

    @overload
    def allreduce_average(
        self, target: Any, *, weight: float | None = None, batches: int = 1, views: bool = False, wait: Literal[False]
    ) -> PendingCall: ...

    def allreduce_average(
        self,
        target: Any,
        *,
        weight: float | None = None,
        batches: int = 1,
        views: bool = False,
        compression: str | Compression | None = None,
        wait: bool = True,
    ) -> Status | PendingCall:
        """Average over all members, weighted: ``sum(weight * tensor) / sum(weight)``.

        ``target``: a module or parameters (their ``.grad``; None contributes zeros and receives the average; frozen ones are
        left out), other tensors or numpy arrays (in place), one or several. ``weight``: 0, or 1e-12 to 1e12; by default 1, or
        with an ``ElasticSampler`` the number of samples. Returns FAIL, and touches nothing, if all weights are 0 or any result
        is inf or nan.

        ``batches``: how many of the ``ElasticSampler``'s batches this call uses up, 0 to 65535: several if gradients are
        accumulated over them, 0 in a second average for the same batch. A filler of the sampler weighs 0, whatever ``weight``
        is.

        ``views``: gradients become views of the result, which saves a copy (docs/data_parallel.md#views); where no state is
        registered, and within ``execute``, they are copied.

        ``compression``: how float32 values are sent: "bf16", "fp16", "int8", "fp8", ``PowerSGD(rank=4)``, or a ``Compression``
        of the program's own; not within ``execute``. See ``docs/calls.md#compression``.

        ``wait=False``, within ``execute`` only: return at once; ``wait()`` of the returned object gives the status.
        """
        compressed = None if compression is None else compression_of(compression)
        if compressed is not None and self._execution is not None:
            raise ConfigError(_UNCOMPRESSED)
        if not wait:
            self._may_go_on()
        usual = weight is None and type(batches) is int and batches == 1
        share = 1.0 if usual else checked_share(weight, batches)
        targets = targets_of(target)
        self._trains = self._trains or (bool(targets.owners) and isinstance(targets.owners[0], torch.nn.Parameter))
        if not self._told and targets.owners and targets.sources[0] is None:
            self._look_for_gradients(targets)
        views = views and self._may_show(targets)
        layout = self._layout("average", targets, "SUM", mean=True, views=views, compression=compressed)
        call = Call(
            Kind.AVERAGE,
            layout,
            targets.sources,
            owners=targets.owners,
            weight=share,
            by_samples=weight is None,
            batches=batches,
            divide=True,
            veto=self._veto,
            views=views,
            name=targets.name,
            remark=targets.remark,
        )
        if views:
            self._inputs.keep(targets.owners[0], targets.sources)
        return self._run(call) if wait else self._begin(call)

    def average_of(
        self, parameters: Sequence[torch.Tensor], *, weight: float | None, batches: int, norms: bool
    ) -> WholeAverage:
        """The call that ``allreduce_average`` makes of the parameters' gradients; it is not begun yet. ``norms``: those of the
        averages are wanted, too.
        """
        share = checked_share(weight, batches)
        targets = targets_of(parameters)
        self._trains = True
        if not self._told:
            self._look_for_gradients(targets)
        call = Call(
            Kind.AVERAGE,
            self._layout("average", targets, "SUM", mean=True),
            targets.sources,
            owners=targets.owners,
            weight=share,
            by_samples=weight is None,
            batches=batches,
            divide=True,
            veto=self._veto,
            norms=norms,
            name=targets.name,
            remark=targets.remark,
        )
        return WholeAverage(call, self._run)

    def check_of(self, parameters: Sequence[torch.Tensor]) -> bytes:
        """The ``Layout.check`` of ``average_of`` these."""
        return self._layout("average", targets_of(parameters), "SUM", mean=True).check

    @property
    def has_state(self) -> bool:
        """True if the program registered its state."""
        return self._plane.has_state

    def stepped(self, inner: int) -> None:
        """The program has done its ``inner``-th step by itself, between two calls that may be far apart: it does not hang."""
        self._plane.stepped(inner)

    def begin_counting(self, name: str) -> None:
        """From now on ``name`` counts calls of one kind, so the program may decline none. Others may count beside it."""
        self._counting.append(name)

    def end_counting(self, name: str) -> None:
        """``name`` counts no more."""
        self._counting.remove(name)

    @property
    def patience_to_leave(self) -> float | None:
        """Seconds for which a worker that was given notice may go on until its last call ends; None if there was no notice."""
        return self._engine.drain_patience if self._call_lock.says_goodbye else None

    def leave_now(self) -> None:
        """Leave between two calls, as a notice requires: the next one is too far. SystemExit ends the program."""
        self._drained()

    def when_declined(self, callback: Callable[[bytes], None]) -> None:
        """Call ``callback`` for each call that the program has declined, with the ``Layout.check`` of the call that the others
        made; empty where nobody did.
        """
        self._on_decline.append(callback)

    @property
    def data_ends(self) -> bool:
        """True while the registered sampler's epoch is complete, and no other has begun: loops over it end sooner or later."""
        return self._plane.data.complete

    @property
    def data_loops(self) -> int:
        """How many loops over the registered sampler have begun here."""
        return self._plane.data.loops

    @property
    def in_unit(self) -> bool:
        """True within the function of ``execute``."""
        return self._execution is not None

    def lay_out_average(
        self,
        module: torch.nn.Module | None,
        parameters: Sequence[torch.nn.Parameter],
        order: Sequence[int],
        *,
        bucket_bytes: int,
        first_bytes: int,
        compression: str | Compression | None = None,
        purpose: str = "",
    ) -> Layout:
        """The buckets of ``open_average``: ``parameters`` in the given order of indices.

        ``module``: the one of which these are all that are trained; None: they are of no module.
        ``bucket_bytes``, ``first_bytes``: see ``lay_out_in_order``. ``compression``: see ``allreduce_average``. ``purpose``:
        averages for different purposes are different calls, also of equal shapes. ConfigError names a parameter that cannot
        take part.
        """
        targets = Targets([None] * len(parameters), list(parameters), module=module)
        sizes = {"bucket_bytes": bucket_bytes, "first_bytes": first_bytes}
        kind = f"{Kind.AVERAGE.value} {purpose}".strip()
        return self._layouts.in_order(kind, targets, order, compression=compression_of(compression), **sizes)

    def open_average(
        self,
        parameters: Sequence[torch.nn.Parameter],
        layout: Layout,
        relaid: Callable[[], Layout],
        *,
        module: torch.nn.Module | None,
        weight: float | None = None,
        batches: int = 1,
        views: bool = False,
        norms: bool = False,
        draws_beside: int = 0,
        keeps_batches: bool = False,
    ) -> OpenAverage:
        """An average of the parameters' gradients that may be under way before all of them are there.

        ``layout``: of ``lay_out_average``. ``relaid``: returns the layout after registered state was loaded within the call.
        ``views``: on success each ``.grad`` becomes a view of the result, and the gradients that were averaged stay in memory
        until the next average of this module. ``norms``: those of the views are wanted, too. ``draws_beside``: how many batches
        the program draws for later calls meanwhile. ``keeps_batches``: if the call ends unfinished, its batches go back to
        nobody: the program's next average uses them up, besides those drawn since. The rest: see ``allreduce_average``. Nothing
        is begun yet.
        """
        share = checked_share(weight, batches)
        if layout.compression is not None and self._execution is not None:
            raise ConfigError(_UNCOMPRESSED)
        for place in layout.places:
            device_at(place).check_capture()
        targets = Targets([None] * len(parameters), list(parameters), module=module)
        call = OpenCall(
            layout,
            targets.owners,
            weight=share,
            by_samples=weight is None,
            batches=batches,
            veto=self._veto,
            views=views,
            relaid=relaid,
            name=targets.name,
            remark=targets.remark,
            norms=norms,
            draws_beside=draws_beside,
            keeps_batches=keeps_batches,
        )
        self._trains = True
        if views and not self._plane.has_state:
            self._copies()
        return OpenAverage(call, self._open_turns)

    def wait_gradients_ready(self, model: Any = None, params: Any = None) -> Status:
        """Call ``allreduce_average`` by its older name; ``params`` may be numpy arrays."""
        if (model is None) == (params is None):
            raise ConfigError("wait_gradients_ready takes either model= or params=")
        return self.allreduce_average(params if model is None else model)

    @overload
    def allreduce(self, tensor: Any, op: str = "MEAN", *, wait: Literal[True] = True) -> Status: ...

    @overload
    def allreduce(self, tensor: Any, op: str = "MEAN", *, wait: Literal[False]) -> PendingCall: ...

    def allreduce(self, tensor: Any, op: str = "MEAN", *, wait: bool = True) -> Status | PendingCall:
        """Reduce in place over all members: MEAN, SUM, MIN, MAX or PRODUCT. Inf and nan pass through.

        Nan is both minimum and maximum. Sums and products of integers wrap around in their dtype; a bool has no SUM, and its
        PRODUCT is its MIN. ``wait``: see ``allreduce_average``.
        """
        if not wait:
            self._may_go_on()
        if op not in _OPERATIONS:
            raise ConfigError(f"unknown operation {op!r}: choose one of {', '.join(_OPERATIONS)}")
        targets = targets_of(tensor)
        mean = op == "MEAN"
        layout = self._layout(f"allreduce {op}", targets, "SUM" if mean else op, mean=mean)
        call = Call(
            Kind.ALLREDUCE,
            layout,
            targets.sources,
            owners=targets.owners,
            divide=mean,
            name=targets.name,
            remark=targets.remark,
        )
        return self._run(call) if wait else self._begin(call)

    def broadcast(self, tensor: Any, root_rank: int) -> Status:
        """Copy the tensor of ``root_rank`` (a rank of the current view) to all members. FAIL if that member is gone."""
        root = _rank(root_rank)
        return self._broadcast(targets_of(tensor), root, f"broadcast from {root}")[0]

    def _broadcast(self, targets: Targets, root: int, kind: str) -> tuple[Status, Call]:
        layout, rows = self._as_bytes(targets, kind)
        check_writable(targets)
        call = Call(Kind.BROADCAST, layout, rows, root_rank=root, name=targets.name)
        status = self._run(call)
        if status:
            for owner, row in zip(targets.sources, rows, strict=True):
                if owner is not None and not _as_it_is(owner) and row is not None:
                    assign(owner, row.view(owner.dtype).view(owner.shape))
        return status, call

    def _as_bytes(self, targets: Targets, kind: str) -> tuple[Layout, list[torch.Tensor | None]]:
        """What a broadcast sends: the bytes of dense tensors, copied where they are not in order."""
        owners = [source for source in targets.sources if source is not None and source.layout is torch.strided]
        if len(owners) != len(targets.sources):
            raise ConfigError(
                "broadcast: a tensor is sparse or a parameter has no gradient; pass dense tensors, e.g. parameter.data"
            )
        if any(owner.is_quantized for owner in owners):
            raise ConfigError("broadcast: a tensor is quantized, and its scale would not travel: pass tensor.dequantize()")
        whole = [tensor if _as_it_is(tensor) else duplicate(tensor) for tensor in owners]
        rows: list[torch.Tensor | None] = [bytes_of(tensor) for tensor in whole]
        return self._layout(kind, Targets(rows, list(owners)), "SUM"), rows

    def has_preface(self, tensors: Callable[[], list[torch.Tensor]]) -> None:
        """A wrapper makes a ``preface`` now and then. ``tensors``: a method that returns what it would be of by now; none if
        there will be none. It is forgotten with its object.
        """
        self._prefaces = [*(each for each in self._prefaces if each() is not None), weakref.WeakMethod(tensors)]

    def preface(self, tensors: Sequence[torch.Tensor]) -> Status:
        """A call that a wrapper makes before one of the program's: the tensors of rank 0 become those of all members.

        FAIL where nobody got them. Who declines a call of the program's before it has made this one declines both, so after
        that all go on to the program's call. Where rank 0 was lost it is made again, with another one.
        """
        status = Status.FAIL
        for _ in range(_TRIES):
            status, call = self._broadcast(targets_of(tensors), 0, PREFACE)
            if status is not Status.FAIL or call.declined or call.number > self._plane.finished:
                break
        return status

    def _is_preface(self, check: bytes) -> bool:
        """True if a wrapper's preface here has that ``Layout.check``."""
        made = [tensors() for each in self._prefaces if (tensors := each()) is not None]
        return any(self._as_bytes(targets_of(each), PREFACE)[0].check == check for each in made if each)

    def barrier(self) -> Status:
        """Wait until all members are here."""
        return self._run(Call(Kind.BARRIER, self._layout("barrier", Targets([], []), "SUM"), []))

    def vote(self, count: int, *, against: bool) -> tuple[Status, int]:
        """Whether anybody is ``against`` what all are about to do: FAIL then, at all members of all shards.

        Otherwise SUCCESS or NO_NEED, with the sum of ``count`` over the members with this shard. ABORT if this worker has left.
        """
        ballot = torch.tensor([math.inf if against else count], dtype=torch.float64, device="cpu")
        targets = targets_of(ballot)
        # The same rule as that of an average which nobody applies: so it holds across shards, and for results that are adopted.
        call = Call(Kind.VOTE, self._layout(Kind.VOTE.value, targets, "SUM"), targets.sources, owners=targets.owners, veto=True)
        status = self._run(call)
        return status, int(ballot) if status else 0

    def decline(self, *, batches: int = 1) -> Status:
        """Take part in the others' next call with nothing, whatever it is, so that it returns FAIL at all members.

        For a worker that cannot apply the step under way, and may have nothing to average in it. Where all decline, that is all
        of the call. Returns FAIL, too; or ABORT if this worker has left; or SUCCESS if the others had finished the call, which
        happens only to a worker that was in it and left it by an exception. Not while others call ``execute``. Where a step
        has several calls, not as the first call of a worker that joins: it does not know which one that would be. ConfigError
        within the ``with`` block of ``LocalSGD`` and ``DiLoCo``, which count their syncs.

        With ``straggler_deadline`` never SUCCESS. If this worker is late, the others have finished the call without it: what
        they have averaged by then is applied here, as ``register_state`` says, to the parameters of this worker's newest
        average. That is FAIL, as nothing is left to apply. Excluded if they have a result that cannot be applied so.

        ``batches``: how many of the ``ElasticSampler``'s batches it uses up, without a step: as many as the average that it
        declines would have; 0 where the program has got none for it yet, or declines another call.

        FTLibError if this worker cannot take part in the others' call.
        """
        if self._execution is not None:
            raise ConfigError("decline was called within execute: raise an exception there, and no member applies the step")
        if self._counting:
            raise ConfigError(
                f"decline was called within {self._counting[-1]}: its syncs are counted, and who declines one would not know "
                "it; end the with block first, or make the sync"
            )
        _check_count(batches)
        call = Declined(veto=self._veto, batches=batches)
        status = self._decline(call)
        while status is Status.FAIL and (call.preface or (call.others and self._is_preface(call.others))):
            call = Declined(veto=self._veto)
            status = self._decline(call)
        return status

    def _decline(self, call: Declined) -> Status:
        try:
            return self._run(call)
        except NoFollowing as reason:
            raise FTLibError(f"decline: this worker cannot take part in the others' call: {reason}") from None
        finally:  # also where a callback of the program's raises
            if call.status is not None and not call.preface:
                for callback in self._on_decline:
                    callback(call.others)

    def catch_up(self) -> bool:
        """Wait until the registered state is here, so that what follows is computed with it; True if it came just now.

        Call it at the beginning of the loop, or once before it: between two calls, where nothing of the step before is left to
        be done. A member that has the state returns at once, having sent nothing. A joiner is let in, and returns with the
        others' state between two of their calls; from the next one on it counts in full. The others wait in that call until it
        comes, unless their shared state is changed by calls alone (``private=``): then they go on meanwhile. The processes of a
        replica of several return together; the others wait in either case.

        RebuildTimeout if no state comes within ``step_timeout``; ConfigError if none is registered here, or nowhere else.
        False once this worker has left.
        """
        if self._execution is not None:
            raise ConfigError("catch_up was called within execute: call it before")
        plane = self._plane
        if plane.level and plane.phase is not Phase.STOPPED:
            came = False
        else:
            status = self._run(CatchUp())
            if status is Status.ABORT:
                return False
            came = status is Status.SUCCESS
        self.at_border()
        return came

    def at_border(self) -> None:
        """The program is between two steps, and its private state fits the shared one: now a joiner may get a copy of both."""
        self._lives.life.transfer.copies.at_border()

    def execute(self, func: Callable[..., Result], *args: Any, **kwargs: Any) -> Result:
        """Run ``func(*args, **kwargs)`` as one step, by all members or by none; returns its result.

        Workers join and leave before and after it. If a worker is lost meanwhile, the registered state returns to its value
        before, and the remaining members run ``func`` again; anything else that ``func`` changes, it has to set again itself.
        Calls within it are awaited at its end at the latest. ``ft.step`` rises by one if any of its averages may be applied,
        once all have finished. Its own exceptions pass through: the state returns as well, and the others run ``func`` again.

        Raises ConfigError if there are other members and no state is registered; FTLibError once this worker has left, and
        if another one has called ``decline`` meanwhile: then the step is not the same everywhere.
        """
        if self._execution is not None:
            raise ConfigError("execute was called within execute: a step is one function; call the inner one directly")
        if self._lives.life.mates is not None:
            raise ConfigError("execute: a replica of several processes has no units yet: call allreduce_average in its loop")
        unit = Unit(functools.partial(func, *args, **kwargs), self._layouts.layout(Kind.UNIT.value, Targets([], []), "SUM"))
        status = self._carry_out(unit, functools.partial(self._perform, unit))
        if status is Status.ABORT:
            raise FTLibError("execute: this worker has left the job, or was closed")
        if unit.declined:
            raise FTLibError(
                "execute: another worker has declined this call (decline), but such a step cannot be declined, and what the "
                "function did here it may not have done elsewhere: start this worker anew, as a joiner; let a worker raise an "
                "exception within the function instead"
            )
        value: Result = unit.value
        return value

    def on_view_change(self, callback: Callable[[View], None]) -> None:
        """Call ``callback(view)`` on the training thread at the end of the first call that is finished in a view.

        That is the same call at all members of the view (at a joiner, its first), and it has not returned yet: a learning rate
        set in the callback counts from this step on, at all members. Compute it from ``view`` alone, since ``size`` and
        ``rank`` may already be those of a later view. The callback may not average. Its exceptions pass through the call,
        which has finished.
        """
        self._listeners.callbacks.append(callback)

    def on_straggler(self, callback: Callable[[Straggler], None]) -> None:
        """Call ``callback(straggler)`` when a member has become a straggler: see ``docs/elasticity.md#stragglers``.

        On the training thread, at the end of the call that showed it, as ``on_view_change``; not again until the member has
        kept pace.
        ``straggler`` has ``member`` (its id), ``name``, ``rank``, ``seconds``, ``median`` (of the others) and ``steps``.
        """
        self._on_straggler.append(callback)

    @abstractmethod
    def _drained(self) -> None:
        """Leave the job after this worker's last call, as a notice requires."""

    @abstractmethod
    def _before_the_last(self) -> None:
        """A call is about to be made though there was a notice: it may be the last one."""

    @abstractmethod
    def _not_needed(self, reason: JobEnded) -> None:
        """Close, because the job has ended without this worker ever being a member."""

    @property
    def _execution(self) -> Running | None:
        """The execution of the unit whose function this thread is in; None outside of ``execute``."""
        unit = self._unit
        return unit.execution if unit is not None and self._call_lock.inside() else None

    def _layout(
        self,
        kind: str,
        targets: Targets,
        op: str,
        *,
        mean: bool = False,
        views: bool = False,
        compression: Compression | None = None,
    ) -> Layout:
        """Return ``Layouts.layout``; calls within a unit match no call outside."""
        within = self._unit is not None and self._execution is not None
        name = WITHIN + kind if within else kind
        return self._layouts.layout(name, targets, op, mean=mean, views=views, compression=compression)

    def _look_for_gradients(self, targets: Targets) -> None:
        """Warn once if there are none here."""
        if targets.owners and not any(source is not None for source in targets.sources):
            self._told = True
            logger.warning(
                "no parameter has a gradient here: this worker contributes zeros; call loss.backward() before averaging",
                extra=self._plane.about("no_gradient"),
            )

    def _may_show(self, targets: Targets) -> bool:
        """Whether gradients may become views. ConfigError for other tensors."""
        if not targets.owners or not all(isinstance(owner, torch.nn.Parameter) for owner in targets.owners):
            raise ConfigError("views=True is for gradients: pass a module or its parameters")
        if not self._plane.has_state:
            self._copies()
        return self._plane.has_state and self._execution is None

    def _copies(self) -> None:
        """Say once that gradients are copied."""
        if not self._told_copies:
            self._told_copies = True
            text = "gradients are copied, as no state is registered that could replace an average which the program has changed"
            logger.info("%s: call register_state first", text, extra=self._plane.about("no_views"))

    def _may_go_on(self) -> None:
        if self._execution is None:
            raise ConfigError("wait=False: only calls within execute can be awaited later, as it ends when they have")

    def _begin(self, call: Call) -> PendingCall:
        """Begin a call within a unit."""
        execution = self._execution
        assert execution is not None
        with torch.inference_mode(mode=False), torch.no_grad():
            return execution.start(call)

    def _perform(self, unit: Unit) -> Status:
        self._unit = unit
        try:
            return self._finish(unit)
        finally:
            self._unit = None

    def _finish_open(self, call: OpenCall, opened: bool) -> Status:
        """Carry out what is left of ``call``. ``opened``: True if this thread has its turn already."""
        if not opened and self._execution is not None:  # within a unit calls are laid out alike, whoever makes them
            call.status = self.allreduce_average(
                list(call.owners), weight=None if call.by_samples else call.weight, batches=call.batches
            )
            return call.status
        return self._carry_out(call, functools.partial(self._finish, call), opened=opened)

    def _run(self, call: Call) -> Status:
        if self._unit is not None and self._execution is not None:
            call.status = self._begin(call).wait()
            return call.status
        return self._carry_out(call, functools.partial(self._finish, call))

    def _finish(self, call: Call) -> Status:
        """Finish ``call`` while this thread has the call lock: in this lifetime, or in the next one if this one ends."""
        try:
            call.status = self._lives.life.run(call)
        except Excluded as error:
            ended = error
        else:
            return call.status
        call.status = self._lives.carry_on(call, ended)
        return call.status

    def _carry_out(self, call: Call, carry_out: Callable[[], Status], *, opened: bool = False) -> Status:
        """``opened``: True if this thread has the call lock already."""
        if torch.is_inference_mode_enabled():  # staging outlives the call: it must not become inference tensors
            with torch.inference_mode(mode=False):
                return self._carry_out(call, carry_out, opened=opened)
        if self.faults is not None and not opened:
            self.faults.happen(self._plane, call.layout.text)
        call_lock, grad = self._call_lock, torch.is_grad_enabled()
        if call_lock.noticed and not opened:
            self._before_the_last()
        torch.set_grad_enabled(False)  # as no_grad does, which takes longer
        try:
            if opened:
                status = call_lock.finish_open(carry_out, self._call_back)
            else:
                status = call_lock.take(call.layout.text, carry_out, self._call_back)
        except JobEnded as reason:
            self._not_needed(reason)
            raise SystemExit(0) from None
        finally:
            torch.set_grad_enabled(grad)
        life = self._lives.life
        drained = life.engine.said_goodbye and status is not Status.ABORT
        given_up = status is Status.ABORT or life.plane.phase is Phase.STOPPED
        if drained or (given_up and call_lock.says_goodbye and not call_lock.departed):
            self._drained()
        return status

    def _call_back(self) -> None:
        """Run the program's callbacks for the views in which calls were finished, and for stragglers."""
        plane = self._lives.life.plane
        while self._untold or plane.news.due or plane.step_times.fallen:
            if self._untold:
                with torch.enable_grad():
                    self._untold.pop(0)()  # if it raises, the next call runs the remaining callbacks
            elif plane.news.due:
                with plane.changed:
                    view = plane.news.due.pop(0)
                if len(view.members) > 1 and (READ or not plane.has_state):
                    self._reminders.look(plane, trains=self._trains)
                self._untold = [functools.partial(callback, view) for callback in self._listeners.callbacks]
            else:
                straggler = plane.step_times.fallen.pop(0)
                self._untold = [functools.partial(callback, straggler) for callback in self._on_straggler]


def checked_share(weight: Any, batches: Any) -> float:
    """The weight of an average, 1 where None was given. ConfigError if that or ``batches`` cannot be used."""
    share = 1.0 if weight is None else _weight(weight)
    _check_count(batches)
    return share


def _check_count(batches: Any) -> None:
    if type(batches) is not int or not 0 <= batches <= MOST_BATCHES:
        raise ConfigError(f"batches={batches!r} must be a whole number from 0 to {MOST_BATCHES}")


def _rank(rank: Any) -> int:
    """Raises ConfigError for what is no integer. True would be rank 1."""
    try:
        if not isinstance(rank, bool):
            return operator.index(rank)
    except TypeError:
        pass
    raise ConfigError(f"broadcast: root_rank={rank!r} must be an integer, a rank of the current view")


def _as_it_is(tensor: torch.Tensor) -> bool:
    """Whether the bytes in memory are the tensor's values, in order."""
    return tensor.is_contiguous() and not tensor.is_neg() and not tensor.is_conj()


def _weight(weight: Any) -> float:
    try:
        share = float(weight)
    except OverflowError:  # an integer beyond all floats
        share = weight = math.inf
    except (TypeError, ValueError, RuntimeError):  # RuntimeError: a tensor of several elements
        share = float("nan")
    if share == 0.0 or LIGHTEST <= share <= HEAVIEST:
        return share
    if not 0.0 <= share < float("inf"):
        raise ConfigError(f"weight={weight!r} must be a finite number of at least 0")
    raise ConfigError(
        f"weight={weight!r} must be 0 or {LIGHTEST:g} to {HEAVIEST:g}, as products with it must fit float32: only the "
        "ratios of the weights count, so multiply them all by one factor"
    )
