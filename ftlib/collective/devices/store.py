"""A store of torch.distributed for two, over their link: what one sets, the other has soon. No server, no port."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist


class LinkStore(dist.Store):  # type: ignore[name-defined, misc]
    """As much of a store as process groups of two need. Waits for keys until ``end``, or its time-out."""

    def __init__(self, tell: Callable[[str, bytes], None], timeout: float) -> None:
        """``tell`` gives a key and its value to the other one's ``received``; ``timeout`` in seconds."""
        super().__init__()
        self._tell = tell
        self._seconds = timeout
        self._changed = threading.Condition()
        self._values: dict[str, bytes] = {}
        self._why = ""

    def received(self, key: str, value: bytes) -> None:
        """The other one has set a key."""
        with self._changed:
            self._values[key] = value
            self._changed.notify_all()

    def end(self, why: str) -> None:
        """Nothing more comes: who waits gets DistStoreError."""
        with self._changed:
            self._why = why
            self._changed.notify_all()

    def set(self, key: str, value: Any) -> None:
        """See torch."""
        data = value.encode() if isinstance(value, str) else bytes(value)
        self.received(key, data)
        self._tell(key, data)

    def get(self, key: str) -> bytes:
        """See torch: blocks until the key is there."""
        self.wait([key])
        return self._values[key]

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """See torch."""
        seconds = self._seconds if timeout is None else timeout.total_seconds()
        until = time.monotonic() + seconds
        with self._changed:
            while missing := [key for key in keys if key not in self._values]:
                if self._why or not self._changed.wait(until - time.monotonic()):
                    raise dist.DistStoreError(f"the peer has not set {missing}: {self._why or f'not in {seconds:g} s'}")

    def check(self, keys: list[str]) -> bool:
        """See torch."""
        with self._changed:
            return all(key in self._values for key in keys)

    def add(self, key: str, amount: int) -> int:
        """See torch; for a key that one of the two counts alone."""
        with self._changed:
            value = int(self._values.get(key, b"0")) + amount
        self.set(key, str(value))
        return value

    def set_timeout(self, timeout: timedelta) -> None:
        """See torch."""
        self._seconds = timeout.total_seconds()

    def has_extended_api(self) -> bool:
        """See torch."""
        return False
