"""``PGTransport``: taken where torchft takes it. The state comes over HTTP all the same."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import torch

from .transport import CheckpointTransport

__all__ = ["PGTransport"]

T = TypeVar("T")


class PGTransport(CheckpointTransport[T]):
    """Not used: a ``Manager`` connects its process group to nobody."""

    def __init__(
        self, pg: Any, timeout: timedelta, device: torch.device | str, state_dict: Callable[[], Any] | None = None
    ) -> None:
        """All are taken, and not used: the state is loaded into the tensors that are there."""
        self._pg, self._timeout = pg, timeout
        self._device, self._state_dict = device, state_dict
