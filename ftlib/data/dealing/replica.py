"""The replicated state of the data: every member computes the same state from the same finished calls and view changes.

Transitions return a new state. Only ``Replica.ledger`` is shared by successive states of an epoch; entries are only appended.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..mates import Ahead, pack_ahead, read_ahead
from ..sampling import RESIDUES, Share
from .deal import AnyDeal
from .ledger import Ledger
from .ranges import Range, length

FAR = 100
"""How many epochs may be skipped at once: a share has its epoch modulo 255 only."""
_REPORT = struct.Struct("<qII")
_TOLD = 200
"""Of how many batches a report says whether they count."""


def code_of(epoch: int) -> int:
    """Return the code of an epoch in a share (``Share.data_epoch``)."""
    return epoch % RESIDUES + 1


@dataclass(frozen=True, slots=True)
class DrawnReport:
    """A member's report when a view change freezes it: how many batches of its sequence it has drawn, or may draw meanwhile."""

    epoch: int
    number: int
    taken: int
    ahead: Ahead = ()
    """Of each batch that was drawn and not used: whether it counts. Of the first ones, if there are many."""

    def pack(self) -> bytes:
        """Return 19 to 44 bytes."""
        return _REPORT.pack(self.epoch, self.number, self.taken) + pack_ahead(self.ahead[:_TOLD])

    @classmethod
    def unpack(cls, data: bytes) -> DrawnReport | None:
        """Return None if ``data`` is empty or not readable."""
        try:
            epoch, number, taken = _REPORT.unpack(data[: _REPORT.size])
            return cls(epoch, number, taken, read_ahead(data[_REPORT.size :]))
        except (struct.error, ValueError):
            return None


