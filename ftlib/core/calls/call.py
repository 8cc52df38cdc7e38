"""A call: one average, allreduce, broadcast or barrier; all members finish it, or none.

Every kind is carried out as allreduces over the buckets of its layout, so that each call ends all-to-all and can be salvaged
in the same way. A broadcast sums bytes that are zero at all members but the root: exact for every dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from enum import Enum, IntEnum

import torch

from ...common.device_waits import Fence
from ...common.local_parts import is_sharded, like, local_part
from ...data.mates import Drawing
from ...data.sampling import Share
from ...errors import ConfigError
from ...frameworks.base import Work
from ...status import Status
from ..tensors.device_copies import bring, each_finite, fetch, flatten, fold, gather
from ..tensors.dtypes import EXTREMES, load, store
from ..tensors.layout import Bucket, Layout, Piece
from ..tensors.norms import NO_NORMS, Norms
from ..tensors.presentation import present
from ..tensors.staging import Slot, finite
from .session import Session

_NOTHING, _INFERENCE = -1, -2
"""Used as a version: there is no tensor yet; an inference tensor, which has no version counter."""


class Kind(Enum):
    """What a call does with its tensors."""

    AVERAGE = "average"
    ALLREDUCE = "allreduce"
    BROADCAST = "broadcast"
    BARRIER = "barrier"
    VOTE = "vote"
    UNIT = "execute"


PREFACE = "broadcast before a call"
"""The kind, in a layout, of a call that a wrapper makes before one of the program's."""


class CallOutcome(IntEnum):
    """How a finished call has ended. If several of these hold, the greatest counts."""

    INTACT = 0
    """It has a result, unless the sum of the weights says otherwise (see ``Call.void``)."""
    VOID_ELSEWHERE = 1
    """Nothing is wrong with the sums. The shards together have no result all the same."""
    NOT_FINITE = 2
    """The sums were checked for inf and nan, and hold some."""
    DECLINED_ELSEWHERE = 3
    """A member of another shard declined it. Its signature is known here, and so are the sums."""
    DECLINED_HERE = 4
    """A member of this shard declined it (see ``Declined``): not all members know which call it was."""

    @property
    def declined(self) -> bool:
        """True if a member declined it, in this shard or in another."""
        return self >= CallOutcome.DECLINED_ELSEWHERE


