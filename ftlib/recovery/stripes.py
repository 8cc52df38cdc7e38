"""Who gives which part of the state, of which version: pure functions, computed alike by the joiner and by every donor.

The state is one row of bytes, cut in stripes. Each is pinned at two donors (one, where there is but one). *Version* v is the
state on entry to call v. All stripes of a *portion* are of one version: an optimizer's step reads a parameter together with its
moments. A portion holds both, so that portions may be of different versions, and the donors copy one at a time.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

__all__ = ["EACH", "LARGE", "MOST", "SMALLEST", "Stripe", "Wave", "cut", "portions", "surviving"]

SMALLEST = 8 << 20
"""Bytes of a stripe, but for the last."""
LARGE = 64 << 20
"""Bytes of a state that takes longer on its way than a few steps."""
EACH = 12
"""Stripes for each donor: enough to spread, and few, as each is asked for. Beyond so many they grow, in whole multiples."""
MOST = 256
"""Stripes of all donors, in one portion."""
WAVES = 16
"""Portions, where they are larger than ``LARGE``."""


@dataclass(frozen=True, slots=True)
class Stripe:
    """Bytes ``start`` to ``stop`` of the state on entry to call ``version``. ``donors``: who pins it, the first gives it."""

    index: int
    start: int
    stop: int
    version: int
    donors: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Wave:
    """The portion that a joiner asks for next."""

    number: int = 0
    first: int = 0
    """Stripes of the portions before."""
    keep: int = 0
    """What was pinned before of this version, or a later one, is still wanted."""


def portions(borders: Sequence[int], nbytes: int) -> tuple[tuple[int, int], ...]:
    """Where the portions of a state of ``nbytes`` begin and end: at ``borders``, and about as large as ``LARGE``.

    ``borders``: where, in the row, a parameter begins with all that belongs to it. With none the state is one portion.
    """
    most = max(LARGE, nbytes // WAVES)
    found: list[tuple[int, int]] = []
    start = last = 0
    for border in (*borders, nbytes):
        if border - start > most and last > start:
            found.append((start, last))
            start = last
        last = border
    return (*found, (start, nbytes))


def cut(
    nbytes: int, holders: Sequence[str], turn: int, version: int, *, start: int = 0, first_index: int = 0
) -> tuple[Stripe, ...]:
    """All stripes of a portion of ``nbytes``, held by ``holders`` (member ids), for the joiner whose turn it is.

    ``turn``: its place among the joiners, so that the donors' loads are spread. ``version``: of all stripes. ``start``: where
    the portion begins. ValueError where there is no holder, or a number is negative.
    """
    if not holders:
        raise ValueError("nobody holds the state, so it cannot be cut: ask for holders before")
    if min(nbytes, turn, version) < 0:
        raise ValueError(f"nbytes={nbytes}, turn={turn} and version={version} must not be negative")
    blocks = -(-nbytes // SMALLEST)
    length = SMALLEST * max(1, -(-blocks // min(MOST, EACH * len(holders))))
    count = -(-nbytes // length)
    first = _first(turn, count, len(holders))
    donors = _Donors([*holders[first:], *holders[:first]], apart=count)
    stripes: list[Stripe] = []
    for index in range(count):
        begin, stop = index * length, min((index + 1) * length, nbytes)
        chosen = donors.choose(stop - begin)
        stripes.append(Stripe(first_index + index, start + begin, start + stop, version, chosen))
    return tuple(stripes)


def _first(turn: int, count: int, donors: int) -> int:
    """Which of so many donors gives the first of ``count`` stripes: each joiner begins where the one before ended.

    That alone would leave the last stripes, which are shorter, to the same few donors again and again. So the joiners move on
    by one more whenever they have gone round, until every donor has given one of them.
    """
    step = count % donors or 1
    rounds = math.gcd(step, donors)
    return (turn * step + turn // (donors // rounds) % rounds) % donors


def surviving(stripe: Stripe, holders: Sequence[str]) -> Stripe:
    """The stripe with those of its donors that are left and hold the state."""
    left = tuple(donor for donor in stripe.donors if donor in holders)
    return stripe if left == stripe.donors else replace(stripe, donors=left)


class _Donors:
    """Chooses them so that all give and pin alike, and that whoever stands in for one that dies is not always the same."""

    def __init__(self, holders: Sequence[str], apart: int) -> None:
        """``apart``: stripes to come. Fewer than donors: the second ones follow the first ones, or nobody would pin two."""
        self._places = {holder: place for place, holder in enumerate(holders)}
        self._apart = max(1, min(apart, len(holders) // 2))
        self._given: Counter[str] = Counter()
        self._pinned: Counter[str] = Counter()
        self._together: Counter[tuple[str, str]] = Counter()

    def choose(self, nbytes: int) -> tuple[str, ...]:
        """Those of the next stripe, the giver first."""
        places, given, pinned, together = self._places, self._given, self._pinned, self._together
        giver = min(places, key=lambda each: (given[each], places[each]))
        begin = places[giver] + self._apart
        enough = min(pinned[each] for each in places) + nbytes  # a stripe more is as good: else the same two always meet
        second = min(
            (each for each in places if each != giver),
            key=lambda each: (max(enough, pinned[each]), together[giver, each], (places[each] - begin) % len(places)),
            default=None,
        )
        chosen = (giver,) if second is None else (giver, second)
        for donor in chosen:
            pinned[donor] += nbytes
        given[giver] += nbytes
        together[giver, chosen[-1]] += 1
        return chosen
