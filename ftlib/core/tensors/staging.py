"""The buffers that operations work on, never the user's tensors: an abandoned operation may still write into its buffer.

A call's results stay readable until the next call's first operation has finished, since a survivor may need them (see
``salvage``). Until then the next call stages into free slots: the first ``in_flight`` buckets have two slots each and
alternate, the others have one.
"""

from __future__ import annotations

import functools
import math
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from ...common.device_waits import drop_held, hold
from ...common.devices import Event, device_at
from ...common.host_copies import Bundle
from ...common.memory import room
from .compression.memory import CallMemory
from .device_work import DeviceWork
from .layout import Bucket, Layout

_LAYOUTS_KEPT = 16
_FEW = 1 << 14
"""Number of elements up to which numpy looks for inf and nan."""
_PROBES = 4
"""How many elements of a tensor are in a sample."""

Numbers = np.ndarray[Any, Any]
Allocate = Callable[[int, torch.dtype], torch.Tensor]
"""A row of so many elements: see ``Framework.allocate``."""
_HALF = (torch.float16, torch.bfloat16)
"""Dtypes whose sum may overflow by itself."""


class Slot:
    """One bucket's buffer: data first, then room for the trailer in the head."""

    __slots__ = (
        "_landed",
        "_probes",
        "_row",
        "_span",
        "bucket",
        "buffer",
        "elements",
        "flat",
        "host",
        "norm",
        "norms",
        "numbers",
        "reader",
        "seen",
        "total",
        "trailer",
        "views",
    )

    def __init__(self, bucket: Bucket, trailer_elements: int, allocate: Allocate = room) -> None:
        self.bucket = bucket
        self.buffer = allocate(bucket.count + trailer_elements + bool(bucket.place), bucket.dtype)
        if bucket.place:
            drop_held()
            device_at(bucket.place).pin(self.buffer)
        self.reader: Event | None = None
        """The end of the copies that a device makes from this slot."""
        self.host = self.buffer[: bucket.count]
        """The CPU memory of ``data``. Out of date where an accelerator has reduced it."""
        self.norm = self.buffer[bucket.count + trailer_elements :]
        """One element for a device to write the largest absolute value to; none if the bucket is on the CPU."""
        self.norms: Sequence[torch.Tensor] = ()
        """The norm of each piece, where ``check`` has computed them."""
        self.total: float | None = None
        """The sum that ``check`` or ``show`` has found; None if they have computed none."""
        self.numbers: Numbers = self.host.numpy()
        """``host`` as a numpy array."""
        self._row: torch.Tensor | None = None
        """The same data on the bucket's device."""
        self._landed = True
        """False if only ``_row`` holds the data."""
        self.seen: tuple[weakref.ref[torch.Tensor], ...] = ()
        """The parameters whose gradients the program sees here."""
        self._span = (0, 0)
        """Where these gradients are: addresses."""
        self._probes: torch.Tensor | None = None
        """The places of the elements in ``sample``."""
        self.views = [self._view(piece.offset, piece.stop - piece.start, piece.shape) for piece in bucket.pieces]
        self.elements = -1
        self.fit(trailer_elements)

    def __del__(self) -> None:
        """The memory must outlive the copies that a device makes from it."""
        reader = getattr(self, "reader", None)
        if reader is not None:
            hold(self.buffer, reader)

    def fit(self, trailer_elements: int) -> bool:
        """Make ``flat`` end after a trailer of that size, and ``trailer`` that part as a numpy array. False without room."""
        end = self.bucket.count + trailer_elements
        self.elements = trailer_elements
        self.flat = self.buffer[:end]
        self.trailer = self.buffer[self.bucket.count : end].numpy()
        return end <= self.buffer.numel()

    @property
    def data(self) -> torch.Tensor:
        """The bucket's data, in CPU memory. Where an accelerator has reduced it, it is copied from the device first.

        Excluded if the device hangs.
        """
        if not self._landed:
            land((self,))
        return self.host

    @property
    def row(self) -> torch.Tensor | None:
        """The data on the bucket's device, as far as it was staged or reduced there; read only."""
        return self._row

    def stage(self, row: torch.Tensor | None) -> torch.Tensor:
        """New data is staged, on the device as ``row``; returns the CPU memory for it."""
        self._row, self._landed = row, True
        return self.host

    def drop_row(self) -> bool:
        """Let go of ``row``, unless the data is nowhere else; True if it is kept."""
        if self._landed:
            self._row = None
        return self._row is not None

    def reduced(self) -> None:
        """The accelerator has reduced ``row``: the CPU memory is out of date, and with it what was computed from that."""
        self._landed, self.norms, self.total = False, (), None

    def check(self, *, norms: bool = False) -> bool:
        """False if inf or nan is in the data (in CPU memory). One reading pass: the sum shows it, unless the sum overflows.

        ``norms``: where the pieces are whole tensors the pass computes ``norms``, which show it as well. Either is kept, and
        shows later whether something was written here. Few elements are looked at by numpy, which is done before torch begins.
        """
        self.norms, self.total = (), None
        if not self.views or not self.bucket.dtype.is_floating_point:
            return True
        if norms and self.bucket.pieces[0].shape is not None:
            self.norms = torch._foreach_norm(self.views)  # noqa: SLF001 - as clipping does
            total = torch.stack(self.norms).sum().item()
        elif self.bucket.count <= _FEW:
            return bool(np.isfinite(self.numbers).all())
        else:
            total = self.host.sum().item()
        self.total = total
        return math.isfinite(total) or bool(torch.isfinite(self.host).all())

    def tells(self, row: torch.Tensor) -> bool:
        """True if ``row``, a copy of the data, is not known to be what was shown: the sums differ, or show nothing, as they are
        not finite.
        """
        if self.total is None or not math.isfinite(self.total):
            return True
        if self.norms:
            pieces = [row[piece.offset : piece.offset + piece.stop - piece.start] for piece in self.bucket.pieces]
            row = torch.stack(torch._foreach_norm(pieces))  # noqa: SLF001
        return row.sum().item() != self.total

    def sample(self) -> torch.Tensor:
        """Some elements of each tensor: where they change something was written here, though perhaps no version shows it."""
        if self._probes is None:
            last = _PROBES - 1
            places = [p.offset + (p.stop - p.start - 1) * n // last for p in self.bucket.pieces for n in range(_PROBES)]
            self._probes = torch.tensor(places, device="cpu")
        return self.host.index_select(0, self._probes)

    @property
    def finite(self) -> bool:
        """False if the device has found inf or nan in ``row`` (see ``device_copies.look``)."""
        return not self.bucket.dtype.is_floating_point or math.isfinite(self.norm.item())

    def landing(self, bundle: Bundle) -> None:
        """Have ``bundle`` copy the data to CPU memory, if it is not there yet. With ``_landing``."""
        row, host = self._row, self.host
        if not self._landed:
            assert row is not None
            bundle.add(self.bucket.place, lambda: host.copy_(row, non_blocking=True), host)

    def landed(self) -> None:
        """The data is in CPU memory. With ``_landing``."""
        self._landed = True

    def lend(self, end: Event) -> None:
        """A device reads this slot until ``end``."""
        self.reader = end

    def show(self, owners: Sequence[torch.Tensor], span: tuple[int, int], *, checked: bool) -> None:
        """The gradients of ``owners`` are views of this slot now, or of a row of slots with it; ``span``: their addresses.

        ``checked``: False if ``check`` was not called for this data. Then its sum is computed here: torch counts a change after
        it was made, so no version shows one that is being made while the data is copied for another member.
        """
        self.seen, self._span = tuple(map(weakref.ref, owners)), span
        if not checked:
            self.norms, self.total = (), None
        if self.total is None:  # or few elements
            self.total = self.host.sum().item()

    @property
    def in_use(self) -> bool:
        """True while the program has a gradient here: the average that is here, or what it has made of it."""
        begin, end = self._span
        for seen in self.seen:
            owner = seen()
            if owner is not None and (gradient := owner.grad) is not None and begin <= gradient.data_ptr() < end:
                return True
        self.seen = ()
        return False

    def claim(self) -> None:
        """Before the CPU writes here: wait until no device reads the slot. Excluded if the device hangs."""
        reader, self.reader = self.reader, None
        if reader is not None:
            DeviceWork(reader).end()
        self.stage(None)

    def _view(self, offset: int, count: int, shape: tuple[int, ...] | None) -> torch.Tensor:
        view = self.buffer[offset : offset + count]
        return view if shape is None else view.view(shape)


_landing = threading.Lock()
"""Held while results are copied from devices: several threads may need them."""


def land(slots: Sequence[Slot]) -> None:
    """Copy what an accelerator has reduced to CPU memory, with one wait for each device. Excluded if one hangs."""
    with _landing:
        bundle = Bundle()
        for slot in slots:
            slot.landing(bundle)
        bundle.run()
        for slot in slots:
            slot.landed()


class Staging:
    """The slots of one layout. Owned by the training thread."""

    def __init__(self, layout: Layout, in_flight: int, allocate: Allocate = room) -> None:
        """``in_flight``: how many operations are under way at a time, unless the layout says how many spares there are."""
        self.layout = layout
        self.memory = CallMemory(allocate)
        """What compressed calls keep."""
        self.spares = in_flight if layout.spares is None else layout.spares
        """How many buckets may be staged before the first operation has ended."""
        self._allocate = allocate
        self._turns = [2 if number < self.spares else 1 for number in range(len(layout.buckets))]
        self._slots: list[list[Slot | None]] = [[None] * turns for turns in self._turns]
        self._free: list[list[Slot]] = [[] for _ in self._turns]
        self._runs = _runs(layout)
        self._turn = 0
        self._prelude: torch.Tensor | None = None

    def prelude(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        """A row of zeros for a prelude; only one is under way at a time."""
        row = self._prelude
        if row is None or row.dtype is not dtype or row.numel() < count:
            row = self._prelude = self._allocate(count, dtype)
        return row[:count].zero_()

    def turn(self, needed: Sequence[Slot]) -> Staging:
        """An attempt begins, which uses none of the slots ``needed`` before its first operation has ended. Returns itself.

        ``needed``: the newest results, while a survivor may need them. The slots do not simply alternate: a call may have begun
        and have been given up since, and the results are where they were.
        """
        if any(row[self._turn] is slot for row, slot in zip(self._slots, needed, strict=False) if len(row) > 1):
            self._turn ^= 1
        return self

    def slot(self, number: int, trailer_elements: int) -> Slot:
        """The slot of bucket ``number`` for this attempt; ``trailer_elements`` counts in the head only."""
        turn = self._turn % self._turns[number]
        slot = self._slots[number][turn]
        wanted = 0 if number else trailer_elements
        if slot is not None and slot.seen and slot.in_use:
            self._free[number].append(slot)
            slot = None
        if slot is None:
            slot = self._slots[number][turn] = self._unused(number)
        if slot is None or (slot.elements != wanted and not slot.fit(wanted)):
            slot = self._slots[number][turn] = self._made(number, wanted)
        return slot

    def _unused(self, number: int) -> Slot | None:
        """A free slot that the program has no gradients in; None if there is none."""
        free = self._free[number]
        found = next((place for place, slot in enumerate(free) if not slot.in_use), None)
        return None if found is None else free.pop(found)

    def _made(self, number: int, trailer_elements: int) -> Slot:
        """A new slot. Those of a split tensor are made side by side, so that together they are a tensor."""
        run = self._runs.get(number)
        if run is None:
            return Slot(self.layout.buckets[number], trailer_elements, self._allocate)
        buckets = self.layout.buckets[run.start : run.stop]
        row = self._allocate(sum(bucket.count for bucket in buckets), buckets[0].dtype)
        offset = 0
        for each, bucket in zip(run, buckets, strict=True):
            part = row[offset : offset + bucket.count]
            self._free[each].append(Slot(bucket, 0, functools.partial(_given, part)))
            offset += bucket.count
        return self._free[number].pop()

    def warm(self, more: int) -> None:
        """Touch all memory that attempts will use, plus ``more`` sets of slots, before any thread waits for it."""
        for number in range(len(self.layout.buckets)):
            while len(self._free[number]) < self._turns[number] + more:
                self._free[number].append(self._made(number, 0))
                self._free[number][-1].buffer.zero_()

    def cool(self) -> None:
        """Free the slots that are not in use."""
        self._free = [[] for _ in self._turns]

    def exchange(self, kept: Sequence[Slot], instead: Sequence[Slot]) -> None:
        """Leave the slots ``kept`` to the code that keeps them; use the slots of ``instead`` that belong to this layout."""
        for slot in kept:
            self.abandon(slot)
        numbers = {id(bucket): number for number, bucket in enumerate(self.layout.buckets)}
        for slot in instead:
            if id(slot.bucket) in numbers:
                self._free[numbers[id(slot.bucket)]].append(slot)

    def abandon_prelude(self) -> None:
        """Never use the prelude's row again: see ``abandon``."""
        self._prelude = None

    def abandon(self, slot: Slot) -> None:
        """Never use ``slot`` again: an operation that cannot be ended may still write into it."""
        for row in self._slots:
            for turn, held in enumerate(row):
                if held is slot:
                    row[turn] = None


class StagingPool:
    """Stagings by signature; the least recently used are dropped. Owned by the training thread."""

    def __init__(self, in_flight: int, allocate: Allocate = room) -> None:
        """``allocate``: see ``Framework``."""
        self.in_flight = in_flight
        self._allocate = allocate
        self._stagings: OrderedDict[bytes, Staging] = OrderedDict()

    def staging(self, layout: Layout) -> Staging:
        """The staging of ``layout``."""
        staging = self._stagings.get(layout.signature)
        if staging is None:
            self._drop_like(layout)
            staging = self._stagings[layout.signature] = Staging(layout, self.in_flight, self._allocate)
            while len(self._stagings) > _LAYOUTS_KEPT:
                self._stagings.popitem(last=False)
        else:
            self._stagings.move_to_end(layout.signature)
        return staging

    def owe_nothing(self) -> None:
        """This member has got the others' state: see ``CallMemory.forget``."""
        for staging in self._stagings.values():
            staging.memory.forget()

    def _drop_like(self, layout: Layout) -> None:
        """Drop the stagings of the same call in another order of its tensors: each has as much memory as the gradients."""
        if layout.compression is None:  # else they keep more than buffers
            for signature in [each for each in self._stagings if layout.same_call(each)]:
                del self._stagings[signature]


def _given(part: torch.Tensor, _count: int, _dtype: torch.dtype) -> torch.Tensor:
    """An ``Allocate`` that returns memory that is there."""
    return part


def _runs(layout: Layout) -> dict[int, range]:
    """By number, the buckets that are parts of the same tensor and of nothing else, where slots have one turn each alike.

    Without the head, which needs room for the trailer behind its data.
    """
    runs: dict[int, range] = {}
    tensors = [
        bucket.pieces[0].index if len(bucket.pieces) == 1 and bucket.pieces[0].shape is None and not bucket.place else -1
        for bucket in layout.buckets
    ]
    if layout.spares is None:
        return runs
    for number, index in enumerate(tensors):
        if index >= 0 and number:  # the head has the trailer
            begin = runs[number - 1].start if tensors[number - 1] == index and number > 1 else number
            runs |= dict.fromkeys(range(begin, number + 1), range(begin, number + 1))
    return runs


def finite(tensor: torch.Tensor) -> bool:
    """True if the tensor holds neither inf nor nan. One reading pass: the sum shows it, unless the sum itself overflows."""
    if not tensor.numel() or not tensor.is_floating_point():
        return True
    dtype = torch.float32 if tensor.dtype in _HALF else None
    return math.isfinite(tensor.sum(dtype=dtype).item()) or bool(torch.isfinite(tensor).all())
