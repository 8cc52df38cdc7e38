"""Numbers as people read them, and as the query of a request says them."""

from __future__ import annotations

_MOST_DIGITS = 19


def size(count: float) -> str:
    """``count`` bytes in a suitable unit."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 999.5 or unit == "TB":
            return f"{count:.3g} {unit}"
        count /= 1000
    raise AssertionError("unreachable")


def span(seconds: float) -> str:
    """A duration in a suitable unit."""
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms"
    return f"{seconds:.1f} s" if seconds < 600 else f"{seconds / 60:.0f} min"


def whole_number(text: str) -> int | None:
    """The number that ``text`` says in decimal digits, which are few; None if it is anything else."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS else None
