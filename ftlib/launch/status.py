"""Asking one member what it believes: ``ftlib status`` and ``ftlib explain`` show it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ..errors import FTLibError
from .fetch import fetch

__all__ = ["fetch_status", "with_followers"]

_FOLLOWER_TIMEOUT = 1.0
"""Seconds that a member may take which is asked only for what it adds."""


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


def with_followers(
    status: Mapping[str, Any], timeout: float = 5.0, fetch: Callable[[str, float], dict[str, Any]] = fetch_status
) -> dict[str, Any]:
    """``status`` and, as ``followers``, what those who get the state beside the others' training say of it, by id.

    Who does not answer is left out; so is the asked one itself.
    """
    peers = (status.get("ftlib") or {}).get("peers") or {}
    members = [member for member in status.get("members") or () if (peers.get(member["id"]) or {}).get("following")]
    if not members:
        return dict(status)

    def ask(member: Mapping[str, Any]) -> dict[str, Any]:
        try:
            answer = fetch(str(member["address"]), min(timeout, _FOLLOWER_TIMEOUT))
        except FTLibError:
            return {}
        return (answer.get("ftlib") or {}) if answer.get("member") == member["id"] else {}

    with ThreadPoolExecutor(8) as pool:
        told = dict(zip((member["id"] for member in members), pool.map(ask, members), strict=True))
    return {**status, "followers": {member_id: facts for member_id, facts in told.items() if facts}}
