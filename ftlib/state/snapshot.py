"""A copy of the registered state at the last commit; a step that fails goes back to it.

Tensors are copied into buffers that are kept from step to step, so that their memory is touched for the first time only once.
Plain values are copied with the tree that holds them. A tensor on a device is copied there: nobody waits for that.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import NamedTuple, Self

import torch

from ..common.device_waits import Fence, settle
from ..common.devices import device_at, place_of
from ..common.host_copies import host_copies
from ..common.memory import room, touch
from .codec import fill, flatten
from .registry import Registered
from .strides import in_memory_order, memory_order, shaped


class Blank(NamedTuple):
    """What a buffer has to be like."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    place: str
    """The device that it is on."""
    order: tuple[int, ...]
    """Of its dimensions in memory, see ``memory_order``."""

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Self:
        """A buffer for ``tensor``."""
        return cls(tuple(tensor.shape), tensor.dtype, place_of(tensor), memory_order(tensor))


class Kept:
    """The registered state at one moment, valid until the same ``Backup`` keeps the next one."""

    def __init__(self, registered: Registered, packed: object, tensors: Mapping[str, torch.Tensor]) -> None:
        self._registered = registered
        self._packed = packed
        self._tensors = dict(tensors)
        self._places = tuple(dict.fromkeys(filter(None, map(place_of, tensors.values()))))
        self.fence = Fence(self._places)
        """Other threads may read the tree after that."""

    def tree(self) -> object:
        """The state, read-only: its tensors are the buffers themselves."""
        return fill(self._packed, self._tensors.values())

    def restore(self) -> None:
        """Restore the registered objects. ConfigError if they refuse their own state."""
        settle(self._places)  # what the step did there may still be under way
        # Clones, because an optimizer keeps the tensor objects that it is given.
        self._registered.restore(fill(self._packed, [tensor.clone() for tensor in self._tensors.values()]))


class Before:
    """A copy of the registered state in CPU memory, as another member would get it, to return to if a load is refused."""

    def __init__(self, registered: Registered) -> None:
        """Copy it as it is now. ConfigError names a value that cannot be kept."""
        self._registered = registered
        self._packed, tensors = flatten(registered.tree(0))
        self._copies = host_copies(tensors.values())

    def restore(self) -> None:
        """Restore the registered objects, once. ConfigError if they refuse their own state."""
        self._registered.load(fill(self._packed, self._copies))


class Backup:
    """The buffers. The training thread uses them; other threads may read the kept state until the call it serves ends."""

    def __init__(self) -> None:
        self._buffers: dict[str, torch.Tensor] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of memory in use."""
        return sum(buffer.numel() * buffer.element_size() for buffer in self._buffers.values())

    def keep(self, registered: Registered, step: int) -> Kept:
        """Copy the state, as it is after ``step`` steps. ConfigError names a value that cannot be kept."""
        packed, tensors = flatten(registered.tree(step, own=True))
        self.copy(tensors)
        return Kept(registered, packed, self._buffers)

    def prepare(self, like: Mapping[str, Blank]) -> None:
        """Make the buffers for such tensors, and touch their memory, so that ``copy`` only copies. On any one thread."""
        made = {path: self._made(blank) for path, blank in like.items()}
        for path, blank in like.items():
            if not blank.place and made[path].numel():
                touch(in_memory_order(made[path]).view(-1))
        self._buffers = made

    def prepared(self, tensors: Mapping[str, torch.Tensor]) -> bool:
        """True if there are buffers for these tensors."""
        return all(self._fitting(path, tensor) is not None for path, tensor in tensors.items())

    def copy(self, tensors: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        """Copy the tensors into the buffers; returns these, by path, too."""
        found = ((path, tensor, self._fitting(path, tensor)) for path, tensor in tensors.items())
        self._buffers = {path: self._made(Blank.of(tensor)) if buffer is None else buffer for path, tensor, buffer in found}
        pairs: dict[str, tuple[list[torch.Tensor], list[torch.Tensor]]] = {}
        for buffer, tensor in zip(self._buffers.values(), tensors.values(), strict=True):
            buffers, sources = pairs.setdefault(place_of(tensor), ([], []))
            buffers.append(buffer)
            sources.append(tensor.detach())
        for place, (buffers, sources) in pairs.items():
            copy = functools.partial(torch._foreach_copy_, buffers, sources)
            if place:
                device_at(place).enqueue(copy, *buffers)
            else:
                copy()
        return self._buffers

    def forget(self) -> None:
        """Free the memory."""
        self._buffers = {}

    def _fitting(self, path: str, tensor: torch.Tensor) -> torch.Tensor | None:
        buffer = self._buffers.get(path)
        if buffer is None or (buffer.shape, buffer.dtype, buffer.device) != (tensor.shape, tensor.dtype, tensor.device):
            return None
        order = memory_order(tensor)
        return buffer if (buffer.permute(order) if order else buffer).is_contiguous() else None

    @staticmethod
    def _made(blank: Blank) -> torch.Tensor:
        make = device_at(blank.place).empty if blank.place else room
        return shaped(make(math.prod(blank.shape), blank.dtype), blank.shape, blank.order)
