"""Asking one member what it believes: ``ftlib status`` and ``ftlib explain`` show it.

A request is signed with the user's secret, or one that a run of this user has drawn.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from consensus import Address, KeyRing, SecretError, format_address, get, parse_address

from ..errors import ConfigError, FTLibError
from ..launch.credentials import drawn_rings, ring_of_user

_MAX_ANSWER = 16 << 20
_FOLLOWER_TIMEOUT = 1.0
"""Seconds that a member may take which is asked only for what it adds."""


def signed_get(address: str, target: str, timeout: float = 5.0) -> tuple[int, bytes]:
    """HTTP status and body of ``GET target`` at ``address``, signed with the user's secret where there is one.

    Without one, members that ask for it are tried with the secrets of this user's runs on this host. ConfigError:
    malformed address or unusable secret; FTLibError: no member answers, or not with that secret.
    """
    try:
        where = parse_address(address)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    ring = ring_of_user()
    try:
        return _get(where, target, ring, timeout)
    except SecretError as error:
        for drawn in drawn_rings() if ring is None else ():
            try:
                return _get(where, target, drawn, timeout)
            except SecretError:
                continue
        raise FTLibError(str(error)) from None


def _get(address: Address, target: str, ring: KeyRing | None, timeout: float) -> tuple[int, bytes]:
    where = format_address(address)
    try:
        with get(address, target, ring, timeout=timeout) as answer:
            return answer.status, answer.read(_MAX_ANSWER)
    except TimeoutError:
        raise FTLibError(
            f"{where} did not answer within {timeout:g} s: is the member stopped, or a firewall between?"
        ) from None
    except (OSError, EOFError, http.client.HTTPException) as error:
        reason = getattr(error, "strerror", None) or error
        raise FTLibError(f"no member answers at {where} ({reason}): check the address in the log of a worker") from None


def fetch_status(address: str, timeout: float = 5.0) -> dict[str, Any]:
    """``GET /status`` of the member at ``address``. ConfigError: malformed address; FTLibError: none answers."""
    status, body = signed_get(address, "/status", timeout)
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
