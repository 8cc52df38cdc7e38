"""Starting collectives only once it is sure that all ranks start the same ones, at no cost where that was foreseeable.

See ``foresight`` for the reasoning. An operation that was not foreseen waits, and with it all later ones, until the ranks
have compared it; whoever waits for an operation carries the line forward.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Protocol

import torch

from ftlib.errors import GroupError
from ftlib.frameworks.base import Work
from ftlib.frameworks.foresight import Foresight
from ftlib.frameworks.gloo_work import FailedWork, afresh

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

__all__ = ["Line"]


class _Owner(Protocol):
    """What a line asks its group."""

    rank: int
    size: int

    def gather(self, outputs: list[torch.Tensor], mine: torch.Tensor) -> Work:
        """Give every rank all ranks' tensors. Must match nothing but itself."""
        ...

    def abort(self) -> None: ...


class Line:
    """The collectives of one group, in order. Used by one thread at a time, but ``fail`` by any."""

    def __init__(self, owner: _Owner) -> None:
        self._owner = owner
        self._foresight = Foresight()
        self._late: deque[_LateWork] = deque()
        self._error: GroupError | None = None
        self._turn = threading.Lock()

    def start(self, operation: Hashable, launch: Callable[[], Work]) -> Work:
        """Launch at once if all ranks are known to do the same; else give a work that will."""
        if self._error is not None:
            return FailedWork(self._error)
        foreseen = self._foresight.foresaw(operation)
        if foreseen and not self._late:
            return launch()
        work = _LateWork(self, operation, launch, foreseen=foreseen)
        self._late.append(work)
        self.advance(work, 0.0)
        return work

    def advance(self, work: _LateWork, timeout: float) -> bool:
        """Launch what may be launched, up to ``work``, in at most ``timeout`` seconds. Whether ``work`` was reached."""
        deadline = time.monotonic() + timeout
        if not self._turn.acquire(timeout=max(0.0, timeout)):
            return work.reached
        try:
            while not work.reached:
                head = self._late[0]
                if not self._agreed(head, deadline - time.monotonic()):
                    return False
                head.inner = head.launch()
                self._late.popleft()
        except GroupError as error:
            # One operation was left out here, so the next would meet wrong ones at ranks that did not fail.
            self._error = afresh(error)
            self._owner.abort()
            while self._late:
                self._late.popleft().inner = FailedWork(self._error)
        finally:
            self._turn.release()
        return True

    def _agreed(self, head: _LateWork, timeout: float) -> bool:
        """Whether all ranks are known to do the same as ``head``. GroupError if they do not."""
        if head.foreseen:
            return True
        if head.comparison is None:
            digest = hashlib.blake2b(repr(head.operation).encode(), digest_size=8).digest()
            head.digests = [torch.frombuffer(bytearray(digest), dtype=torch.int64).clone()]
            head.digests += [torch.zeros_like(head.digests[0]) for _ in range(self._owner.size)]
            head.comparison = self._owner.gather(head.digests[1:], head.digests[0])
        if timeout <= 0 and not head.comparison.done():
            return False
        if not head.comparison.wait(timeout):
            return False
        mine, *theirs = [int(digest) for digest in head.digests]
        other = [rank for rank, digest in enumerate(theirs) if digest != mine]
        if other:
            rank = self._owner.rank
            raise GroupError(f"rank {rank} enters {head.operation}, but ranks {other} enter another operation")
        return True


class _LateWork(Work):
    """An operation that waits for its turn, then the work of it."""

    def __init__(self, line: Line, operation: Hashable, launch: Callable[[], Work], *, foreseen: bool) -> None:
        self.operation, self.launch, self.foreseen = operation, launch, foreseen
        self.comparison: Work | None = None
        self.digests: list[torch.Tensor] = []
        self.inner: Work | None = None
        self._line = line

    @property
    def reached(self) -> bool:
        return self.inner is not None

    def wait(self, timeout: float) -> bool:
        deadline = time.monotonic() + timeout
        if not self._line.advance(self, timeout) or self.inner is None:
            return False
        return self.inner.wait(deadline - time.monotonic())

    def done(self) -> bool:
        self._line.advance(self, 0.0)
        return self.inner is not None and self.inner.done()