@dataclass(frozen=True, slots=True)
class Replica:
    """The state after a finished call, a view change or the beginning of an epoch."""

    deal: AnyDeal
    total: int
    """Positions of the epoch, as far as is known."""
    used: tuple[int, ...]
    """Batches of each drawer's sequence that are done with, in the deal's order."""
    committed: int
    """Samples of the epoch that finished calls used up."""
    turns: int
    """Batches that the busiest member used up in each call of the epoch, added up."""
    left: int | None
    """How many batches every loop still hands out; None: the epoch is not complete."""
    step: int
    ledger: Ledger

    @classmethod
    def fresh(cls, deal: AnyDeal) -> Replica:
        """Return the state before any epoch has begun. ``deal``: of nothing, to nobody."""
        return cls(deal, deal.total, (), 0, 0, 0, 0, Ledger(-1))

    @property
    def epoch(self) -> int:
        """The data epoch; -1: none has begun."""
        return self.deal.epoch

    @property
    def checksum(self) -> int:
        """16 bits of everything that decides which member takes which samples."""
        return zlib.crc32(repr((self.used, self.left, self.committed)).encode(), self.deal.checksum) & 0xFFFF

    @property
    def steps(self) -> int:
        """How many batches each loop of this epoch hands out, as far as known now."""
        longest = max((self.deal.length(member) - done for member, done in self.progress()), default=0)
        return self.turns + longest + (self.left or 0)

    def begin(self, epoch: int) -> Replica:
        """Begin an epoch: its first deal has the drawers of the last deal."""
        return self._first(epoch, self.deal.drawers)

    def dealt(self, drawers: Sequence[str]) -> Replica:
        """Begin with ``drawers`` that have drawn nothing: all positions not committed are dealt to them. Idempotent."""
        deal = self.deal.again(dict(self.progress()), {}, (), drawers, number=0)
        return replace(self, deal=deal, total=self.total - deal.removed, used=(0,) * len(drawers))

    def without(self, end: int, drawn: int) -> Replica:
        """Leave out what does not exist from position ``end`` on. ``drawn``: batches that the only drawer has drawn."""
        return replace(self, used=(drawn,)).again({}, (), self.deal.drawers, (end,))

    def finish(self, shares: Mapping[str, Share], step: int) -> Replica:
        """Apply a finished call."""
        own = code_of(self.epoch)
        newest = max((self._told(code) for code in {share.data_epoch for share in shares.values()} - {0, own}), default=-1)
        if newest > self.epoch:
            return self.begin(newest).finish(shares, step)
        drawing = {member: share for member, share in shares.items() if share.data_epoch == own}
        if not drawing:
            return replace(self, step=step)
        used, returned, most, samples = list(self.used), list[Range](), 0, 0
        for place, member in enumerate(self.deal.drawers):
            share = drawing.get(member)
            if share is not None:
                used[place], count, back, pieces = self._spent(member, used[place], share)
                returned.extend(back)
                most = max(most, count)
                if pieces:
                    samples += length(pieces)
                    self.ledger.add(step, member, pieces, granted=step > self.step)
        done = replace(self, used=tuple(used), committed=self.committed + samples, turns=self.turns + most, step=step)
        drawers = [member for member in self.deal.drawers if member in drawing]
        drawers += sorted(member for member in drawing if member not in self.deal.drawers)
        kept = {member: min(drawing[member].ahead, done.left_to(member)) for member in drawers}
        ends = [share.end - 1 for share in drawing.values() if share.end]
        taken = {member: count + kept.get(member, 0) for member, count in done.progress()}
        same = len(drawers) == len(self.deal.drawers) == len(drawing)
        if returned or ends or not same or self.deal.unfair(taken):
            done = done.again(kept, returned, drawers, ends)
        return done.completed([share for member, share in shares.items() if share.late or member in drawing])

    def activate(self, view: Sequence[str], reports: Mapping[str, Sequence[DrawnReport]]) -> Replica:
        """Apply a view change. The newest reported epoch counts; a member that has not reached it has drawn nothing of it. A
        replica of several processes keeps what the farthest of them has taken.
        """
        newest = max((report.epoch for told in reports.values() for report in told), default=self.epoch)
        if self.epoch > newest:
            # Only this member has begun the epoch, after its report, with nothing drawn: the others will begin it with the
            # drawers of this view.
            return self._first(self.epoch, [member for member in self.deal.drawers if member in view])
        base = self if newest == self.epoch else self.begin(newest)
        deal, kept = base.deal, {}
        for member, done in base.progress():
            told = reports.get(member, ())
            if told and member in view:
                most = len(deal.held[member])
                exact = [report.taken for report in told if (report.epoch, report.number) == (deal.epoch, deal.number)]
                until = [min(taken, deal.length(member)) for taken in exact] + [most] * (len(exact) < len(told))
                kept[member] = max(0, max(until) - done)
        return base.again(kept, (), [member for member in deal.drawers if member in view])

    def state(self) -> dict[str, Any]:
        """Everything, as plain values."""
        return {
            "deal": self.deal.state(),
            "total": self.total,
            "used": list(self.used),
            "committed": self.committed,
            "turns": self.turns,
            "left": self.left,
            "step": self.step,
        }

    @classmethod
    def of(cls, state: Mapping[str, Any], like: AnyDeal, ledger: Ledger) -> Replica:
        """Read what ``state`` returned. ``like``: any deal of the same arguments."""
        numbers = (state["committed"], state["turns"], state["left"], state["step"])
        return cls(like.read(state["deal"]), state["total"], tuple(state["used"]), *numbers, ledger)

    def same(self, other: Replica) -> bool:
        """Whether both deal alike, so that a batch drawn under one is the same batch under the other."""
        return (self.deal.number, self.deal.checksum, self.checksum) == (other.deal.number, other.deal.checksum, other.checksum)

    def done(self, member: str) -> int:
        """Batches of the member's sequence that are done with."""
        return next((done for other, done in self.progress() if other == member), 0)

    def left_to(self, member: str) -> int:
        """Batches of the member's sequence that are not done with."""
        return self.deal.length(member) - self.done(member)

    def progress(self) -> zip[tuple[str, int]]:
        """Pair each drawer with the batches of its sequence that are done with."""
        return zip(self.deal.drawers, self.used, strict=True)

    def _first(self, epoch: int, drawers: Sequence[str]) -> Replica:
        deal, none = self.deal.first(epoch, drawers), (0,) * len(drawers)
        return Replica(deal, deal.total, none, 0, 0, None, self.step, Ledger(epoch))

    def again(
        self, kept: Mapping[str, int], returned: Sequence[Range], drawers: Sequence[str], ends: Sequence[int] = ()
    ) -> Replica:
        """Deal again: see ``Deal.again``."""
        deal = self.deal.again(dict(self.progress()), kept, returned, drawers, ends=ends)
        return replace(self, deal=deal, total=self.total - deal.removed, used=(0,) * len(drawers))

    def completed(self, looping: Iterable[Share]) -> Replica:
        """Set ``left`` if the epoch is complete: every loop hands out as many more batches as the farthest one has drawn ahead.

        ``looping``: shares of the members that are in a loop over this epoch.
        """
        if self.committed < self.total or self.epoch < 0:
            return self
        left = max(share.ahead for share in looping)
        return replace(self, left=left, turns=self.turns + max(0, (self.left or 0) - left))

    def _told(self, code: int) -> int:
        """Decode the epoch of a share: of all epochs with this residue, the nearest one."""
        ahead = (code - 1 - self.epoch) % RESIDUES
        return self.epoch + (ahead if ahead <= RESIDUES // 2 else ahead - RESIDUES)

    def _spent(self, member: str, at: int, share: Share) -> tuple[int, int, list[Range], list[Range]]:
        """Apply a share: returns where its sequence goes on, batches used up, ranges that go back, ranges committed."""
        deal, end = self.deal, self.deal.length(member)
        back: list[Range] = []
        for _ in range(min(share.dropped, end - at)):
            back.extend(deal.batch(member, at))
            at += 1
        pieces: list[Range] = []
        first, samples = at, share.samples
        while samples > 0 and at < end:
            batch = deal.batch(member, at)
            samples -= length(batch)
            pieces.extend(batch)
            at += 1
        return at, at - first, back, pieces
