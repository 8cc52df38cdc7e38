"""A copy of the registered state as it was at the last commit, to which a step that fails returns.

Tensors are copied into buffers that stay from step to step, so that their memory is touched once; plain values are copied with
the tree that holds them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from ..common.memory import room
from .codec import fill, flatten
from .registry import Registered


class Kept:
    """The registered state at one moment, valid until the next is kept in the same ``Backup``."""

    def __init__(self, registered: Registered, packed: object, tensors: Mapping[str, torch.Tensor]) -> None:
        self._registered = registered
        self._packed = packed
        self._tensors = dict(tensors)

    def tree(self) -> object:
        """The state, to be read alone: its tensors are the buffers themselves."""
        return fill(self._packed, self._tensors.values())

    def restore(self) -> None:
        """Make the registered objects what they were. ConfigError where they do not take their own state."""
        # Clones: an optimizer keeps the very tensors that it is given.
        self._registered.restore(fill(self._packed, [tensor.clone() for tensor in self._tensors.values()]))


class Backup:
    """The buffers. Used by the training thread; others may read what is kept, as long as the call lasts that it is kept for."""

    def __init__(self) -> None:
        self._buffers: dict[str, torch.Tensor] = {}

    @property
    def nbytes(self) -> int:
        """Memory that is held."""
        return sum(buffer.numel() * buffer.element_size() for buffer in self._buffers.values())

    def keep(self, registered: Registered, step: int) -> Kept:
        """Copy the state, which is that after ``step`` steps. ConfigError naming a value that cannot be kept."""
        packed, tensors = flatten(registered.tree(step))
        self._buffers = {path: self._buffer(path, tensor) for path, tensor in tensors.items()}
        if tensors:
            torch._foreach_copy_(list(self._buffers.values()), [tensor.detach() for tensor in tensors.values()])
        return Kept(registered, packed, self._buffers)

    def forget(self) -> None:
        """Give the memory back."""
        self._buffers = {}

    def _buffer(self, path: str, tensor: torch.Tensor) -> torch.Tensor:
        buffer = self._buffers.get(path)
        if buffer is None or (buffer.shape, buffer.dtype, buffer.device) != (tensor.shape, tensor.dtype, tensor.device):
            if tensor.device.type != "cpu":
                return torch.empty_like(tensor, requires_grad=False, memory_format=torch.contiguous_format)
            buffer = room(math.prod(tensor.shape), tensor.dtype).view(tensor.shape)
        return buffer
