"""A GPU where tests have a ``LateDevice``: tensors are moved there, and everything happens as the GPU does it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from ftlib.common.devices import device_at


class RealDevice:
    """``takes``: which tensors are on it."""

    def __init__(self, place: str, takes: Callable[[torch.Tensor], bool]) -> None:
        self.place = place
        self.takes = takes
        self._device = device_at(place)

    @property
    def waits(self) -> int:
        """See ``Device``."""
        return self._device.waits

    @property
    def operations(self) -> int:
        """See ``Device``."""
        return self._device.operations

    def put(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy on the device, if it takes such a tensor; else the tensor."""
        return tensor.to(self.place) if self.takes(tensor) else tensor

    @contextmanager
    def taking(self, takes: Callable[[torch.Tensor], bool]) -> Iterator[None]:
        """Until the end of the block, these tensors are put on it."""
        before, self.takes = self.takes, takes
        try:
            yield
        finally:
            self.takes = before

    @contextmanager
    def stream(self) -> Iterator[None]:
        """Until the end of the block, this thread enqueues on another stream of its own."""
        with torch.cuda.stream(torch.cuda.Stream(self.place)):
            yield

    def synchronize(self) -> None:
        """Wait until everything has happened, on all streams."""
        torch.cuda.synchronize(self.place)