class Results:
    """A finished call's sums in staging. Valid until an operation of the next call has finished."""

    __slots__ = (
        "_sends",
        "_shown",
        "_spoilt",
        "accelerated",
        "assumed",
        "divisor",
        "drawing",
        "kept",
        "layout",
        "number",
        "out",
        "outcome",
        "preface",
        "shares",
        "signature",
        "slots",
        "view_id",
        "views",
        "weight",
    )

    def __init__(
        self,
        number: int,
        layout: Layout,
        slots: Sequence[Slot],
        weight: float,
        intact: bool = True,
        *,
        assumed: float = 1.0,
        view_id: str = "",
        declined: bool = False,
        views: bool = True,
    ) -> None:
        """``intact``: False if the sums were checked for inf and nan, and hold some. ``declined``: True if a member of this
        shard declined the call. ``assumed``: what inputs were divided by as they were staged (see ``Attempt``). The rest: see
        the attributes.
        """
        self.number = number
        self.layout = layout
        self.slots = tuple(slots)
        self.weight = weight
        """The sum of the weights."""
        self.assumed = assumed
        self.divisor = weight / assumed
        """What the sums in an average have yet to be divided by: 1.0 if the weights have the sum that was assumed."""
        self.outcome = CallOutcome.INTACT if intact else CallOutcome.NOT_FINITE
        if declined:
            self.outcome = CallOutcome.DECLINED_HERE
        self.preface = False
        """True if a process of this replica was in a call that a wrapper makes before one of the program's."""
        self.signature = b"" if declined else layout.signature
        """What a flush report says of the call; empty if it was declined: then not all members know which one it was."""
        self.shares: Mapping[str, Share] = {}
        """The data that every member used up, by drawer (see ``Session.drawers``); empty if no member draws samples."""
        self.drawing: Drawing | None = None
        """What the processes of this replica have agreed on about ``shares``; None where there is one, or they have not yet."""
        self.views = views
        """False if the program never sees the slots; else it may see and change them at any moment."""
        self.accelerated = False
        """True if accelerators have carried the bulk of it."""
        self.view_id = view_id
        """The view whose members' inputs these are. If all members that finished the call die, another view may redo it."""
        self.out: bool | None = None
        """True if this member's replica stays out after the call, a newcomer that cannot come in with it yet. None: a replica
        of one process, which finds out by itself."""
        self.kept = False
        """True if the slots were left to an observer."""
        self._sends: list[Work] = []
        """Those to members that adopt the call, with what they send: they end before an operation of the next call does."""
        self._shown: tuple[tuple[Slot, int], ...] = ()
        """The slots that the program sees as gradients, each with its version then."""
        self._spoilt = False
        """True once sums have shown that the program has changed what it sees."""

    def keep(self) -> None:
        """An observer keeps the slots."""
        self.kept = True

    def give(self, sends: Sequence[Work]) -> None:
        """Note the operations that send them to another member."""
        self._sends += sends

    def refuse(self, *, declined: bool = False) -> None:
        """The shards together have no result: then this one has none. ``declined``: as a member has declined the call."""
        self.outcome = max(self.outcome, CallOutcome.DECLINED_ELSEWHERE if declined else CallOutcome.VOID_ELSEWHERE)

    def agreed_on(self, *, out: bool, preface: bool) -> None:
        """Note what the processes of this replica have agreed on. ``out``: those of a newcomer's, that they stay out."""
        self.out, self.preface = out, preface

    def show(self, slots: Sequence[Slot]) -> None:
        """The program is about to see these slots as its gradients, and may change them."""
        self._shown = tuple((slot, slot.buffer._version) for slot in slots)  # noqa: SLF001 - the only way to ask

    @property
    def changed(self) -> bool:
        """True if the program is known to have changed what it sees, so that no other member can get these results. Any thread.

        Known by the versions that torch counts. Changes through ``.data`` or numpy leave these as they are: see ``same``.
        """
        return self._spoilt or any(slot.buffer._version != version for slot, version in self._shown)  # noqa: SLF001

    def same(self, rows: Mapping[Slot, torch.Tensor]) -> bool:
        """True if ``rows``, copies of the slots' data, are what the call has ended with; else ``changed`` from now on.

        Changes that no version shows are found by checksums. These were computed in the look for inf and nan, or when the
        program was shown the slots. A change that keeps them, bit for bit, is not found.
        """
        if not self.changed:
            self._spoilt = any(slot.tells(rows[slot]) for slot, _ in self._shown)
        return not self.changed

    def carried(self, *, accelerated: bool) -> Results:
        """Note who has carried the bulk; returns itself."""
        self.accelerated = accelerated
        return self

    def share(self, shares: Mapping[str, Share]) -> None:
        """Note the data that every member used up."""
        self.shares = shares

    def agree(self, drawing: Drawing) -> None:
        """The processes of this replica have agreed on what is used up."""
        self.drawing = drawing
        agreed = dict(zip(self.shares, drawing.shares, strict=False))
        self.shares = agreed if any(share.data_epoch for share in agreed.values()) else {}


