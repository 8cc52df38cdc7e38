"""``ft.group`` within a unit: wraps the session's group, and notes failures of the program's own collectives.

So the unit knows of a failure, whatever the program makes of it (another exception, or nothing).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from ...errors import ConfigError, GroupError
from ...frameworks.base import Group, Operation, Work


class GuardedGroup(Group):
    """The guarded group of one attempt."""

    def __init__(
        self, group: Group, failed: Callable[[GroupError], GroupError], waiting: Callable[[], AbstractContextManager[None]]
    ) -> None:
        """``failed``: takes a failure, and returns the error to raise. ``waiting``: entered while waiting for an operation."""
        self.rank, self.size = group.rank, group.size
        self._group = group
        self._failed = failed
        self._waiting = waiting
        self.works: list[Work] = []
        """Operations for whose end the program has not waited."""

    def submit(self, operation: Operation) -> Work:
        """See ``Group``. ConfigError for a tensor whose memory holds other values than it, as its bytes are sent."""
        if operation.tensor.is_neg() or operation.tensor.is_conj():
            raise ConfigError(
                f"{operation.kind.value}: the tensor is a view that negates or conjugates what is in memory, as x.conj().imag: "
                "pass tensor.resolve_conj().resolve_neg(), which is a tensor of its own"
            )
        guarded = _GuardedWork(self._group.submit(operation), self)
        self.works.append(guarded)
        return guarded

    def abort(self) -> None:
        """See ``Group``. The unit is run again."""
        self._group.abort()
        self._failed(GroupError("the program aborted the group"))

    def close(self) -> None:
        """Only the library closes a group: same as ``abort``."""
        self.abort()

    def wait(self, guarded: Work, wait: Callable[[float], bool], timeout: float) -> bool:
        """Wait for the operation of ``guarded`` by ``wait``."""
        try:
            with self._waiting():
                ended = wait(timeout)
        except GroupError as error:
            raise self._failed(error) from None
        if ended and guarded in self.works:
            self.works.remove(guarded)
        return ended


class _GuardedWork(Work):
    def __init__(self, work: Work, group: GuardedGroup) -> None:
        self._work = work
        self._group = group

    def wait(self, timeout: float) -> bool:
        """See ``Work``."""
        return self._group.wait(self, self._work.wait, timeout)

    def land(self, timeout: float) -> bool:
        """See ``Work``."""
        return self._group.wait(self, self._work.land, timeout)

    def done(self) -> bool:
        """See ``Work``."""
        return self._work.done()
