"""How a joining replica gets the state, by torchft's names: they choose between ftlib's ways, which need no more than that."""

from __future__ import annotations

from .http_transport import HTTPTransport
from .transport import CheckpointTransport

__all__ = ["CheckpointTransport", "HTTPTransport"]
