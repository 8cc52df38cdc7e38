"""``HTTPTransport``: the state comes over HTTP, from a donor's agent."""

from __future__ import annotations

from datetime import timedelta
from typing import TypeVar

from .transport import CheckpointTransport

__all__ = ["HTTPTransport"]

T = TypeVar("T")


class HTTPTransport(CheckpointTransport[T]):
    """The way that the state goes."""

    over_http = True

    def __init__(self, timeout: timedelta, num_chunks: int) -> None:
        """Both are taken, and not used: deadlines and sizes of shards are ftlib's own."""
        self._timeout = timeout
        self._num_chunks = num_chunks
