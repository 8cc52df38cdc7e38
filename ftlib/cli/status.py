"""Requests of one member's status, which ``ftlib status`` and ``ftlib explain`` show.

A request is signed with the user's secret, or with one that a run of this user has drawn.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from consensus import Address, KeyRing, format_address, get, parse_address

from ..errors import ConfigError, FTLibError
from ..launch.processes.credentials import first_accepted, rings_to_ask_with

_MAX_ANSWER = 16 << 20
_LEARNER_TIMEOUT = 1.0
"""Seconds to wait for the answer of a learner, whose status is only added to that of the requested member."""


Rings = Iterable[KeyRing | None]
"""Secrets to try, the first one first; None: none."""


def signed_get(address: str, target: str, timeout: float = 5.0, rings: Rings | None = None) -> tuple[int, bytes]:
    """Return HTTP status and body of ``GET target`` at ``address``, signed with the user's secret if there is one.

    ``rings``: secrets to try instead.

    Without one, the secrets of this user's runs on this host are tried at members that require a secret. Raises ConfigError for
    a malformed address or an unusable secret, and FTLibError if no member answers, or not with that secret.
    """
    try:
        where = parse_address(address)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    return first_accepted(lambda ring: _get(where, target, ring, timeout), rings_to_ask_with() if rings is None else rings)


def _get(address: Address, target: str, ring: KeyRing | None, timeout: float) -> tuple[int, bytes]:
    where = format_address(address)
    try:
        with get(address, target, ring, timeout=timeout, within=timeout) as answer:
            return answer.status, answer.read(_MAX_ANSWER)
    except TimeoutError:
        raise FTLibError(
            f"{where} did not answer within {timeout:g} s: is the member stopped, or a firewall between?"
        ) from None
    except (OSError, EOFError, http.client.HTTPException) as error:
        reason = getattr(error, "strerror", None) or error
        raise FTLibError(f"no member answers at {where} ({reason}): check the address in the log of a worker") from None


def fetch_status(address: str, timeout: float = 5.0, rings: Rings | None = None) -> dict[str, Any]:
    """``GET /status`` of the member at ``address``, with the user's secret or one of ``rings``.

    Raises ConfigError for a malformed address, FTLibError if none answers.
    """
    status, body = signed_get(address, "/status", timeout, rings)
    try:
        value = json.loads(body)
    except ValueError:
        value = None
    if status != 200 or not isinstance(value, dict):
        raise FTLibError(f"{address} answers, but not as a member of ftlib (HTTP {status}): check the port")
    return value


def with_learners(
    status: Mapping[str, Any], timeout: float = 5.0, fetch: Callable[[str, float], dict[str, Any]] = fetch_status
) -> dict[str, Any]:
    """Add to ``status``, as ``followers``, by id, the status of each learner, which gets the state while the others train.

    Members that do not answer are left out, and so is the requested member itself.
    """
    peers = (status.get("ftlib") or {}).get("peers") or {}
    members = [member for member in status.get("members") or () if (peers.get(member["id"]) or {}).get("following")]
    if not members:
        return dict(status)

    def ask(member: Mapping[str, Any]) -> dict[str, Any]:
        try:
            answer = fetch(str(member["address"]), min(timeout, _LEARNER_TIMEOUT))
        except FTLibError:
            return {}
        return (answer.get("ftlib") or {}) if answer.get("member") == member["id"] else {}

    with ThreadPoolExecutor(8) as pool:
        told = dict(zip((member["id"] for member in members), pool.map(ask, members), strict=True))
    return {**status, "followers": {member_id: facts for member_id, facts in told.items() if facts}}
