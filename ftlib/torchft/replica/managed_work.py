"""What ``Manager.allreduce`` returns: a work whose results come once somebody waits for them, and the future of that work."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist

from ...errors import FTLibError

__all__ = ["Reports", "Waits", "_ManagedFuture", "_ManagedWork"]


class Waits(Protocol):
    """The work below."""

    def wait(self) -> Any:
        """Return once the result is there."""


class Reports(Protocol):
    """What is told of an error: the manager."""

    def report_error(self, e: Exception) -> None:
        """All replicas are to skip the step."""


class _ManagedFuture(torch.futures.Future):  # type: ignore[type-arg]
    """A value that is computed when somebody waits for it, on the thread that waits."""

    def __init__(self, compute: Callable[[], Any], chain: list[_ManagedFuture]) -> None:
        """``chain``: the futures of one work, in the order in which they were made."""
        super().__init__()
        self._compute = compute
        self._chain = chain
        self._values: list[Any] = []
        self._error: Exception | None = None
        chain.append(self)

    def done(self) -> bool:
        """True once somebody has waited."""
        return bool(self._values) or self._error is not None

    def wait(self) -> Any:
        """Compute the value, once, and return it; or raise the error that came of it."""
        if self._error is not None:
            raise self._error
        if not self._values:
            try:
                self._values.append(self._compute())
            except Exception as error:
                self._error = error
                raise
        return self._values[0]

    def value(self) -> Any:
        """The same."""
        return self.wait()

    def then(self, callback: Callable[[Any], Any]) -> _ManagedFuture:
        """The future of ``callback(self)``, which is called when somebody waits for it or for the work."""
        return _ManagedFuture(lambda: callback(self), self._chain)

    def add_done_callback(self, callback: Callable[[Any], Any]) -> None:
        """Call ``callback(self)`` when somebody waits."""
        self.then(callback)

    def set_result(self, result: Any) -> None:
        """Raise RuntimeError: only its work has a result."""
        raise RuntimeError(f"the future of an allreduce takes no result ({result!r}): make a torch.futures.Future of your own")

    def set_exception(self, result: Any) -> None:
        """Raise RuntimeError: only its work can fail."""
        raise RuntimeError(f"the future of an allreduce takes no exception ({result!r}): call Manager.report_error")


class _ManagedWork(dist.Work):
    """A work whose errors are told to the manager."""

    def __init__(self, manager: Reports, work: Waits, value: Any) -> None:
        """``work``: the one below; ``value``: what its future gives."""
        super().__init__()
        self._manager = manager
        self._work = work
        self._chain: list[_ManagedFuture] = []
        self._first = _ManagedFuture(lambda: self._result(value), self._chain)
        self._ended = False

    def wait(self, timeout: timedelta | None = None) -> bool:  # noqa: ARG002 - the manager's deadlines count
        """The result is in the tensor, and what was chained by ``then`` has been called. False after an error, which the
        manager knows. What ends this worker's part (FTLibError) is raised.
        """
        try:
            done = 0
            while done < len(self._chain):  # a callback may add another
                self._chain[done].wait()
                done += 1
        except FTLibError:
            raise
        except Exception as error:  # noqa: BLE001 - of the program's callbacks
            self._manager.report_error(error)
            return False
        finally:
            self._ended = True
        return True

    def is_completed(self) -> bool:
        """True once somebody has waited."""
        return self._ended

    def synchronize(self) -> None:
        """As ``wait``."""
        self.wait()

    def block_current_stream(self, timeout: timedelta | None = None) -> None:
        """As ``wait``."""
        self.wait(timeout)

    def get_future(self) -> _ManagedFuture:
        """The future of the last callback of the chain."""
        return self._chain[-1]

    def _result(self, value: Any) -> Any:
        self._work.wait()
        return value
