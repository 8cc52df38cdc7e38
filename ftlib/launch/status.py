"""``ftlib status``: ask one member what it believes, and show it to a person or a program."""

from __future__ import annotations

import json
from typing import Any

from ..errors import FTLibError
from .fetch import fetch

__all__ = ["fetch_status", "show_status"]


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
