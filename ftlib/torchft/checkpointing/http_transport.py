"""``HTTPTransport``: the state comes over HTTP, from the donors' agents."""

from __future__ import annotations

from datetime import timedelta
from typing import TypeVar

from .transport import CheckpointTransport

__all__ = ["HTTPTransport"]

T = TypeVar("T")


class HTTPTransport(CheckpointTransport[T]):
    """``recovery_transport = "http"``."""

    recovery = "http"

    def __init__(self, timeout: timedelta, num_chunks: int) -> None:
        """Both are taken, and not used: deadlines and sizes of shards are ftlib's own."""
        self._timeout = timeout
        self._num_chunks = num_chunks
