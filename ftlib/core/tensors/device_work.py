"""What a device has been told to do, as something to wait for."""

from __future__ import annotations

import torch

from ...common.device_waits import end, wait_for
from ...common.devices import Event
from ...frameworks.base import Work


class DeviceWork(Work):
    """Everything that was enqueued on a stream before an event."""

    def __init__(self, event: Event, source: torch.Tensor | None = None) -> None:
        """``source``: a tensor that has to live until then."""
        self._event = event
        self._source = source

    def wait(self, timeout: float) -> bool:
        """Raises the device's error, if it has one."""
        return wait_for(self._event, timeout)

    def done(self) -> bool:
        """True once the device has done all of it, or has failed."""
        try:
            return self._event.query()
        except Exception:  # noqa: BLE001 - whatever the device raises: it does nothing any more
            return True

    def end(self) -> None:
        """Wait for it; Excluded if the device hangs."""
        end(self._event)


class NothingToDo(Work):
    """Of what is on no device."""

    def wait(self, timeout: float) -> bool:  # noqa: ARG002
        """See ``Work``."""
        return True

    def done(self) -> bool:
        """See ``Work``."""
        return True
