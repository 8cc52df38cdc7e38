"""Copies between tensors on devices and CPU memory, many of them with one wait for each device."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch

from .device_waits import Fence, end
from .devices import Event, device_at, place_of

_BUNDLE = 32 << 20
"""Bytes that ``on_host`` copies with one wait; a larger tensor alone."""


class Bundle:
    """Operations on devices that are enqueued together. One thread's."""

    def __init__(self, after: Fence | None = None) -> None:
        """``after``: they begin after that fence of another thread's, beside what that thread enqueues meanwhile.

        None: after everything that this thread has enqueued.
        """
        self._after = after
        self._operations: dict[str, list[tuple[Callable[[], object], Sequence[torch.Tensor]]]] = {}

    def add(self, place: str, operation: Callable[[], object], *writes: torch.Tensor) -> None:
        """One more; ``writes``: see ``Device.launch``."""
        self._operations.setdefault(place, []).append((operation, writes))

    def run(self) -> None:
        """Carry all of them out; they are done when this returns. Excluded if a device hangs."""
        for event in [self._enqueue(place) for place in self._operations]:
            end(event)
        self._operations.clear()

    def _enqueue(self, place: str) -> Event:
        device = device_at(place)
        with contextlib.nullcontext() if self._after is None else device.beside():
            if self._after is not None:
                self._after.follow(place)
            for operation, writes in self._operations[place]:
                device.enqueue(operation, *writes)
            return device.waited()


def host_copies(tensors: Iterable[torch.Tensor], after: Fence | None = None) -> list[torch.Tensor]:
    """Copies of all ``tensors`` in CPU memory. One without gaps in memory keeps its strides. ``after``: see ``Bundle``."""
    bundle = Bundle(after)
    copies = [_copy(bundle, tensor) for tensor in tensors]
    bundle.run()
    return copies


def on_host(tensors: Iterable[torch.Tensor], after: Fence | None = None) -> Iterator[torch.Tensor]:
    """The ``tensors`` in order, those on devices as copies in CPU memory, made as they are asked for."""
    batch: list[torch.Tensor] = []
    nbytes = 0
    for tensor in tensors:
        size = tensor.nbytes if place_of(tensor) else 0
        if nbytes and nbytes + size > _BUNDLE:
            yield from _batch(batch, after)
            batch, nbytes = [], 0
        batch.append(tensor)
        nbytes += size
    yield from _batch(batch, after)


def _batch(tensors: Sequence[torch.Tensor], after: Fence | None) -> Iterator[torch.Tensor]:
    copied = iter(host_copies([tensor for tensor in tensors if place_of(tensor)], after))
    for tensor in tensors:
        yield next(copied) if place_of(tensor) else tensor


def _copy(bundle: Bundle, tensor: torch.Tensor) -> torch.Tensor:
    source, place = tensor.detach(), place_of(tensor)
    copy = torch.empty_like(source, device="cpu")
    if place:
        bundle.add(place, lambda: copy.copy_(source, non_blocking=True), copy)
    else:
        copy.copy_(source)
    return copy
