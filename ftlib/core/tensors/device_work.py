"""What a device has been told to do, as something to wait for."""

from __future__ import annotations

import time

from ...common.devices import Event
from ...errors import Excluded
from ...frameworks.base import Work

__all__ = ["PATIENCE", "DeviceWork"]

PATIENCE = 60.0
"""Seconds after which a device that has not finished its copies is given up, where nobody else watches the time."""
_SHORTEST, _LONGEST = 20e-6, 1e-3
"""Seconds between two looks at an event."""


class DeviceWork(Work):
    """Everything that was enqueued on a stream before an event."""

    def __init__(self, event: Event) -> None:
        self._event = event

    def wait(self, timeout: float) -> bool:
        """Raises the device's error, if it has one."""
        began = time.monotonic()
        while not self._event.query():
            waited = time.monotonic() - began
            if waited >= timeout:
                return False
            time.sleep(min(max(waited / 50, _SHORTEST), _LONGEST, timeout - waited))
        return True

    def done(self) -> bool:
        """True once the device has done all of it, or has failed."""
        try:
            return self._event.query()
        except Exception:  # noqa: BLE001 - whatever the device raises: it does nothing any more
            return True

    def end(self) -> None:
        """Wait for it; Excluded if the device hangs."""
        if not self.wait(PATIENCE):
            raise Excluded(f"the device has not finished its copies within {PATIENCE:g} s: it hangs; start this worker anew")
