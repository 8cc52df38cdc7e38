"""Lists in a line of text: there may be ten thousand of them, and nobody reads more than a few."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["SHOWN", "some"]

SHOWN = 10


def some(items: Sequence[object]) -> str:
    """The first ``SHOWN`` of ``items``, and how many more there are."""
    more = f" and {len(items) - SHOWN:,} more" if len(items) > SHOWN else ""
    return ", ".join(str(item) for item in items[:SHOWN]) + more
