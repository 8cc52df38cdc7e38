"""How shards are dealt: each to one member, which goes on with it until its end, or until others have nothing to read.

A *position* is a shard's rank in the epoch's order, times ``SPAN``, plus the record's number in the shard. Of a shard whose
size is not known, all ``SPAN`` positions but one are dealt; who reads it to its end tells that in a call, and the rest goes.
"""

from __future__ import annotations

import bisect
import functools
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..dealing.deal import packed_batches, read_batches
from ..dealing.packing import packed, unpacked
from ..dealing.permutation import Permutation
from ..dealing.ranges import Range, Ranges, joined
from .schedule import Schedule

SPAN = 1 << 40
"""Positions of a shard. One less is dealt, so that the ranges of two shards never touch."""
MOST_SHARDS = 1 << 23
"""A position is below 2**63."""
_SPLIT = 16
"""Batches that a piece must have left to be cut in two for a member that has nothing to read: it may cost reading past them."""


@dataclass(frozen=True)
class Shards:
    """What is dealt: the same at every member."""

    count: int
    sizes: tuple[int, ...] | None
    """Records of each; None: not known."""
    batch_size: int
    lanes: int
    shuffle: bool
    seed: int
    digest: int
    """A checksum of the shards' names and sizes."""

    @functools.cached_property
    def _orders(self) -> dict[int, list[int]]:
        return {}

    def order(self, epoch: int) -> list[int]:
        """Return the shards' numbers in the order of an epoch. The last two orders are kept."""
        order = self._orders.get(epoch)
        if order is None:
            order = Permutation(self.count, self.seed, epoch, shuffle=self.shuffle).indices(((0, self.count),))
            for known in list(self._orders)[:-1]:
                self._orders.pop(known, None)
            self._orders[epoch] = order
        return order

    def size(self, shard: int, ends: Mapping[int, int]) -> int:
        """Return the records of a shard, as far as is known: else ``SPAN`` - 1."""
        said = SPAN - 1 if self.sizes is None else self.sizes[shard]
        return min(said, ends.get(shard, said))

    def before(self) -> ShardDeal:
        """Return the deal before any epoch has begun: of nothing, to nobody."""
        return ShardDeal(self, -1, 0, (), {}, {}, {})


