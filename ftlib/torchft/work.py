"""``_DummyWork``: a work that ended before it began."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

__all__ = ["_DummyWork"]


class _DummyWork(dist.Work):
    """Done, with the result that it is given."""

    def __init__(self, result: Any) -> None:
        super().__init__()
        self._future: torch.futures.Future[Any] = torch.futures.Future()
        self._future.set_result(result)

    def wait(self, timeout: timedelta | None = None) -> bool:  # noqa: ARG002 - there is nothing to wait for
        """True."""
        return True

    def is_completed(self) -> bool:
        """True."""
        return True

    def get_future(self) -> torch.futures.Future[Any]:
        """A future that has the result."""
        return self._future
