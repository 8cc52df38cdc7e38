"""Who gives which part of the state, of which version: pure functions, computed alike by the joiner and by every donor.

The state is one row of bytes, cut in stripes. Each is pinned at two donors (one, where there is but one). *Version* v is the
state on entry to call v. A donor pins at most ``window`` bytes in one call, so that its training never stops for long: further
stripes have later versions, and the joiner's replay reaches each when it has got it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

__all__ = ["MOST", "SMALLEST", "Stripe", "cut", "renewed", "surviving"]

SMALLEST = 8 << 20
"""Bytes of a stripe, but for the last."""
MOST = 256
"""Stripes; beyond so many they grow, in whole multiples."""


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
    bytes that a donor pins in one call; 0: everything in one version. A single stripe is pinned even if it is longer.
    ValueError where there is no holder, or a number is negative.
    """
    if not holders:
        raise ValueError("nobody holds the state, so it cannot be cut: ask for holders before")
    if min(nbytes, turn, version, window) < 0:
        raise ValueError(f"nbytes={nbytes}, turn={turn}, version={version} and window={window} must not be negative")
    blocks = -(-nbytes // SMALLEST)
    length = SMALLEST * max(1, -(-blocks // MOST))
    count = -(-nbytes // length)
    first = turn * (count % len(holders) or 1) % len(holders)  # the next joiner begins where this one ends
    donors = _Donors([*holders[first:], *holders[:first]], apart=count)
    versions = _Versions(max(window, length) if window else None)
    stripes: list[Stripe] = []
    for index in range(count):
        start, stop = index * length, min((index + 1) * length, nbytes)
        stripe = Stripe(index, start, stop, version, donors.choose(stop - start))
        version = versions.find(stripe)
        stripes.append(replace(stripe, version=version))
    return tuple(stripes)


def renewed(
    stripes: Sequence[Stripe], have: Collection[int], holders: Sequence[str], version: int, window: int = 0
) -> tuple[Stripe, ...]:
    """The same after a view change: ``holders`` are those left that hold the state, ``have`` stripes that have arrived whole.

    What has arrived, or has a donor left, stays as it is (without the donors that are gone). The others begin anew at
    ``version`` or later, and those that were to be pinned later than that not before then. ``window``: as for ``cut``. Only the
    joiner knows what has arrived: it tells the donors which of their stripes are new. ValueError where nobody can give what is
    missing.
    """
    kept = [surviving(stripe, holders) if stripe.index not in have else stripe for stripe in stripes]
    lost = [stripe for stripe in kept if not stripe.donors and stripe.index not in have]
    if not lost:
        return tuple(kept)
    if not holders:
        raise ValueError(f"{len(lost)} of {len(stripes)} stripes are missing, and nobody holds the state")
    longest = max(stripe.stop - stripe.start for stripe in stripes)
    donors = _Donors(holders, apart=len(lost))
    versions = _Versions(max(window, longest) if window else None)
    for stripe in kept:
        versions.note(stripe)
        if stripe.index not in have:
            donors.note(stripe)
    found = {}
    for stripe in lost:
        anew = replace(stripe, version=max(version, stripe.version), donors=donors.choose(stripe.stop - stripe.start))
        found[stripe.index] = replace(anew, version=versions.find(anew))
    return tuple(found.get(stripe.index, stripe) for stripe in kept)


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

    def note(self, stripe: Stripe) -> None:
        """It has its donors already."""
        for donor in stripe.donors:
            self._pinned[donor] += stripe.stop - stripe.start
        if stripe.donors:
            self._given[stripe.donors[0]] += stripe.stop - stripe.start
            self._together[stripe.donors[0], stripe.donors[-1]] += 1

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
        self.note(Stripe(0, 0, nbytes, 0, chosen))
        return chosen


class _Versions:
    """Finds the call on entry to which a stripe is pinned, so that no donor pins more than ``most`` bytes then (None: any)."""

    def __init__(self, most: int | None) -> None:
        self._most = most
        self._pinned: Counter[tuple[str, int]] = Counter()

    def note(self, stripe: Stripe) -> None:
        """It has its version already."""
        for donor in stripe.donors:
            self._pinned[donor, stripe.version] += stripe.stop - stripe.start

    def find(self, stripe: Stripe) -> int:
        """The first version from the stripe's own on."""
        nbytes, version = stripe.stop - stripe.start, stripe.version
        if self._most is not None:
            while any(self._pinned[donor, version] + nbytes > self._most for donor in stripe.donors):
                version += 1
        self.note(replace(stripe, version=version))
        return version
