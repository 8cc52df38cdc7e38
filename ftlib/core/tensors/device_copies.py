"""Between the program's tensors on a device and a bucket's slot in CPU memory, with a few operations a bucket.

There: the tensors are gathered in one row on the device, scaled, and copied to the slot. Back: the sums are copied to a row,
divided there and scattered. Nothing here waits for the device, except where it says so.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import torch

from ...common.devices import Event, device_at, place_of
from ...frameworks.base import Work
from .device_work import DeviceWork, NothingToDo
from .dtypes import EXTREMES, load, store
from .layout import Bucket
from .staging import Slot


def copies_of(slot: Slot) -> Work:
    """The copies to ``slot`` that this thread has enqueued; not counted as a wait."""
    return DeviceWork(device_at(slot.bucket.place).record()) if slot.bucket.place else NothingToDo()


def under_way(places: Sequence[str]) -> list[DeviceWork]:
    """All that this thread has enqueued on these devices."""
    return [DeviceWork(device_at(place).waited()) for place in places]


def fetch(slot: Slot, sources: Sequence[torch.Tensor | None], scale: float, there: torch.Tensor | None = None) -> None:
    """Enqueue: stage ``scale`` times the ``sources`` (one for each piece, of its shape) in ``slot``. None counts as zeros.

    ``there``: a row on the device, where it stays for an accelerator; else it is copied to CPU memory.
    """
    bucket = slot.bucket
    device = device_at(bucket.place)
    if slot.reader is not None:
        device.follow(slot.reader)  # it may be on another stream
    row = there
    if row is None:
        row = slot.host if device.unified else device.empty(bucket.count, bucket.dtype)
    gather(bucket, sources, scale, row)
    host = slot.stage(there)
    if there is None and row is not host:
        device.enqueue(lambda: host.copy_(row, non_blocking=True), host)


def gather(bucket: Bucket, sources: Sequence[torch.Tensor | None], scale: float, row: torch.Tensor) -> None:
    """Enqueue: write ``scale`` times the ``sources`` to ``row``, which is on their device. See ``fetch``."""
    device = device_at(bucket.place)
    views = _views(bucket, row)
    found = [source for source in sources if source is not None]
    if len(found) < len(sources) or scale == 0.0:
        device.enqueue(row.zero_, row)
        views = [view for view, source in zip(views, sources, strict=True) if source is not None]
    if scale == 0.0:  # not a product: 0 * inf is nan
        views, found = [], []
    if bucket.op in EXTREMES:
        for view, source in zip(views, found, strict=True):
            device.enqueue(functools.partial(store, view, source, bucket.op), view)
    elif found:
        device.enqueue(lambda: torch._foreach_copy_(views, found), *views)
        if scale != 1.0:
            device.enqueue(lambda: row.mul_(scale))


def lower(slot: Slot, row: torch.Tensor, gathered: Event) -> Work:
    """Enqueue, beside what the program enqueues: copy ``row`` to CPU memory, the slot's, once it is ``gathered``. Returns the
    copy, which keeps the row as long as it is needed; not counted as a wait.
    """
    device = device_at(slot.bucket.place)
    with device.ahead():
        device.follow(gathered)
        if slot.reader is not None:
            device.follow(slot.reader)
        host = slot.stage(None)
        device.enqueue(lambda: host.copy_(row, non_blocking=True), host)
        return DeviceWork(device.record(), row)


def send(slot: Slot) -> None:
    """Enqueue: copy the slot's sums to its device, where ``bring`` needs them."""
    device, host = device_at(slot.bucket.place), slot.host
    if device.unified:
        return
    row = device.empty(slot.bucket.count, slot.bucket.dtype)
    device.enqueue(lambda: row.copy_(host, non_blocking=True), row)
    slot.lend(device.record())
    slot.stage(row)


