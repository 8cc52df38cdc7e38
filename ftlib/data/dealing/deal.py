"""A deal: which member takes which batches of an epoch's positions. Immutable; a pure function of what all members know.

Positions that no drawer holds are dealt in *rounds*: in each round every drawer in turn takes one batch. A drawer's *sequence*
under a deal is the batches it held before, then those dealt to it. So every member knows every other member's next batches
without a message.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from .packing import packed, unpacked
from .ranges import Range, Ranges, Strip, joined


@dataclass(frozen=True, slots=True)
class Rounds:
    """How a round is cut into batches."""

    batch_size: int
    total: int
    """Positions of an epoch."""
    whole: bool = False
    """True: ``batch_size`` is that of the whole round, shared by all drawers; False: each drawer's."""

    def sizes(self, drawers: int) -> tuple[int, ...]:
        """Samples of the batch that each drawer takes in a round."""
        if not self.whole or not drawers:
            return (self.batch_size,) * drawers
        return tuple(self.batch_size // drawers + (index < self.batch_size % drawers) for index in range(drawers))

    def before(self) -> Deal:
        """Return the deal before any epoch has begun: of nothing, to nobody."""
        return Deal(-1, 0, (), {}, Strip(()), self)


class AnyDeal(Protocol):
    """A deal, whatever its sequences are made of. Immutable."""

    epoch: int
    number: int
    drawers: tuple[str, ...]
    held: dict[str, tuple[Ranges, ...]]
    """Batches that drawers took in earlier deals, in order: the first ones of their sequences."""
    checksum: int
    """Of all that decides who takes what."""
    removed: int
    """Positions of the deal before that turned out not to exist."""
    bounded: bool
    """Whether every position exists, so that the lengths of sequences are those of real batches."""

    @property
    def total(self) -> int:
        """Positions of an epoch that begins with this deal."""

    def length(self, member: str) -> int:
        """Count the batches of the member's sequence, used up or not; 0 if it is no drawer."""

    def batch(self, member: str, index: int) -> Ranges:
        """Return the positions of batch ``index`` (below ``length``) of the member's sequence."""

    def first(self, epoch: int, drawers: Sequence[str]) -> AnyDeal:
        """Return the first deal of another epoch."""

    def again(
        self,
        used: Mapping[str, int],
        kept: Mapping[str, int],
        returned: Iterable[Range],
        drawers: Sequence[str],
        *,
        number: int | None = None,
        ends: Sequence[int] = (),
    ) -> AnyDeal:
        """Deal again: see ``Deal.again``. ``ends``: positions from which on a part of the epoch does not exist."""

    def unfair(self, taken: Mapping[str, int]) -> bool:
        """Whether a drawer has nothing more to draw, and would have if it were dealt again.

        ``taken``: batches of each sequence that are used or drawn.
        """

    def state(self) -> dict[str, Any]:
        """Everything, as plain values."""

    def read(self, state: Mapping[str, Any]) -> AnyDeal:
        """Return the deal whose ``state`` that is, made by the same arguments as this one."""


class Deal:
    """One deal of one epoch, in rounds."""

    __slots__ = (
        "_offsets",
        "_place",
        "_round",
        "_sizes",
        "bounded",
        "checksum",
        "drawers",
        "epoch",
        "held",
        "number",
        "removed",
        "rest",
        "rounds",
    )

    def __init__(
        self,
        epoch: int,
        number: int,
        drawers: tuple[str, ...],
        held: Mapping[str, tuple[Ranges, ...]],
        rest: Strip,
        rounds: Rounds,
    ) -> None:
        """``held``: batches that drawers took in earlier deals, in order. ``rest``: the positions that no drawer holds."""
        self.epoch = epoch
        self.number = number
        self.drawers = drawers
        self.held = {member: tuple(held.get(member, ())) for member in drawers}
        self.rest = rest
        self.rounds = rounds
        self.removed, self.bounded = 0, True
        self._place = {member: index for index, member in enumerate(drawers)}
        self._sizes = rounds.sizes(len(drawers))
        self._offsets = tuple(sum(self._sizes[:index]) for index in range(len(drawers)))
        self._round = sum(self._sizes)
        self.checksum = zlib.crc32(repr((epoch, number, drawers, self.held, rest.ranges)).encode())

    @property
    def total(self) -> int:
        """See ``AnyDeal``."""
        return self.rounds.total

    def first(self, epoch: int, drawers: Sequence[str]) -> Deal:
        """See ``AnyDeal``."""
        return Deal(epoch, 0, tuple(drawers), {}, Strip(((0, self.rounds.total),)), self.rounds)

    def length(self, member: str) -> int:
        """Count the batches of the member's sequence, used up or not; 0 if it is no drawer."""
        place = self._place.get(member)
        return 0 if place is None else len(self.held[member]) + self._rounds_of(place)

    def batch(self, member: str, index: int) -> Ranges:
        """Return the positions of batch ``index`` (below ``length``) of the member's sequence."""
        held = self.held[member]
        return held[index] if index < len(held) else self._dealt(self._place[member], index - len(held))

    def again(
        self,
        used: Mapping[str, int],
        kept: Mapping[str, int],
        returned: Iterable[Range],
        drawers: Sequence[str],
        *,
        number: int | None = None,
        ends: Sequence[int] = (),
    ) -> Deal:
        """Deal again. ``used``: batches of each sequence that are done with; ``kept``: how many after these its owner keeps.

        ``returned``: ranges of the ``used`` batches that go back. All positions that no member keeps are dealt, lowest first.
        ``number``: of the new deal; None: the next number. ``ends``: there are none, as every position exists.
        """
        del ends
        keeps = {member: kept.get(member, 0) if member in drawers else 0 for member in self.drawers}
        pieces = list(returned)
        reached = {}
        for member, held in self.held.items():
            until = used.get(member, 0) + keeps[member]
            for batch in held[until:]:
                pieces.extend(batch)
            reached[member] = max(0, until - len(held))
        high = max(reached.values(), default=0)
        for member, first in reached.items():
            place = self._place[member]
            for turn in range(first, min(high, self._rounds_of(place))):
                pieces.extend(self._dealt(place, turn))
        pieces.extend(self.rest.cut(high * self._round, len(self.rest)))
        holding = {
            member: tuple(self.batch(member, used.get(member, 0) + index) for index in range(count))
            for member, count in keeps.items()
            if count
        }
        following = self.number + 1 if number is None else number
        return Deal(self.epoch, following, tuple(drawers), holding, Strip(joined(pieces)), self.rounds)

    def state(self) -> dict[str, Any]:
        """Everything, as plain values."""
        rest = [number for pair in self.rest.ranges for number in pair]
        return {
            "epoch": self.epoch,
            "number": self.number,
            "drawers": list(self.drawers),
            "held": packed_batches(self.drawers, self.held),
            "rest": packed(rest),
        }

    def unfair(self, taken: Mapping[str, int]) -> bool:
        """See ``AnyDeal``: in rounds the sequences differ by one batch at most."""
        del taken
        return False

    def read(self, state: Mapping[str, Any]) -> Deal:
        """See ``AnyDeal``."""
        held = read_batches(state["drawers"], state["held"])
        flat = unpacked(state["rest"])
        rest = tuple(zip(flat[::2], flat[1::2], strict=True))
        return Deal(state["epoch"], state["number"], tuple(state["drawers"]), held, Strip(rest), self.rounds)

    def _rounds_of(self, place: int) -> int:
        left, size = len(self.rest) - self._offsets[place], self._sizes[place]
        return -(-left // self._round) if size and left > 0 else 0

    def _dealt(self, place: int, turn: int) -> Ranges:
        start = turn * self._round + self._offsets[place]
        return self.rest.cut(start, start + self._sizes[place])


def packed_batches(drawers: Sequence[str], held: Mapping[str, Sequence[Ranges]]) -> bytes:
    """Return the batches that drawers hold as bytes."""
    numbers: list[int] = []
    for member in drawers:
        numbers.append(len(held[member]))
        for batch in held[member]:
            numbers.append(len(batch))
            numbers.extend(number for pair in batch for number in pair)
    return packed(numbers)


def read_batches(drawers: Sequence[str], data: bytes) -> dict[str, tuple[Ranges, ...]]:
    """The inverse of ``packed_batches``."""
    numbers = iter(unpacked(data))
    held = {}
    for member in drawers:
        batches = (tuple((next(numbers), next(numbers)) for _ in range(next(numbers))) for _ in range(next(numbers)))
        held[member] = tuple(batches)
    return held
