"""CPU memory that operations on a device's tensors go through. To lock its pages takes longer than a copy, so it is kept.

A row is used again only if the operation has ended physically, however it ended, and no device uses the row any more.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch

from ftlib.common.device_waits import drop_held, hold
from ftlib.common.devices import Device, Event
from ftlib.frameworks.base import Work

_PAGE = 4096
"""Rows are so many bytes long, or a multiple."""
_KEPT = 256 << 20
"""Bytes at most that are kept for later operations."""


class Row:
    """Some CPU memory, lent to one operation at a time."""

    def __init__(self, memory: torch.Tensor) -> None:
        self.memory = memory
        self._copy: Event | None = None
        """The end of the newest copy that a device makes to or from this row."""
        self._work: Work | None = None
        self._wanted = True

    def __del__(self) -> None:
        """The memory must outlive what a device does with it."""
        copy = getattr(self, "_copy", None)
        if copy is not None and not _reached(copy):
            hold(self.memory, copy)

    @property
    def idle(self) -> bool:
        """True if neither an operation nor a device uses the row, and none will."""
        ended = self._work is None or self._work.done()
        return not self._wanted and ended and (self._copy is None or _reached(self._copy))

    def take(self) -> None:
        """For another operation, as it is idle."""
        self._wanted, self._work, self._copy = True, None, None

    def used_by(self, work: Work) -> None:
        """An operation works on the row."""
        self._work = work

    def used_until(self, end: Event) -> None:
        """A device copies to the row, or from it, until ``end``."""
        self._copy = end

    def leave(self) -> None:
        """Nobody needs what the row holds; it is idle once operation and copy have ended. For finalizers: takes no lock."""
        self._wanted = False


class HostRows:
    """All rows. Any thread."""

    def __init__(self, allocate: Callable[[int, torch.dtype], torch.Tensor]) -> None:
        """``allocate``: see ``Framework``."""
        self._allocate = allocate
        self._lock = threading.Lock()
        self._rows: list[Row] = []
        """Those in use, and idle ones up to ``_KEPT``; the newest last. Guarded by ``_lock``."""

    def take(self, nbytes: int, device: Device) -> Row:
        """An idle row of at least that many bytes, or a new one. Does not wait."""
        size = max(1, -(-nbytes // _PAGE)) * _PAGE
        with self._lock:
            idle = [row for row in self._rows if row.idle]
            fitting = [row for row in idle if size <= row.memory.nbytes <= 2 * size]
            row = min(fitting, key=lambda each: each.memory.nbytes, default=None)
            if row is not None:
                row.take()
                return row
            over = sum(each.memory.nbytes for each in idle) - _KEPT
            for each in idle:
                if over <= 0:
                    break
                self._rows.remove(each)
                over -= each.memory.nbytes
        drop_held()
        row = Row(self._allocate(size, torch.uint8))
        device.pin(row.memory)
        with self._lock:
            self._rows.append(row)
        return row


def _reached(event: Event) -> bool:
    try:
        return event.query()
    except Exception:  # noqa: BLE001 - whatever the device raises: it does nothing any more
        return True
