"""Who gives which part of the state, of which version: pure functions, with the same result at the joiner and at every donor.

The flat state (see ``flat_state``) is cut in shards, and each shard is copied by two donors (by one where there is only one).
*Version* v is the state on entry to call v. A *chunk* is a run of shards of one version. It holds whole parameters with all
that their optimizer keeps of them, as an optimizer's step reads these together. So chunks may be of different versions, and
donors copy one chunk at a time.

A shard travels in *blocks*, each with a digest of its own: after a failure the transfer goes on at a block.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import xxhash

BLOCK = 4 << 20
"""Bytes of a block, but for a shard's last."""
DIGEST = 16
"""Bytes of a digest."""
SMALLEST = 8 << 20
"""Bytes of a shard, but for the last."""
LARGE = 64 << 20
"""Bytes of a state whose transfer takes longer than a few steps."""
EACH = 12
"""Shards for each donor. With more state shards grow instead, in whole multiples: each one costs a request."""
MOST = 256
"""Shards of all donors, in one chunk."""
MOST_CHUNKS = 16
"""Chunks at most, where they are larger than ``LARGE``."""


@dataclass(frozen=True, slots=True)
class Shard:
    """Bytes ``start`` to ``stop`` of the state on entry to call ``version``. ``donors``: who copy it; the first sends it."""

    index: int
    start: int
    stop: int
    version: int
    donors: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ChunkRequest:
    """Which chunk a joiner asks for next."""

    number: int = 0
    first: int = 0
    """Shards of the chunks before."""
    keep: int = 0
    """Copies of this version or a later one are still needed."""


def chunks(borders: Sequence[int], nbytes: int) -> tuple[tuple[int, int], ...]:
    """Where the chunks of a state of ``nbytes`` begin and end: at ``borders``, and about as large as ``LARGE``.

    ``borders``: where a parameter begins, with all that belongs to it. With none the state is one chunk.
    """
    most = max(LARGE, nbytes // MOST_CHUNKS)
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
) -> tuple[Shard, ...]:
    """All shards of a chunk of ``nbytes``, held by ``holders`` (member ids), for the joiner whose turn it is.

    ``turn``: its place among the joiners, so that the donors' loads are spread. ``version``: of all shards. ``start``: where
    the chunk begins. ValueError where there is no holder, or a number is negative.
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
    shards: list[Shard] = []
    for index in range(count):
        begin, stop = index * length, min((index + 1) * length, nbytes)
        chosen = donors.choose(stop - begin)
        shards.append(Shard(first_index + index, start + begin, start + stop, version, chosen))
    return tuple(shards)


def single_donor_shards(nbytes: int, holders: Sequence[str], turn: int, version: int) -> list[Shard]:
    """All shards of a flat state of ``nbytes`` for a spare, of one donor each: nobody waits for a spare if that one dies."""
    return [replace(shard, donors=shard.donors[:1]) for shard in cut(nbytes, holders, turn, version)]


def _first(turn: int, count: int, donors: int) -> int:
    """Which of so many donors gives the first of ``count`` shards: each joiner begins where the one before ended.

    That alone would leave the last shards, which are shorter, to the same few donors again and again. So the joiners move on
    by one more whenever they have gone round, until every donor has given one of them.
    """
    step = count % donors or 1
    rounds = math.gcd(step, donors)
    return (turn * step + turn // (donors // rounds) % rounds) % donors


def surviving(shard: Shard, holders: Sequence[str]) -> Shard:
    """The shard with those of its donors that are left and hold the state."""
    left = tuple(donor for donor in shard.donors if donor in holders)
    return shard if left == shard.donors else replace(shard, donors=left)


class _Donors:
    """Chooses donors so that all send and copy the same amount, and that one donor's second is not always the same member."""

    def __init__(self, holders: Sequence[str], apart: int) -> None:
        """``apart``: shards to come. With fewer shards than donors, the seconds come after the firsts: nobody copies two."""
        self._places = {holder: place for place, holder in enumerate(holders)}
        self._apart = max(1, min(apart, len(holders) // 2))
        self._given: Counter[str] = Counter()
        self._pinned: Counter[str] = Counter()
        self._together: Counter[tuple[str, str]] = Counter()

    def choose(self, nbytes: int) -> tuple[str, ...]:
        """Those of the next shard, the giver first."""
        places, single_donor_shards, pinned, together = self._places, self._given, self._pinned, self._together
        giver = min(places, key=lambda each: (single_donor_shards[each], places[each]))
        begin = places[giver] + self._apart
        enough = min(pinned[each] for each in places) + nbytes  # a shard more is as good: else the same two always meet
        second = min(
            (each for each in places if each != giver),
            key=lambda each: (max(enough, pinned[each]), together[giver, each], (places[each] - begin) % len(places)),
            default=None,
        )
        chosen = (giver,) if second is None else (giver, second)
        for donor in chosen:
            pinned[donor] += nbytes
        single_donor_shards[giver] += nbytes
        together[giver, chosen[-1]] += 1
        return chosen


def blocks(offset: int, nbytes: int) -> Iterator[tuple[int, int]]:
    """Where the blocks of ``nbytes`` begin and end, from ``offset`` on. ValueError where no block begins there."""
    if offset % BLOCK or not 0 <= offset <= nbytes:
        raise ValueError(f"no block of {nbytes} bytes begins at {offset}: give a multiple of {BLOCK}")
    for start in range(offset, nbytes, BLOCK):
        yield start, min(start + BLOCK, nbytes)


def digest_of(*parts: memoryview) -> bytes:
    """xxh3_128 of the bytes of all ``parts``, in order. Releases the GIL."""
    digest = xxhash.xxh3_128()
    for part in parts:
        digest.update(part)
    return digest.digest()
