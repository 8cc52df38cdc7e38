"""A group of which tensors on devices may be asked, too: they go through CPU memory, there by the group as it is."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ftlib.common.device_waits import end
from ftlib.common.devices import HOST, Device, device_at
from ftlib.errors import ConfigError
from ftlib.frameworks.base import Group, Operation, OperationKind, Work

from .rows import HostRows, Row
from .work import StagedWork


class StagedGroup(Group):
    """What ``ft.group`` is. Accelerators are for the calls of the library: nothing here goes by them."""

    def __init__(self, group: Group, place: Callable[[torch.Tensor], str], rows: HostRows) -> None:
        """``place``: see ``Framework``."""
        self.rank, self.size = group.rank, group.size
        self._group = group
        self._place = place
        self._rows = rows

    def __repr__(self) -> str:
        return f"<StagedGroup of {self._group!r}>"

    def submit(self, operation: Operation) -> Work:
        """See ``Group``. A tensor on a device need not be contiguous.

        What is sent is read here: this waits until the device has copied it, as the operation begins only then. Raises the
        device's error; Excluded if the device hangs.
        """
        place = self._place(operation.tensor)
        if place == HOST:
            return self._group.submit(operation)
        try:
            device = device_at(place)
        except ValueError as error:
            raise ConfigError(str(error)) from None
        return self._group.submit(operation) if device.unified else self._staged(device, operation)

    def abort(self) -> None:
        """See ``Group``."""
        self._group.abort()

    def close(self) -> None:
        """See ``Group``."""
        self._group.close()

    def _staged(self, device: Device, operation: Operation) -> Work:
        tensor = operation.tensor.detach()
        if tensor.layout is not torch.strided:
            raise ConfigError(f"groups work on dense tensors, this one is {tensor.layout}: call .to_dense() on it")
        kind = operation.kind
        gives = kind is OperationKind.SEND or (kind is OperationKind.BROADCAST and operation.peer == self.rank)
        row = self._rows.take(tensor.nbytes, device)
        host = row.memory[: tensor.nbytes].view(tensor.dtype)
        try:
            after = None
            if gives or kind not in (OperationKind.BROADCAST, OperationKind.RECV):
                _fetch(device, row, host, tensor)
            else:
                after = device.record()
            work = self._group.submit(operation._replace(tensor=host))
        except BaseException:
            row.leave()
            raise
        row.used_by(work)
        return StagedWork(work, row, device, None if gives else tensor, after)


def _fetch(device: Device, row: Row, host: torch.Tensor, tensor: torch.Tensor) -> None:
    """Copy ``tensor`` to its row, and wait for that: an operation reads the row as soon as it begins."""
    device.enqueue(lambda: host.view(tensor.shape).copy_(tensor, non_blocking=True), host)
    copied = device.waited()
    row.used_until(copied)  # where the device hangs, for ever
    end(copied)
