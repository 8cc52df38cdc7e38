"""An operation on a row of CPU memory that stands for a tensor on a device."""

from __future__ import annotations

import threading

import torch

from ftlib.common.device_waits import end
from ftlib.common.devices import Device, Event
from ftlib.errors import GroupError
from ftlib.frameworks.base import Work

from .rows import Row


class StagedWork(Work):
    """``wait`` enqueues the copy of the result on the stream of the thread that waits, and does not wait for the device."""

    def __init__(self, work: Work, row: Row, device: Device, target: torch.Tensor | None, after: Event | None) -> None:
        """``work``: that of the operation on ``row``. ``target``: where the result goes; None if there is none for this rank.

        ``after``: what was enqueued before the operation, if that need not have happened: the copy begins after it.
        """
        self._work = work
        self._row = row
        self._device = device
        self._target = target
        self._after = after
        self._lock = threading.Lock()
        self._copied: Event | None = None
        """The end of the copy to ``target``, once it is enqueued. Guarded by ``_lock``, as the next."""
        self._left = False
        """True once the row was left: it may be another operation's by now."""

    def __del__(self) -> None:
        """Nobody waited for it: nobody needs the result."""
        if not getattr(self, "_left", True):
            self._row.leave()

    def wait(self, timeout: float) -> bool:
        """True: the operation has ended, and whatever this thread enqueues from now on finds the result in the tensor.

        Where it has failed, the tensor is as it was.
        """
        try:
            if not self._work.wait(timeout):
                return False
        except GroupError:
            with self._lock:
                self._leave()
            raise
        self._bring()
        return True

    def done(self) -> bool:
        """True once the operation has ended, and no copy of its result is under way."""
        with self._lock:
            copied = self._copied
        if not self._work.done():
            return False
        try:
            return copied is None or copied.query()
        except Exception:  # noqa: BLE001 - whatever the device raises: it does nothing any more
            return True

    def land(self, timeout: float) -> bool:
        """True: the result is in the tensor, on the device. Excluded if the device hangs."""
        with (
            self._device.beside()
        ):  # torch's threads share a stream: the copy need not wait for what the program enqueued since
            if not self.wait(timeout):
                return False
        with self._lock:
            copied = self._copied
        if copied is not None:
            self._device.awaited()
            end(copied)
        return True

    def _bring(self) -> None:
        """Once, whichever thread waits first: enqueue the copy. The others' streams only have to follow it."""
        target, row, device = self._target, self._row, self._device
        with self._lock:
            if self._copied is not None:
                device.follow(self._copied)
            elif target is not None:
                if self._after is not None:
                    device.follow(self._after)
                source = row.memory[: target.nbytes].view(target.dtype).view(target.shape)
                device.enqueue(lambda: target.copy_(source, non_blocking=True), target)
                self._copied = device.record()
                row.used_until(self._copied)
            self._leave()

    def _leave(self) -> None:
        if not self._left:
            self._left = True
            self._row.leave()
