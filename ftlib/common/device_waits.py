"""Waiting for devices: until an event, until everything that a thread has enqueued, and in the order of another thread."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol

import torch

from ..errors import Excluded
from .devices import Event, device_at, thread_device

PATIENCE = 60.0
"""Seconds after which a device that has not finished its work is given up, where nobody else watches the time."""
_SHORTEST, _LONGEST = 20e-6, 1e-3
"""Seconds between two looks at an event."""
_GLANCE = 0.005
"""Seconds between two questions whether a wait has become useless."""


class Mark(Protocol):
    """What can be reached: an event, or something that asks for one elsewhere."""

    def query(self) -> bool:
        """True once it is."""


def wait_for(event: Mark, timeout: float, given_up: Callable[[], bool] | None = None) -> bool:
    """Wait at most ``timeout`` seconds; False if the device is not done by then. Raises the device's error, if it has one.

    ``given_up``: asked now and then; True ends the wait.
    """
    began = looked = time.monotonic()
    while not event.query():
        now = time.monotonic()
        waited = now - began
        if waited >= timeout:
            return False
        if given_up is not None and now - looked >= _GLANCE:
            looked = now
            if given_up():
                return False
        time.sleep(min(max(waited / 50, _SHORTEST), _LONGEST, timeout - waited))
    return True


def end(event: Event) -> None:
    """Wait for ``event``; Excluded if the device hangs."""
    if not wait_for(event, PATIENCE):
        raise _hangs()


def end_unless(given_up: Callable[[], bool], event: Event) -> bool:
    """Wait for ``event``, or until it is of no use any more: then False. Excluded if the device hangs."""
    if wait_for(event, PATIENCE, given_up):
        return True
    if not given_up():
        raise _hangs()
    return False


def _hangs() -> Excluded:
    return Excluded(f"the device has not finished its work within {PATIENCE:g} s: it hangs; start this worker anew")


def settle(places: Iterable[str]) -> None:
    """Wait, once for each of these devices, until all that this thread has enqueued is done. Excluded if one hangs."""
    for event in [device_at(place).waited() for place in places]:
        end(event)


class Fence:
    """All that a thread had enqueued on some devices at one moment: other threads read its tensors after that."""

    def __init__(self, places: Iterable[str]) -> None:
        """The moment is now, the thread this one."""
        self._events = {place: device_at(place).record() for place in places}
        self.share_device = thread_device()
        """Makes the current device of the thread that calls it that of the fence's thread."""

    def follow(self, place: str) -> None:
        """Whatever the calling thread enqueues from now on at ``place`` begins after the fence. Does not wait."""
        event = self._events.get(place)
        if event is not None:
            device_at(place).follow(event)


_held: deque[tuple[Event, torch.Tensor]] = deque()


def hold(row: torch.Tensor, until: Event) -> None:
    """Keep CPU memory that nobody refers to any more, as a device may still read it, until ``drop_held``. For finalizers."""
    _held.append((until, row))


def drop_held(timeout: float = 0.0) -> None:
    """Free what no device reads any more, after waiting for each at most that many seconds."""
    for _ in range(len(_held)):
        try:
            event, row = _held.popleft()
        except IndexError:  # another thread has done it
            return
        if not _over(event, timeout):
            _held.append((event, row))


def _over(event: Event, timeout: float) -> bool:
    try:
        return wait_for(event, timeout)
    except Exception:  # noqa: BLE001 - whatever the device raises: it reads nothing any more
        return True
