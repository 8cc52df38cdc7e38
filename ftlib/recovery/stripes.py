"""Who gives which part of the state, of which version: pure functions, computed alike by the joiner and by every donor.

The state is one row of bytes, cut in stripes. Each is pinned at two donors (one, where there is but one). *Version* v is the
state on entry to call v. A donor pins at most ``window`` bytes in one call, so that its training never stops for long: further
stripes have later versions, and the joiner's replay reaches each when it has got it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["MOST", "SMALLEST", "Stripe", "cut", "renewed"]

SMALLEST = 4 << 20
"""Bytes of a stripe, but for the last."""
MOST = 256
"""Stripes; beyond so many they grow."""


@dataclass(frozen=True, slots=True)
class Stripe:
    """Bytes ``start`` to ``stop`` of the state on entry to call ``version``. ``donors``: who pins it, the first gives it."""

    index: int
    start: int
    stop: int
    version: int
    donors: tuple[str, ...]


def cut(nbytes: int, holders: Sequence[str], turn: int, version: int, window: int) -> tuple[Stripe, ...]:
    """All stripes of a state of ``nbytes``, held by ``holders`` (member ids), for the joiner whose turn it is.

    ``turn``: its place among the joiners, so that the donors' loads are spread. ``version``: of the first stripes. ``window``:
    bytes that a donor pins in one call; 0: everything in one version.
    """
    raise NotImplementedError


def renewed(stripes: Sequence[Stripe], have: Sequence[int], holders: Sequence[str], version: int) -> tuple[Stripe, ...]:
    """The same after a view change: ``holders`` are left and hold the state, the stripes in ``have`` have arrived whole.

    What has arrived, or has a donor left, stays as it is (without the donors that are gone). The others begin anew at
    ``version`` or later.
    """
    raise NotImplementedError
