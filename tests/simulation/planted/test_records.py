"""Planted bugs in what a store decides: who creates a record and when, what becomes of a doubt, compaction, wipes, leases."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Any

import pytest

from consensus.border import Freeze
from consensus.errors import UnreadableError
from consensus.messages import EvidenceKind, Lease, ViewRecord
from consensus.protocol.admission.admission import Admission
from consensus.protocol.agreement import proposer
from consensus.protocol.agreement.proposer import Proposer
from consensus.protocol.agreement.register import Register
from consensus.protocol.agreement.view_change import ViewChange
from consensus.protocol.detection.detection import Detection
from consensus.protocol.detection.leases import Leases
from consensus.simulation import SimulatedStore
from consensus.simulation.invariants import Exclusion, Liveness, Records
from consensus.simulation.world.in_memory_store import InMemoryStore
from consensus.storage import view_log
from consensus.storage.store import Created
from consensus.storage.view_log import ViewLog
from consensus.store_requests import Away, CreateView, Recorded, StoreOp, StoreReply, Wiped
from consensus.view import Proposal, View
from tests.harness.basics import around

from .bug import Bug, Patch
from .stores import changes, comings, doubts, outages, readers, silences, sleepers, splits, strangers, wipes


def creates_what_is_compacted(patch: Patch) -> None:
    """Records are created below the compacted revision, too: a member that slept makes one of them again."""

    @around(patch, SimulatedStore, "create")
    async def create(
        honest: Any, self: SimulatedStore, key: str, value: bytes, *, number: int | None = None, series: str = ""
    ) -> Created:
        return await honest(self, key, value)


def last_writer_wins(patch: Patch) -> None:
    """A record replaces the one that stands there: creation is not exclusive."""

    @around(patch, InMemoryStore, "create")
    def create(honest: Any, self: InMemoryStore, key: str, value: bytes, number: int = 0, series: str = "") -> bool:
        self._values.pop(key, None)
        return honest(self, key, value, number, series)


def freezes_before_the_record(patch: Patch) -> None:
    """A proposer freezes its data plane when it asks for the record, and not once that stands."""

    @around(patch, Proposer, "_begin_record")
    def begin(honest: Any, self: Proposer, parent: View, now: float) -> None:
        honest(self, parent, now)
        self._core.outbox.emit(Freeze(parent.epoch + 1, None))


def doubt_is_success(patch: Patch) -> None:
    """A record whose creation was not answered is taken for created."""

    @around(patch, Register, "answered")
    def answered(honest: Any, self: Register, request: StoreOp, answer: StoreReply, now: float) -> None:
        if isinstance(request, CreateView) and isinstance(answer, Away) and answer.ambiguous:
            answer = Recorded(request.record)
        honest(self, request, answer, now)


def doubt_is_failure(patch: Patch) -> None:
    """What was not answered never happened: a record of its own that stands is taken for that of its next proposal."""

    @around(patch, Register, "answered")
    def answered(honest: Any, self: Register, request: StoreOp, answer: StoreReply, now: float) -> None:
        if isinstance(request, CreateView) and isinstance(answer, Recorded) and (found := answer.record) is not None:
            again = (found.driver, found.view.epoch) == (request.record.driver, request.record.view.epoch)
            answer = Recorded(request.record) if again else answer
        honest(self, request, answer, now)


def lets_itself_in(patch: Patch) -> None:
    """Who reads that it was left out records the next view, with itself in it again."""

    @around(patch, ViewChange, "_recorded")
    def recorded(honest: Any, self: ViewChange, record: ViewRecord, now: float) -> None:
        core, parent = self._core, record.view
        if core.view is None or core.member.id in parent:
            honest(self, record, now)
            return
        proposal = Proposal(parent.view_id, parent.epoch + 1, joined=(core.member,))
        self.register.create(ViewRecord(proposal.apply(parent), core.member.id, proposal))


def founds_beside_the_living(patch: Patch) -> None:
    """Whoever finds nobody founds anew after the newest record, whether its members live or not."""

    def vacant(self: Admission, now: float) -> bool:
        return self.survey is not None and self.survey.answered and now >= self._next_try

    patch.setattr(Admission, "_vacant", vacant)


def parent_is_not_read(patch: Patch) -> None:
    """A record is created without a look at its parent's, before or after: a store that was wiped is not noticed."""

    async def parent_of(self: ViewLog, record: ViewRecord) -> str:
        return record.view.parent_id

    async def confirmed(self: ViewLog, record: ViewRecord, parent: str) -> Recorded:
        return Recorded(record)

    patch.setattr(ViewLog, "_parent_of", parent_of)
    patch.setattr(ViewLog, "_confirmed", confirmed)


