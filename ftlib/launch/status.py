"""Asking one member what it believes: ``ftlib status`` and ``ftlib explain`` show it."""

from __future__ import annotations

import http.client
import json
from typing import Any

from consensus import format_address, parse_address

from ..errors import ConfigError, FTLibError

__all__ = ["fetch_status"]

_MAX_ANSWER = 16 << 20


def fetch_status(address: str, timeout: float = 5.0) -> dict[str, Any]:
    """``GET /status`` of the member at ``address``. ConfigError: malformed address; FTLibError: none answers."""
    try:
        host, port = parse_address(address)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    where = format_address((host, port))
    connection = http.client.HTTPConnection(host, port, timeout=timeout)
    try:
        connection.request("GET", "/status")
        response = connection.getresponse()
        body = response.read(_MAX_ANSWER)
    except TimeoutError:
        raise FTLibError(
            f"{where} did not answer within {timeout:g} s: is the member stopped, or a firewall between?"
        ) from None
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "strerror", None) or error
        raise FTLibError(f"no member answers at {where} ({reason}): check the address in the log of a worker") from None
    finally:
        connection.close()
    try:
        value = json.loads(body)
    except ValueError:
        value = None
    if response.status != 200 or not isinstance(value, dict):
        raise FTLibError(f"{where} answers, but not as a member of ftlib (HTTP {response.status}): check the port")
    return value
