"""One signed GET for the tools: with the user's secret, or one that a run of this user has drawn."""

from __future__ import annotations

import http.client

from consensus import Address, KeyRing, SecretError, format_address, get, parse_address

from ..errors import ConfigError, FTLibError
from .credentials import drawn_rings, ring_of_user

__all__ = ["fetch"]

_MAX_ANSWER = 16 << 20


def fetch(address: str, target: str, timeout: float = 5.0) -> tuple[int, bytes]:
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
        return _fetch(where, target, ring, timeout)
    except SecretError as error:
        for drawn in drawn_rings() if ring is None else ():
            try:
                return _fetch(where, target, drawn, timeout)
            except SecretError:
                continue
        raise FTLibError(str(error)) from None


def _fetch(address: Address, target: str, ring: KeyRing | None, timeout: float) -> tuple[int, bytes]:
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