class ShardDeal:
    """One deal of one epoch: see ``AnyDeal``. A sequence is what was held, then batches of the member's pieces of shards."""

    __slots__ = (
        "_schedules",
        "bounded",
        "checksum",
        "drawers",
        "ends",
        "epoch",
        "held",
        "number",
        "pieces",
        "plan",
        "removed",
        "rest",
    )

    def __init__(
        self,
        plan: Shards,
        epoch: int,
        number: int,
        drawers: tuple[str, ...],
        held: Mapping[str, tuple[Ranges, ...]],
        pieces: Mapping[str, Ranges],
        ends: Mapping[int, int],
        *,
        rest: Ranges = (),
        removed: int = 0,
    ) -> None:
        """``pieces``: what each drawer reads besides what it holds. ``ends``: sizes of shards that were found, by shard.

        ``rest``: what nobody reads, as there is no drawer.
        """
        self.plan, self.epoch, self.number, self.drawers = plan, epoch, number, drawers
        self.held = {member: tuple(held.get(member, ())) for member in drawers}
        self.pieces = {member: tuple(pieces.get(member, ())) for member in drawers}
        self.ends = dict(ends)
        self.rest, self.removed = rest, removed
        self.bounded = False  # a shard may turn out shorter than was said, too
        self._schedules: dict[str, Schedule] = {}
        told = (plan.digest, epoch, number, drawers, self.held, self.pieces, rest, sorted(self.ends.items()))
        self.checksum = zlib.crc32(repr(told).encode())

    @property
    def total(self) -> int:
        """See ``AnyDeal``."""
        return sum(self.plan.size(shard, self.ends) for shard in range(self.plan.count))

    @property
    def counted(self) -> bool:
        """Whether the sizes of all shards are known."""
        return self.plan.sizes is not None or len(self.ends) == self.plan.count

    def length(self, member: str) -> int:
        """See ``AnyDeal``."""
        return len(self.held[member]) + self._schedule(member).length if member in self.held else 0

    def batch(self, member: str, index: int) -> Ranges:
        """See ``AnyDeal``."""
        held = self.held[member]
        return held[index] if index < len(held) else (self._schedule(member).batch(index - len(held)),)

    def first(self, epoch: int, drawers: Sequence[str]) -> ShardDeal:
        """See ``AnyDeal``."""
        sizes = [self.plan.size(shard, self.ends) for shard in self.plan.order(epoch)]
        pool = [(rank * SPAN, rank * SPAN + size) for rank, size in enumerate(sizes) if size]
        pieces = _shared(pool, {member: [] for member in drawers}, self.plan.batch_size)
        return ShardDeal(self.plan, epoch, 0, tuple(drawers), {}, pieces, self.ends, rest=() if drawers else joined(pool))

    def again(
        self,
        used: Mapping[str, int],
        kept: Mapping[str, int],
        returned: Iterable[Range],
        drawers: Sequence[str],
        *,
        number: int | None = None,
        ends: Sequence[int] = (),
    ) -> ShardDeal:
        """See ``AnyDeal``. Who stays goes on with its own shards."""
        known = dict(self.ends)
        for end in ends:
            shard = self.plan.order(self.epoch)[end // SPAN]
            known[shard] = min(end % SPAN, self.plan.size(shard, known))
        pool = [*self.rest, *returned]
        own: dict[str, list[Range]] = {member: [] for member in drawers}
        holding = {}
        for member, held in self.held.items():
            done = used.get(member, 0)
            until = done + (kept.get(member, 0) if member in own else 0)
            holding[member] = tuple(self.batch(member, index) for index in range(done, until))
            pool.extend(piece for batch in held[until:] for piece in batch)
            own.get(member, pool).extend(self._schedule(member).left(max(0, until - len(held))))
        before = sum(stop - start for pieces in (pool, *own.values()) for start, stop in pieces)
        pool = self._existing(pool, known)
        own = {member: self._existing(pieces, known) for member, pieces in own.items()}
        removed = before - sum(stop - start for pieces in (pool, *own.values()) for start, stop in pieces)
        shared = _shared(pool, own, self.plan.batch_size)
        following = self.number + 1 if number is None else number
        rest = () if drawers else joined(pool)
        return ShardDeal(self.plan, self.epoch, following, tuple(drawers), holding, shared, known, rest=rest, removed=removed)

    def unfair(self, taken: Mapping[str, int]) -> bool:
        """See ``AnyDeal``."""
        left = {
            member: self._schedule(member).left(max(0, taken.get(member, 0) - len(self.held[member])))
            for member in self.drawers
            if taken.get(member, 0) < self.length(member)
        }
        return len(left) < len(self.drawers) and any(
            len(pieces) > 1 or any(_divisible(piece, self.plan.batch_size) for piece in pieces) for pieces in left.values()
        )

    def state(self) -> dict[str, Any]:
        """See ``AnyDeal``."""
        return {
            "epoch": self.epoch,
            "number": self.number,
            "drawers": list(self.drawers),
            "held": packed_batches(self.drawers, self.held),
            "pieces": packed_batches(self.drawers, {member: (pieces,) for member, pieces in self.pieces.items()}),
            "rest": packed(number for pair in self.rest for number in pair),
            "ends": packed(number for item in sorted(self.ends.items()) for number in item),
        }

    def read(self, state: Mapping[str, Any]) -> ShardDeal:
        """See ``AnyDeal``."""
        drawers = tuple(state["drawers"])
        pieces = {member: batch for member, (batch,) in read_batches(drawers, state["pieces"]).items()}
        rest, ends = (_pairs(state[name]) for name in ("rest", "ends"))
        return ShardDeal(
            self.plan,
            state["epoch"],
            state["number"],
            drawers,
            read_batches(drawers, state["held"]),
            pieces,
            dict(ends),
            rest=rest,
        )

    def _schedule(self, member: str) -> Schedule:
        schedule = self._schedules.get(member)
        if schedule is None:
            schedule = Schedule(self.pieces[member], self.plan.batch_size, self.plan.lanes)
            self._schedules[member] = schedule
        return schedule

    def _existing(self, pieces: Iterable[Range], ends: Mapping[int, int]) -> list[Range]:
        """Cut off what lies beyond the ends of shards."""
        cut = []
        for start, stop in pieces:
            rank = start // SPAN
            shard = self.plan.order(self.epoch)[rank]
            end = min(stop, rank * SPAN + self.plan.size(shard, ends))
            if start < end:
                cut.append((start, end))
        return cut


def _shared(pool: Iterable[Range], own: Mapping[str, Sequence[Range]], batch_size: int) -> dict[str, Ranges]:
    """Give the pieces in ``pool`` to members, and even out what they have by moving whole pieces.

    What belongs to a shard that a member reads goes to that member. A member that would have nothing gets the second half of
    what another has left of a shard. Done again with an empty pool, it changes nothing.
    """
    readers = {start // SPAN: member for member, mine in own.items() for start, _ in mine}
    pieces = {member: list(mine) for member, mine in own.items()}
    fresh: list[Range] = []
    for piece in joined(pool):
        reader = readers.get(piece[0] // SPAN)
        (fresh if reader is None else pieces[reader]).append(piece)
    members = [_Mine(place, batch_size, joined(mine)) for place, mine in enumerate(pieces.values())]
    for piece in fresh if members else ():
        min(members, key=_Mine.wants).take(piece)
    while members and (_moved(members) or _cut(members)):
        pass
    return {member: tuple(mine.pieces) for member, mine in zip(pieces, members, strict=True)}


class _Mine:
    """One member's pieces while they are shared out: those that were begun first."""

    def __init__(self, place: int, batch_size: int, pieces: Iterable[Range]) -> None:
        self.place, self.batch_size = place, batch_size
        self.pieces = sorted(pieces, key=_begun_first)
        self.amount = sum(stop - start for start, stop in self.pieces)

    def wants(self) -> tuple[int, int]:
        return self.amount, self.place

    def take(self, piece: Range) -> None:
        bisect.insort(self.pieces, piece, key=_begun_first)
        self.amount += piece[1] - piece[0]

    def give(self) -> Range:
        start, stop = self.pieces.pop()
        self.amount -= stop - start
        return start, stop


def _moved(members: Sequence[_Mine]) -> bool:
    """Move the last piece of the member that has most to the one that has least. False if it would not be fairer."""
    donors = [mine for mine in members if len(mine.pieces) > 1]
    if not donors:
        return False
    donor, taker = max(donors, key=_Mine.wants), min(members, key=_Mine.wants)
    start, stop = donor.pieces[-1]
    if donor is taker or taker.amount + stop - start >= donor.amount:
        return False
    taker.take(donor.give())
    return True


def _cut(members: Sequence[_Mine]) -> bool:
    """Cut a last piece in two for a member that has none. False if there is no such member, or no such piece."""
    donors = [mine for mine in members if mine.pieces and _divisible(mine.pieces[-1], mine.batch_size)]
    taker = min(members, key=_Mine.wants)
    if not donors or taker.pieces:
        return False
    donor = max(donors, key=_Mine.wants)
    start, stop = donor.give()
    middle = start + -(-(stop - start) // (2 * donor.batch_size)) * donor.batch_size
    donor.take((start, middle))
    taker.take((middle, stop))
    return True


def _begun_first(piece: Range) -> tuple[bool, Range]:
    return piece[0] % SPAN == 0, piece


def _divisible(piece: Range, batch_size: int) -> bool:
    start, stop = piece
    return stop % SPAN != SPAN - 1 and stop - start >= _SPLIT * batch_size


def _pairs(data: bytes) -> Ranges:
    flat = unpacked(data)
    return tuple(zip(flat[::2], flat[1::2], strict=True))
