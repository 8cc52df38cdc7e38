"""``ft.group`` within a unit: the session's group, which notes where one of the program's own collectives failed.

What the program makes of the failure (another exception, or nothing) does not matter then: the unit knows.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import torch

from .errors import GroupError
from .frameworks.base import Group, Work

__all__ = ["GuardedGroup"]


class GuardedGroup(Group):
    """One attempt's."""

    def __init__(
        self, group: Group, failed: Callable[[GroupError], GroupError], waiting: Callable[[], AbstractContextManager[None]]
    ) -> None:
        """``failed``: told of a failure; the error to raise. ``waiting``: entered while an operation is waited for."""
        self.rank, self.size = group.rank, group.size
        self._group = group
        self._failed = failed
        self._waiting = waiting
        self.works: list[Work] = []
        """Operations whose end the program has not seen."""

    def allreduce(self, tensor: torch.Tensor, op: str = "SUM") -> Work:
        """See ``Group``."""
        return self._guarded(self._group.allreduce(tensor, op))

    def broadcast(self, tensor: torch.Tensor, root: int) -> Work:
        """See ``Group``."""
        return self._guarded(self._group.broadcast(tensor, root))

    def barrier(self) -> Work:
        """See ``Group``."""
        return self._guarded(self._group.barrier())

    def send(self, tensor: torch.Tensor, to: int, tag: int) -> Work:
        """See ``Group``."""
        return self._guarded(self._group.send(tensor, to, tag))

    def recv(self, tensor: torch.Tensor, source: int, tag: int) -> Work:
        """See ``Group``."""
        return self._guarded(self._group.recv(tensor, source, tag))

    def abort(self) -> None:
        """See ``Group``. The unit is carried out again."""
        self._group.abort()
        self._failed(GroupError("the program aborted the group"))

    def close(self) -> None:
        """The library's to close: as ``abort``."""
        self.abort()

    def _guarded(self, work: Work) -> Work:
        guarded = _GuardedWork(work, self)
        self.works.append(guarded)
        return guarded

    def wait(self, guarded: Work, work: Work, timeout: float) -> bool:
        """Wait for ``work``, on behalf of ``guarded``."""
        try:
            with self._waiting():
                ended = work.wait(timeout)
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
        return self._group.wait(self, self._work, timeout)

    def done(self) -> bool:
        """See ``Work``."""
        return self._work.done()
