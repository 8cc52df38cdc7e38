"""``ftlib status``: ask one member what it believes, and show it to a person or a program."""

from __future__ import annotations

import http.client
import json
from typing import Any

from consensus import KeyRing, SecretError, format_address, get, parse_address

from ..errors import ConfigError, FTLibError
from .credentials import drawn_rings, ring_of_user

__all__ = ["fetch", "fetch_status", "show_status"]

_MAX_ANSWER = 16 << 20


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


def fetch(address: str, target: str, timeout: float = 5.0) -> tuple[int, bytes]:
    """HTTP status and body of ``GET target`` at ``address``, signed with the user's secret where there is one.

    Without one, members that ask for it are tried with the secrets of this user's runs on this host. Raises as
    :func:`fetch_status`.
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


def _fetch(address: tuple[str, int], target: str, ring: KeyRing | None, timeout: float) -> tuple[int, bytes]:
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


def show_status(status: dict[str, Any], indent: str = "") -> str:
    """Nested plain values as indented lines; lists of alike records as a table."""
    lines: list[str] = []
    width = max((len(key) for key in status), default=0)
    for key, value in status.items():
        if isinstance(value, dict) and value:
            lines += [f"{indent}{key}", show_status(value, indent + "  ")]
        elif isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
            lines += [f"{indent}{key}", *_rows(value, indent + "  ")]
        else:
            lines.append(f"{indent}{key.ljust(width)}  {_plain(value)}")
    return "\n".join(lines)


def _rows(records: list[dict[str, Any]], indent: str) -> list[str]:
    columns = list(dict.fromkeys(key for record in records for key in record))
    cells = [columns] + [[_plain(record.get(column)) for column in columns] for record in records]
    widths = [max(len(row[place]) for row in cells) for place in range(len(columns))]
    return [indent + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]


def _plain(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, (dict, list)):
        return json.dumps(value) if value else "-"
    return "-" if value is None else str(value)
