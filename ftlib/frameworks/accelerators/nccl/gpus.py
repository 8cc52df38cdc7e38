"""The GPUs of this process: which one NCCL is to use, and which tensors are there."""

from __future__ import annotations

from typing import NamedTuple

import torch

from ftlib.common.devices import Device, device_at, place_of

from .library import Unavailable


class Gpu(NamedTuple):
    """One GPU."""

    place: str
    """As torch calls it here: ``cuda:0``."""
    uuid: str
    """Alike in all processes that use it."""

    @property
    def device(self) -> Device:
        """Its streams."""
        return device_at(self.place)


class Gpus:
    """As torch sees them. Tests replace it."""

    def current(self) -> Gpu:
        """The current device of this thread. Unavailable if there is none."""
        if not torch.cuda.is_available():
            raise Unavailable("torch sees no CUDA device")
        index = torch.cuda.current_device()
        return Gpu(f"cuda:{index}", str(torch.cuda.get_device_properties(index).uuid))

    def place(self, tensor: torch.Tensor) -> str:
        """The place of a tensor (see ``Framework.place``)."""
        return place_of(tensor)

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is on any of them."""
        return tensor.is_cuda
