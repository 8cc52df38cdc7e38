"""Which donor gives which part of the state, of which version: pure functions, equal at the joiner and at every donor.

The flat state (see ``flat_state``) is split into shards, and two donors copy each shard (one, if there is only one). *Version*
v is the state on entry to call v. A *chunk* is a run of shards of one version. It holds whole parameters with their optimizer
state, as an optimizer's step reads these together. So chunks may be of different versions, and donors copy one chunk at a time.

A shard travels in *blocks*, each with its own digest: after a failure the transfer goes on at a block.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import xxhash

BLOCK = 4 << 20
"""Bytes of a block; a shard's last block may be shorter."""
DIGEST = 16
"""Bytes of a digest."""
SMALLEST = 8 << 20
"""Minimum bytes of a shard; the last one may be shorter."""
LARGE = 64 << 20
"""Bytes of a state whose transfer takes longer than a few steps."""
EACH = 12
"""Shards per donor. If the state needs more, shards grow in whole multiples instead: each one costs a request."""
MOST = 256
"""Maximum number of shards of all donors in one chunk."""
MOST_CHUNKS = 16
"""About the maximum number of chunks: larger states have chunks larger than ``LARGE``."""


@dataclass(frozen=True, slots=True)
class Shard:
    """Bytes ``start`` to ``stop`` of the state on entry to call ``version``. All ``donors`` copy it; the first sends it."""

    index: int
    start: int
    stop: int
    version: int
    donors: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ChunkRequest:
    """The chunk that a joiner asks for next."""

    number: int = 0
    first: int = 0
    """Number of shards in the earlier chunks."""
    keep: int = 0
    """Copies of this and later versions are still needed."""


def chunks(borders: Sequence[int], nbytes: int) -> tuple[tuple[int, int], ...]:
    """The chunks of a state of ``nbytes``, as (start, stop): each ends at one of ``borders``, and is about ``LARGE`` bytes.

    ``borders``: where a parameter with its optimizer state begins. Without borders the state is one chunk.
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
    """All shards of a chunk of ``nbytes``, held by ``holders`` (member ids), for one joiner.

    ``turn``: the joiner's place among the joiners, to spread the donors' loads. ``version``: that of all shards. ``start``:
    where the chunk begins. ValueError if there is no holder, or a number is negative.
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
    """All shards of a flat state for a spare, with one donor each: if the donor dies, no member waits for the spare."""
    return [replace(shard, donors=shard.donors[:1]) for shard in cut(nbytes, holders, turn, version)]


def _first(turn: int, count: int, donors: int) -> int:
    """Which of the donors gives the first of ``count`` shards: each joiner begins where the previous joiner ended.

    With that alone the same few donors would always give the last shards, which are shorter. So the joiners move on by one more
    after each full round, until every donor has given a last shard.
    """
    step = count % donors or 1
    rounds = math.gcd(step, donors)
    return (turn * step + turn // (donors // rounds) % rounds) % donors


def surviving(shard: Shard, holders: Sequence[str]) -> Shard:
    """The shard with only those of its donors that are in ``holders``."""
    left = tuple(donor for donor in shard.donors if donor in holders)
    return shard if left == shard.donors else replace(shard, donors=left)


class _Donors:
    """Chooses donors so that all send and copy the same amount, and the second donor beside one is not always the same."""

    def __init__(self, holders: Sequence[str], apart: int) -> None:
        """``apart``: shards to come. With fewer shards than donors, the second donors come after the first: none copies two."""
        self._places = {holder: place for place, holder in enumerate(holders)}
        self._apart = max(1, min(apart, len(holders) // 2))
        self._given: Counter[str] = Counter()
        self._pinned: Counter[str] = Counter()
        self._together: Counter[tuple[str, str]] = Counter()

    def choose(self, nbytes: int) -> tuple[str, ...]:
        """The donors of the next shard, the giver first."""
        places, given, pinned, together = self._places, self._given, self._pinned, self._together
        giver = min(places, key=lambda each: (given[each], places[each]))
        begin = places[giver] + self._apart
        enough = min(pinned[each] for each in places) + nbytes  # one shard more is as good: else the same pair always meets
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


def blocks(offset: int, nbytes: int) -> Iterator[tuple[int, int]]:
    """The blocks of ``nbytes`` from ``offset`` on, as (start, stop). ValueError if no block begins at ``offset``."""
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
