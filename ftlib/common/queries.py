"""Values in the query of an HTTP request."""

from __future__ import annotations

_MOST_DIGITS = 19


def whole_number(text: str) -> int | None:
    """The number that ``text`` says in decimal digits, which are few; None if it is anything else."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS else None
