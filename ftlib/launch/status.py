"""Asking one member what it believes: ``ftlib status`` and ``ftlib explain`` show it."""

from __future__ import annotations

import json
from typing import Any

from ..errors import FTLibError
from .fetch import fetch

__all__ = ["fetch_status"]


def fetch_status(address: str, timeout: float = 5.0) -> dict[str, Any]:
    """``GET /status`` of the member at ``address``. ConfigError: malformed address; FTLibError: none answers."""
    status, body = fetch(address, "/status", timeout)
    try:
        value = json.loads(body)
    except ValueError:
        value = None
    if status != 200 or not isinstance(value, dict):
        raise FTLibError(f"{address} answers, but not as a member of ftlib (HTTP {status}): check the port")
    return value