class Call:
    """A call in progress at this member; used by the training thread only (``number`` and ``layout`` are constant)."""

    foreign = False
    """True if this is not the program's call; then it uses up none of the program's samples."""

    may_give_state = False
    """True if it is known only after the end of this call whether a newcomer has the others' state with it."""

    draws_beside = 0
    """How many batches the program draws for later calls while this one is under way."""
    keeps_batches = False
    """True if the program makes up for this call, should it end unfinished, by one that uses up the same batches and more."""
    declines = False
    """True if this call makes the others' call fail, whichever that is (see ``Declined``)."""
    by_backup = False
    """True if a backup worker is in the call while the program is outside of calls (see ``backup_worker``)."""

    def __init__(
        self,
        kind: Kind,
        layout: Layout,
        sources: Sequence[torch.Tensor | None],
        *,
        owners: Sequence[torch.Tensor] = (),
        weight: float = 1.0,
        by_samples: bool = False,
        batches: int = 0,
        divide: bool = False,
        veto: bool = False,
        views: bool = False,
        norms: bool = False,
        root_rank: int | None = None,
        name: Callable[[int], str] = "tensor {}".format,
        remark: Callable[[], str] = str,
    ) -> None:
        """``sources``: read, and written once the call has finished. None counts as zeros; its tensor is then created as the
        gradient of the parameter in ``owners``.

        ``weight``: this member's share in an average (``divide``); ``by_samples``: if samples are counted, their number is the
        weight. ``batches``: how many of the elastic sampler's batches the call uses up. ``veto``: nobody applies a result with
        inf or nan. ``views``: gradients become views of the result, where they can. ``norms``: ``gradient_norms`` is wanted.
        ``root_rank``: the rank whose tensors a broadcast spreads. ``name``: a tensor's name for people. ``remark``: a possible
        explanation of a mismatch.
        """
        self.kind = kind
        self.layout = layout
        self.nbytes = layout.nbytes
        """Bytes of tensors that the finished call reduced."""
        self.on_devices = bool(layout.places)
        """True if some of the tensors, or of those of a unit's calls, are on devices."""
        self.accelerated = False
        """True if accelerators carried calls within this one."""
        self.counts_as_step = kind is Kind.AVERAGE
        """True if the finished call grants an optimizer step, unless it is void."""
        self.sources = list(sources)
        self.owners = owners
        self.weight = weight
        self.batches = batches
        self._by_samples = by_samples
        self._outdated = False
        self.divide = divide
        self.veto = veto
        self.views = views
        self.norms = norms
        self.gradient_norms = NO_NORMS
        """The norms of the averages, as far as the look for inf and nan has computed them."""
        self.name = name
        self.remark = remark
        self.silent = False
        """True if this member contributes zeros, as all but the root of a broadcast do."""
        self.root_rank = root_rank
        self._root = ""
        self.number = 0
        self.status: Status | None = None
        """How it has ended; None: it has not, or by an exception. Known before the program's callbacks, which may raise."""
        self.declined = False
        """True if it has ended without a result, as a member declined it, in this shard or in another."""
        self.began = 0.0
        """When the call was entered, on the clock of the threads that carry it out."""
        self.computing = False
        """True while the program's code runs within the call. Guarded by the plane's lock."""
        self.present = True
        """True if the others may know that this member is in the call."""
        self.late = False
        """True if the call was finished without this late worker: its input for the call counts nowhere."""
        self.fence: Fence | None = None
        """What the thread had enqueued on devices on entry, or when it changed the state after that (see ``Plane``); None where
        that is on none. Guarded by the plane's lock."""
        self._flat: dict[int, torch.Tensor] = {}
        self._versions = _versions(self.sources)

    def __str__(self) -> str:
        return f"call {self.number}, {self.layout.text}"

    changes_state = False
    """True if the registered state changes while the call is in progress."""

    script: tuple[Layout, ...] = ()
    """In a unit: the layouts of its function's calls, and of its commit."""

    def entry(self, live: Callable[[], object]) -> Callable[[], object] | None:
        """A function that returns the registered state as on entry to this call: ``live``, as the call does not change it.

        None while that state is unknown.
        """
        return live

    # --- where it is ---------------------------------------------------------------------------------------------------

    def enter(self, number: int, now: float) -> None:
        """The call begins, as call ``number`` of the job."""
        self.number, self.began = number, now

    def fenced(self, places: Sequence[str]) -> None:
        """The part of the registered state at ``places`` is that of this call once all that is enqueued by now has run."""
        self.fence = Fence(places)

    def restart(self, now: float) -> None:
        """Restart the call's deadline: time waited until ``now`` does not count."""
        self.began = now

    def renumber(self, number: int) -> None:
        """Others have finished calls without this member; this call is the next one, ``number``."""
        self.number = number

    def become(self, other: Call) -> None:
        """Take the place of ``other``, the call of the others that this call turned out to be."""
        self.number, self.began = other.number, other.began

    def overtaken(self, number: int) -> None:
        """The call was finished, as call ``number``, without this late worker."""
        self.number, self.late = number, True

    def ends_declined(self, *, preface: bool) -> None:  # noqa: ARG002 - for those who do not know what was declined
        """It has ended without a result, as a member declined it. ``preface``: see ``Results``."""
        self.declined = True

    def compute(self, computing: bool) -> None:
        """``computing``: True while the program's code runs within the call. Under the plane's lock."""
        self.computing = computing

    @property
    def certain(self) -> bool:
        """False while the program's code runs within the call: an exception may yet end it here. It may have ended it at
        others, which are in another call by now. If none comes here, the call's operations show that the others are in another
        one.
        """
        return not self.computing

    def show(self) -> None:
        """From now on the others may know that this member is in the call. Under the plane's lock."""
        self.present = True

    # --- what it does --------------------------------------------------------------------------------------------------

    def address(self, session: Session) -> None:
        """Before an attempt: find the root. A broadcast's root is the member with ``root_rank`` in the call's first session.

        Only the root has a weight, so the sum of the weights shows if the root dies, or if members mean different roots.
        """
        if self.root_rank is None:
            return
        if not self._root:
            if not 0 <= self.root_rank < session.size:
                raise ConfigError(f"root_rank={self.root_rank} is no rank of {session.view}: give 0 to {session.size - 1}")
            self._root = session.by_rank[self.root_rank]
        self.silent = self._root != session.member_id
        self.weight = 0.0 if self.silent else 1.0

    def weigh(self, samples: float) -> None:
        """Set an average's weight to the number of samples behind this member's input, which counts nothing without any."""
        if not self._outdated and (self._by_samples or not samples):
            self.weight = samples

    def uses(self, batches: int) -> None:
        """Before it is entered: so many batches of the elastic sampler's are used up, and no others."""
        self.batches = batches

    @property
    def outdated(self) -> bool:
        """True if registered state was loaded within this call (see ``reloaded``)."""
        return self._outdated

    def void(self, results: Results) -> bool:
        """True if this call has no result at any member, because of the sum of the weights, a veto, or who declined it."""
        if results.outcome is not CallOutcome.INTACT:
            return True
        return (self.divide and results.weight == 0.0) or (self.root_rank is not None and results.weight != 1.0)

    def spoilt(self) -> list[int]:
        """Indices of this member's tensors that hold inf or nan; none if its weight is zero."""
        if self.weight == 0.0:
            return []
        places = self._places
        found = [(index, source, places.get(index)) for index, source in enumerate(self.sources) if source is not None]
        spoilt = [index for index, source, place in found if not place and not finite(source)]
        for place in self.layout.places:
            there = [(index, source) for index, source, at in found if at == place]
            fine = each_finite(place, [source for _, source in there])
            spoilt += [index for (index, _), good in zip(there, fine, strict=True) if not good]
        return sorted(spoilt)

    def reloaded(self) -> None:
        """Registered state was loaded within this call: its gradients were computed with other parameters, and do not count.

        The state may include this call's own tensors (buffers that are broadcast): the loaded values are now the input.
        """
        self.weight = 0.0
        self._outdated = True
        self._versions = _versions(self.sources)
        self._flat.clear()

    def relay(self) -> None:
        """Other state was loaded, in which the order of the call's tensors may be another one."""

    def reattach(self) -> None:
        """Attach this call's gradients to their parameters again: applying a result may have dropped them."""
        for owner, source in zip(self.owners, self.sources, strict=False):
            if isinstance(owner, torch.nn.Parameter) and source is not None and owner.grad is not source:
                _attach(owner, source)

    def anew(self) -> None:
        """The call was in progress when its lifetime ended; it becomes this worker's first call of the next one."""
        self._root = ""
        self.number = 0

    def supply(self, sources: Sequence[torch.Tensor | None]) -> None:
        """From now on these are the inputs."""
        self.sources[:] = sources
        self._versions = _versions(sources)
        self._flat.clear()  # rows of what the inputs were before

    def check_untouched(self) -> None:
        """Before a redo: ConfigError if an input has changed."""
        for index, (now, before) in enumerate(zip(_versions(self.sources), self._versions, strict=True)):
            if now != before:
                raise ConfigError(
                    f"{self.name(index)} of {self} was changed by another thread while the call was in progress: wait for it"
                )

    def fill(
        self,
        slot: Slot,
        assumed: float = 1.0,
        *,
        weighted: bool = True,
        row: torch.Tensor | None = None,
        but: Collection[int] = (),
    ) -> None:
        """Stage one bucket's inputs, scaled by the weight over ``assumed`` in an average; a device does so later.

        ``row``: on their device, where they are staged for an accelerator; else in CPU memory. ``but``: tensors that are there.
        """
        bucket = slot.bucket
        scale = self.weight / assumed if self.divide and weighted else 1.0
        if row is not None:
            fetch(slot, self._parts(bucket), 0.0 if self.silent else scale, row)
            return
        if self.silent or scale == 0.0:
            slot.claim()
            slot.data.zero_()  # not a product: 0 * inf is nan
            return
        if bucket.place:
            fetch(slot, self._parts(bucket), scale)
            return
        if bucket.whole and not but and bucket.op not in EXTREMES and (scale == 1.0 or bucket.small):
            found = [source for index in bucket.indices if (source := self.sources[index]) is not None]
            if len(found) == len(slot.views):
                torch._foreach_copy_(slot.views, found)
                if scale != 1.0:
                    slot.host.mul_(scale)
                return
        for piece, view in zip(bucket.pieces, slot.views, strict=True):
            if piece.index in but:
                continue
            source = self.sources[piece.index]
            if source is None:
                view.zero_()
                continue
            if piece.shape is None:
                source = self._flattened(piece.index, source)[piece.start : piece.stop]
            if scale != 1.0 and source.dtype is view.dtype:
                torch.mul(source, scale, out=view)
            else:
                store(view, source, bucket.op, scale)

    def gather(self, bucket: Bucket, row: torch.Tensor, assumed: float) -> None:
        """As ``fill``, to a row on the bucket's device, which belongs to no slot yet."""
        scale = self.weight / assumed if self.divide else 1.0
        gather(bucket, self._parts(bucket), 0.0 if self.silent else scale, row)

    def deliver(self, results: Results, *, views: bool = False) -> None:
        """Copy the finished call's results to the caller's tensors; in an average divided by the sum of the weights.

        ``views``: gradients may become views of the results instead, which then are in use until the program drops them.
        """
        if len(self.layout.indices) < len(self.sources):
            self._create_empty()
        if views and results.divisor == 1.0 and not results.kept:
            present(results, self.owners, self._load, checked=self.veto)
            self._write([slot for slot in results.slots if slot.bucket.place], 1.0)
            if self.norms and self.veto:
                self.gradient_norms = Norms(results.slots, self.owners, guarded=True)
            return
        divisor = results.divisor if self.divide else 1.0
        if _INFERENCE not in self._versions:
            self._write(results.slots, divisor)
            if self.norms and self.veto and divisor == 1.0 and not self.views:
                self.gradient_norms = Norms(results.slots, self.owners, guarded=False)
            return
        indices = {piece.index for slot in results.slots for piece in slot.bucket.pieces}
        for index in indices:  # created gradients must not be inference tensors
            self._target(index)
        with torch.inference_mode():
            self._write(results.slots, divisor)

    def _create_empty(self) -> None:
        """Gradients without elements are in no bucket. Where there was none there is one, as at the members that had one: it
        makes a difference to optimizers, whose state is the same everywhere.
        """
        for index in range(len(self.sources)):
            if index not in self.layout.indices:
                self._target(index)

    def _write(self, slots: Sequence[Slot], divisor: float) -> None:
        averaged = divisor != 1.0  # if so nothing is encoded: take the short way, as models have a thousand tensors
        for slot in slots:
            if slot.bucket.place:
                bring(slot, [self._part(piece, slot.bucket.place) for piece in slot.bucket.pieces], divisor)
                continue
            if not averaged and slot.bucket.whole and slot.bucket.op not in EXTREMES:
                found = [target for index in slot.bucket.indices if (target := self.sources[index]) is not None]
                if len(found) == len(slot.views):
                    torch._foreach_copy_(found, slot.views)
                    continue
            for piece, view in zip(slot.bucket.pieces, slot.views, strict=True):
                target = self.sources[piece.index]
                if target is None:
                    target = self._target(piece.index)
                if piece.shape is None:
                    target = self._flattened(piece.index, target)[piece.start : piece.stop]
                if averaged:
                    torch.div(view, divisor, out=target)
                else:
                    load(target, view, divisor)
        if self._flat:
            self._fold()

    def _load(self, piece: Piece, view: torch.Tensor) -> None:
        """Write an average that is there to the caller's tensor."""
        target = self._target(piece.index)
        if piece.shape is None:
            target = self._flattened(piece.index, target)[piece.start : piece.stop]
        load(target, view)

    def _fold(self) -> None:
        """Write rows of split tensors back to the tensors that they are copies of."""
        for index, flat in self._flat.items():
            target = self._target(index)
            if target.is_contiguous():
                continue
            if place := self._places.get(index):
                fold(place, flat, target)
            else:
                target.copy_(flat.view(target.shape))
        self._flat.clear()

    @property
    def _places(self) -> dict[int, str]:
        """The devices of the tensors that are on one, by index."""
        return {piece.index: bucket.place for bucket in self.layout.buckets if bucket.place for piece in bucket.pieces}

    def _target(self, index: int) -> torch.Tensor:
        target = self.sources[index]
        if target is None:
            owner = self.owners[index]
            target = torch.empty_like(local_part(owner), requires_grad=False)
            _attach(owner, target)
            self.sources[index] = target
        return target

    def _parts(self, bucket: Bucket) -> list[torch.Tensor | None]:
        """The inputs on the device, one for each piece; None for gradients that do not exist."""
        return [None if self.sources[piece.index] is None else self._part(piece, bucket.place) for piece in bucket.pieces]

    def _part(self, piece: Piece, place: str) -> torch.Tensor:
        """The elements of a piece, on the device: a whole tensor, or a range of its row."""
        tensor = self._target(piece.index)
        if piece.shape is not None:
            return tensor
        flat = self._flat.get(piece.index)
        if flat is None:
            flat = self._flat[piece.index] = flatten(place, tensor)
        return flat[piece.start : piece.stop]

    def _flattened(self, index: int, tensor: torch.Tensor) -> torch.Tensor:
        """A split tensor as one row: a view if the tensor is contiguous, else a copy that ``deliver`` writes back."""
        flat = self._flat.get(index)
        if flat is None:
            flat = self._flat[index] = tensor.contiguous().view(-1)
        return flat


def _attach(owner: torch.Tensor, gradient: torch.Tensor) -> None:
    """``gradient`` becomes that of ``owner``; of a DTensor its local part."""
    owner.grad = like(owner, gradient) if is_sharded(owner) else gradient


def _versions(sources: Sequence[torch.Tensor | None]) -> list[int]:
    """How often each has been changed in place, as torch counts it."""
    return [
        _NOTHING if source is None else _INFERENCE if source.is_inference() else source._version  # noqa: SLF001 - no public name
        for source in sources
    ]
