"""Operations of a group of ftlib as a ``torch.distributed.Work``."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist

from ...common.threads import LONGEST
from ...errors import GroupError
from ...frameworks.background import start_task
from ...frameworks.base import Work

__all__ = ["GroupWork"]


class _Owner(Protocol):
    """What a work needs of its group."""

    def fail(self, why: str) -> None:
        """Abort it: a rank that has gone on may be waited for no longer."""


class GroupWork(dist.Work):
    """One or more operations under way."""

    def __init__(self, owner: _Owner, parts: Sequence[Work], finish: Callable[[], None], result: Any, timeout: float) -> None:
        """``finish``: copies results to where they belong, once all parts have ended. ``result``: what the future gives.

        ``timeout``: seconds until ``wait`` gives up.
        """
        super().__init__()
        self._owner, self._parts, self._finish = owner, tuple(parts), finish
        self._result, self._timeout = result, timeout
        self._lock = threading.Lock()
        # Guarded by it:
        self._ended = False
        self._error: Exception | None = None
        self._future: torch.futures.Future[Any] | None = None

    def wait(self, timeout: timedelta | None = None) -> bool:
        """The results are there. DistBackendError if an operation failed, or took longer than ``timeout`` (by default the
        group's): the group is aborted then, and its ranks hear of it within milliseconds.
        """
        limit = timeout.total_seconds() if timeout is not None and timeout > timedelta() else self._timeout
        try:
            self._land(limit)
            self._end()
        except Exception as error:  # noqa: BLE001 - a device, or a copy to it, may raise anything
            self._owner.fail(str(error))
            with self._lock:
                self._ended, self._error = True, self._error or dist.DistBackendError(str(error))
        if self._error is not None:
            raise dist.DistBackendError(str(self._error))
        return True

    def is_completed(self) -> bool:
        """Whether the operation has ended, well or not."""
        if not self._ended and all(part.done() for part in self._parts):
            self.exception()
        return self._ended

    def is_success(self) -> bool:
        """Whether it has ended well."""
        return self.is_completed() and self._error is None

    def exception(self) -> Any:
        """Wait, and return the error, if there was one."""
        try:
            self.wait()
        except dist.DistBackendError as error:
            return error
        return None

    def synchronize(self) -> None:
        """As ``wait``."""
        self.wait()

    def block_current_stream(self) -> None:
        """As ``wait``."""
        self.wait()

    def result(self) -> Any:
        """Wait, and return the tensors."""
        self.wait()
        return self._result

    def get_future(self) -> torch.futures.Future[Any]:
        """A future that completes with the tensors once the operation has physically ended, or with its error."""
        with self._lock:
            if self._future is not None:
                return self._future
            future = self._future = torch.futures.Future()
        start_task("process-group-future", self._complete)
        return future

    def _complete(self) -> None:
        assert self._future is not None
        error = self.exception()
        if error is None:
            self._future.set_result(self._result)
        else:
            self._future.set_exception(error)

    def _land(self, limit: float) -> None:
        """Wait for all parts. GroupError after ``limit`` seconds."""
        deadline = time.monotonic() + limit
        for part in self._parts:
            while not part.land(min(max(0.001, deadline - time.monotonic()), LONGEST)):
                if time.monotonic() >= deadline:
                    raise GroupError(f"an operation timed out after {limit:g} s")

    def _end(self) -> None:
        """Copy the results, once: half of them may be there where that has failed."""
        with self._lock:
            if self._ended:
                return
            try:
                with torch.no_grad():  # they may be parameters
                    self._finish()
            except BaseException as error:
                self._error = dist.DistBackendError(f"the results could not be copied: {type(error).__name__}: {error}")
                raise
            finally:
                self._ended = True
