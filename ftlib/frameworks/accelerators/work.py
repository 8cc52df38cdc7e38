"""Waiting for operations on a device that calls operations ended which were only stopped."""

from __future__ import annotations

import time
from typing import Protocol

from ftlib.errors import GroupError
from ftlib.frameworks.base import Work

from .base import Ticket

SHORTEST, LONGEST = 20e-6, 1e-3
"""Bounds in seconds of a sleep between two looks at the device: one of a ``_SHARE``-th of the time waited so far."""
_SHARE = 50
LOOK = 0.005
"""Seconds between two questions for what does not end an operation: asynchronous errors and broken connections."""
GRACE = 0.02
"""Seconds for an operation to end after a connection broke: a peer that has it may just be leaving. The agents know better."""
PROOF = 0.01
"""Seconds for a connection to break after the library has reported an error, if a peer's death is the reason."""
ABANDON = 0.1
"""Seconds for operations to end after an abort until a wait for them fails anyway."""


class Starting(Protocol):
    """What the wait for a start needs of a communicator."""

    def await_start(self, seconds: float) -> bool:
        """Wait at most so long until it is ready, in trouble or stopped; True if it is."""


class AcceleratorStart(Work):
    """The start of a communicator, or as much of it as somebody is ready to wait for."""

    def __init__(self, communicator: Starting, seconds: float) -> None:
        self._communicator = communicator
        self._deadline = time.monotonic() + seconds

    def wait(self, timeout: float) -> bool:
        """See ``Work``. Never fails."""
        left = self._deadline - time.monotonic()
        return self._communicator.await_start(max(0.0, min(timeout, left))) or left <= timeout

    def done(self) -> bool:
        """See ``Work``."""
        return self.wait(0.0)


class Owner(Protocol):
    """What a work needs of its group."""

    @property
    def aborted(self) -> bool:
        """True once an abort has begun."""

    def failure(self, ticket: Ticket) -> GroupError | None:
        """Why operations that the device calls ended have failed; None if they have succeeded."""

    def blame(self, error: str) -> GroupError:
        """The error to report if the library has reported one."""

    def broken(self) -> GroupError | None:
        """The error to report if a connection to a peer has broken."""


class AcceleratedWork(Work):
    """Operations that were launched together. An event alone is no success: see ``HybridGroup.failure``."""

    def __init__(self, owner: Owner, ticket: Ticket) -> None:
        self._owner = owner
        self._ticket = ticket
        self._began = time.monotonic()
        self._next_look = self._began + LOOK
        self._broken_since = 0.0
        self._erring_since = 0.0
        self._aborted_since = 0.0
        self._succeeded = False
        self._error: GroupError | None = None

    def done(self) -> bool:
        """True once the device no longer uses the buffers, whatever they hold; also if it has failed."""
        try:
            return self._ticket.query()
        except Exception:  # noqa: BLE001 - whatever the device raises: it does nothing any more
            return True

    def wait(self, timeout: float) -> bool:
        """See ``Work``. Also fails when the library reports an error, or when a connection to a peer has broken.

        Raises the device's error, if it has one.
        """
        deadline = time.monotonic() + timeout
        while not self._ended():
            now = time.monotonic()
            if now >= deadline:
                return False
            time.sleep(min(max((now - self._began) / _SHARE, SHORTEST), LONGEST, deadline - now))
        return True

    def _ended(self) -> bool:
        """Look once. Raises the error that the operations have ended with, or will never end but for an abort."""
        if self._succeeded:
            return True
        if self._error is None:
            if self._ticket.query():
                self._error = self._owner.failure(self._ticket)
                self._succeeded = self._error is None
            else:
                self._error = self._look(time.monotonic())
        if self._error is not None:
            raise self._error.afresh()
        return self._succeeded

    def _look(self, now: float) -> GroupError | None:
        """What is known against operations that have not ended."""
        if self._owner.aborted:
            self._aborted_since = self._aborted_since or now
            if now - self._aborted_since > ABANDON:
                return GroupError("operations abandoned: their group was aborted, and they do not end on the device")
            return None
        if now < self._next_look:
            return None
        self._next_look = now + LOOK
        error = self._ticket.error()
        if error:  # if a peer's death is the reason, a connection breaks, too: now, or in a moment
            self._erring_since = self._erring_since or now
            patient = now - self._erring_since <= PROOF and self._owner.broken() is None
            return None if patient else self._owner.blame(error)
        if self._broken_since:
            return self._owner.broken() if now - self._broken_since > GRACE else None
        if self._owner.broken() is not None:
            self._broken_since = now
        return None