def cleans_before_compacting(patch: Patch) -> None:
    """Old records are removed before the log is compacted above them."""

    async def clean(self: ViewLog, compacted: int) -> None:
        listed = await self._store.list(view_log.PREFIX)
        old = [view_log.key_of(number) for number in view_log._numbers(listed) if number < compacted]
        if old:
            await self._store.delete(*old)
        await self._store.compact(view_log.SERIES, compacted)

    patch.setattr(ViewLog, "clean", clean)


def compacted_before_the_records(patch: Patch) -> None:
    """The compacted revision is read before the records: what was removed meanwhile is taken for lost."""

    async def newest(self: ViewLog, epoch: int = 0, view_id: str = "") -> Recorded | Wiped:
        compacted = await self._store.compacted(view_log.SERIES)
        listed = await self._store.list(view_log.PREFIX)
        record = self._newest_readable(listed, view_log._numbers(listed))
        return self._judge(record, listed, compacted, epoch, view_id)

    patch.setattr(ViewLog, "newest", newest)


def replaces_what_it_cannot_read(patch: Patch) -> None:
    """What a member cannot read in the place of a record is taken for garbage, and replaced by the member's own."""

    @around(patch, ViewLog, "create")
    async def create(honest: Any, self: ViewLog, record: ViewRecord) -> Recorded | Wiped:
        try:
            return await honest(self, record)
        except UnreadableError:
            key = view_log.key_of(record.view.epoch)
            await self._store.write(key, self._cipher.wrap(key, record))
            return Recorded(record)


def leases_by_wall_clock(patch: Patch) -> None:
    """A lease has its writer's time in it, and lasts as long as the reader's clock has not passed that."""
    beat = Leases._ask

    def ask(self: Leases, request: StoreOp, now: float) -> None:
        lease = getattr(request, "lease", None)
        if isinstance(lease, Lease):
            request = replace(request, lease=replace(lease, counter=int(1000 * now)))  # type: ignore[call-arg]
        beat(self, request, now)

    honest = Leases._renewed

    def renewed(self: Leases, lease: Lease, now: float) -> bool:
        honest(self, lease, now)
        if (book := self._books.get(lease.member.id)) is not None:
            book.rose = now
        return self._core.table.get(lease.member.id) is not None and lease.counter / 1000 + self._core.config.lease > now

    patch.setattr(Leases, "_ask", ask)
    patch.setattr(Leases, "_renewed", renewed)
    patch.setattr(proposer, "STANDS_IN", inf)  # else somebody whose clock is ahead does what the coordinator does not


def no_second_opinion(patch: Patch) -> None:
    """Whose lease was not renewed in time is taken for silent, whether it answers pings or not."""

    @around(patch, Detection, "tick")
    def tick(honest: Any, self: Detection, now: float) -> None:
        for member_id in () if self.leases is None else self.leases.overdue(now):
            self._verdicts._accuse(member_id, EvidenceKind.SILENCE, "its lease was not renewed", now)
        honest(self, now)


BUGS = [
    Bug(creates_what_is_compacted, sleepers, 30, Records, "is decided twice", known=3),
    Bug(last_writer_wins, splits, 10, Records, "is decided twice", known=1),
    Bug(freezes_before_the_record, splits, 5, Records, "freezes for epoch"),
    Bug(doubt_is_success, doubts, 20, Records, "which no record has decided", known=2),
    Bug(doubt_is_failure, doubts, 60, Records, "which no record has decided", known=44),
    Bug(lets_itself_in, splits, 5, Records, "without being a member"),
    Bug(founds_beside_the_living, comings, 10, Records, "anew though .* live"),
    Bug(parent_is_not_read, wipes, 5, Records, "in a store that was wiped, and keeps it"),
    Bug(cleans_before_compacting, changes, 5, Records, "compacted at"),
    Bug(compacted_before_the_records, readers, 10, Records, "takes the store for wiped", known=6),
    Bug(replaces_what_it_cannot_read, strangers, 10, Records, "which no record has decided"),
    Bug(leases_by_wall_clock, silences, 10, Liveness, "nothing has been wrong", known=1),
    Bug(no_second_opinion, outages, 10, Exclusion, "its ack had reached|both had been well"),
]


@pytest.mark.parametrize("bug", BUGS, ids=str)
def test_a_planted_bug_is_found(bug: Bug, monkeypatch: Patch) -> None:
    bug.expect(monkeypatch)