def bring(slot: Slot, targets: Sequence[torch.Tensor], divisor: float) -> None:
    """Enqueue: write the slot's sums, divided by ``divisor``, to the ``targets`` (one for each piece, of its shape)."""
    bucket = slot.bucket
    device = device_at(bucket.place)
    if slot.row is None:
        send(slot)
    there, kept = slot.row, slot.drop_row()
    sums, kept = (slot.host, True) if there is None else (there, kept)
    if bucket.op in EXTREMES:
        for view, target in zip(_views(bucket, sums), targets, strict=True):
            device.enqueue(functools.partial(load, target, view), target)
        return
    if divisor != 1.0:
        # By a tensor: dividing by a number, a GPU multiplies by the inverse, whose last bit may differ from the CPU's.
        by = device.empty(1, bucket.dtype).view(())
        device.enqueue(lambda: by.fill_(divisor), by)
        if len(bucket.pieces) == 1 or device.unified:  # where a launch costs little, to go through the memory once is cheapest
            device.enqueue(functools.partial(_divide, _views(bucket, sums), by, targets), *targets)
            return
        # Sums that are nowhere else are left as they are: other members may need them.
        means = device.empty(bucket.count, bucket.dtype) if kept else sums
        device.enqueue(functools.partial(torch.div, sums, by, out=means), *(() if means is sums else (means,)))
        sums = means
    views = _views(bucket, sums)
    device.enqueue(lambda: torch._foreach_copy_(list(targets), views), *targets)


def flatten(place: str, tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` as one row: a view if it is contiguous, else a copy that is enqueued (see ``fold``)."""
    if tensor.is_contiguous():
        return tensor.view(-1)
    device = device_at(place)
    flat = device.empty(tensor.numel(), tensor.dtype)
    device.enqueue(lambda: flat.view(tensor.shape).copy_(tensor), flat)
    return flat


def fold(place: str, flat: torch.Tensor, tensor: torch.Tensor) -> None:
    """Enqueue: write the row ``flat`` back to ``tensor``."""
    device_at(place).enqueue(lambda: tensor.copy_(flat.view(tensor.shape)), tensor)


def look(place: str, slots: Sequence[Slot]) -> None:
    """Enqueue: look for inf and nan in the rows of the slots, all on this device; see ``Slot.finite``."""
    device = device_at(place)
    asked = [slot for slot in slots if slot.bucket.dtype.is_floating_point]
    rows = [slot.row for slot in asked if slot.row is not None]
    norms: list[torch.Tensor] = []
    if asked:
        device.enqueue(lambda: norms.extend(torch._foreach_norm(rows, math.inf)))  # noqa: SLF001 - as optimizers do
    for number, slot in enumerate(asked):
        device.enqueue(functools.partial(_tell, norms, number, slot.norm), slot.norm)


def duplicate(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous copy of ``tensor``; on a device it is enqueued."""
    if not (place := place_of(tensor)):
        return tensor.clone(memory_format=torch.contiguous_format)
    device = device_at(place)
    copy = device.empty(tensor.numel(), tensor.dtype).view(tensor.shape)
    device.enqueue(lambda: copy.copy_(tensor), copy)
    return copy


def assign(target: torch.Tensor, source: torch.Tensor) -> None:
    """Write ``source``, of the same place and shape, to ``target``; on a device that is enqueued."""
    if place := place_of(target):
        device_at(place).enqueue(lambda: target.copy_(source), target)
    else:
        target.copy_(source)


def each_finite(place: str, tensors: Sequence[torch.Tensor]) -> list[bool]:
    """Which of the tensors hold neither inf nor nan. Waits for the device once; Excluded if it hangs."""
    asked = [index for index, tensor in enumerate(tensors) if tensor.is_floating_point() and tensor.numel()]
    answers = [True] * len(tensors)
    if not asked:
        return answers
    device = device_at(place)
    found = torch.empty(len(asked), dtype=torch.float64, device="cpu")

    def look() -> None:
        norms = torch._foreach_norm([tensors[index] for index in asked], math.inf)  # noqa: SLF001 - as optimizers do
        found.copy_(torch.stack([norm.double() for norm in norms]))

    device.enqueue(look, found)
    DeviceWork(device.waited()).end()
    for index, fine in zip(asked, torch.isfinite(found).tolist(), strict=True):
        answers[index] = fine
    return answers


def _tell(norms: list[torch.Tensor], number: int, cell: torch.Tensor) -> None:
    cell.copy_(norms[number].view(1), non_blocking=True)


def _divide(sums: Sequence[torch.Tensor], by: torch.Tensor, means: Sequence[torch.Tensor]) -> None:
    for each, mean in zip(sums, means, strict=True):
        torch.div(each, by, out=mean)


def _views(bucket: Bucket, row: torch.Tensor) -> list[torch.Tensor]:
    """The pieces of ``row``. One operation of torch's for each: there are hundreds, and a GPU waits for this thread."""
    begin = row.storage_offset()
    return [row.as_strided(shape, strides, begin + offset) for shape, strides, offset in bucket.frames]
