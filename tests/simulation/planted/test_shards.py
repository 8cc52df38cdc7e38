"""Each rule of replicas of several processes is broken on purpose; the promises must notice within so many torn histories."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest

from consensus import Member, View
from consensus.protocol.agreement import proposer
from consensus.protocol.state import join
from ftlib.core.calls import shard_salvage
from ftlib.core.calls.call import Call, Results
from ftlib.core.calls.salvage import Report
from ftlib.core.calls.session import Session
from ftlib.core.engine.catching_up import CatchUp
from ftlib.core.engine.shard_agreement import ShardAgreement
from ftlib.core.plane import rebuild
from ftlib.core.plane.data_accounting import DataAccounting
from ftlib.core.replicas.agreement import Holders, ShardPlan
from ftlib.core.replicas.whole import whole_replicas
from ftlib.core.replicas.words import ReplicaVerdict, Word
from ftlib.core.tensors.trailer import Trailer
from ftlib.data.mates import Drawing
from ftlib.recovery.border import Border
from tests.simulation.training import (
    Job,
    first_violation,
    local_shards,
    mixed_shards,
    torn_adoptions,
    torn_founders,
    torn_shards,
)

Patch = pytest.MonkeyPatch
Bug = Callable[[Patch], None]
MOST = 80
"""Histories in which a bug has to show."""
HISTORIES = (torn_shards, torn_adoptions, torn_founders, local_shards, mixed_shards)
"""Histories without a bug, which have to be clean."""


def finishes_what_it_holds(patch: Patch) -> None:
    """A call is finished at once, though other processes of the replica may not have their results."""

    def verdict(_self: ShardAgreement, _call: Call, _session: Session, word: Word, **_more: object) -> ReplicaVerdict:
        return ReplicaVerdict(freeze=False, void=False, alike=True, drawn=(word.drawn,))

    patch.setattr(ShardAgreement, "_verdict", verdict)


def finishes_what_it_adopts(patch: Patch) -> None:
    """... only one whose result was adopted, or kept."""
    honest = ShardAgreement.hold

    def hold(
        self: ShardAgreement, call: Call, session: Session, results: Results, trailer: Trailer | None = None
    ) -> Trailer | bool:
        if trailer is None:
            return self._plane.hold(session, results, None)
        return honest(self, call, session, results, trailer)

    patch.setattr(ShardAgreement, "hold", hold)


def words_of_any_view(patch: Patch) -> None:
    """A word counts in whatever view it was said."""
    complete = property(lambda self: all(call >= self._call for _, call in self._newest.values()))
    patch.setattr(Holders, "complete", complete)


def plans_alone(patch: Patch) -> None:
    """Each shard makes its own plan, from the reports of its own members."""

    def alone(view: View, reports: dict[str, bytes], shard: int) -> object:
        mine = shard_salvage.shard_view(view, shard)
        return rebuild.plan(mine, {key: data for key, data in reports.items() if key in mine})

    patch.setattr(rebuild, "plan_across", alone)


def keeps_nothing(patch: Patch) -> None:
    """Nobody keeps what only it held: shards that have finished the call go on without the others."""
    honest = shard_salvage.plan_shards

    def without(*given: object) -> ShardPlan:
        return replace(honest(*given), keepers=(), adoptions=())  # type: ignore[arg-type]

    patch.setattr(shard_salvage, "plan_shards", without)


def leaves_the_rest_in(patch: Patch) -> None:
    """A view loses a process and keeps the rest of its replica."""
    patch.setattr(View, "with_cohorts", lambda _self, removed: tuple(removed))


def lets_them_in_one_by_one(patch: Patch) -> None:
    """Processes join as they come, not whole replicas."""

    def all_of(members: Iterable[Member]) -> list[Member]:
        return list(members)

    patch.setattr(proposer, "whole_cohorts", all_of)
    patch.setattr(join, "whole_cohorts", all_of)


def comes_in_alone(patch: Patch) -> None:
    """A newcomer's processes find out one by one whether they have come in."""
    honest = Results.agreed_on
    patch.setattr(Results, "agreed_on", lambda self, *, out, preface: honest(self, out=self.out, preface=preface))
    patch.setattr(DataAccounting, "_lingers", lambda self, _shares, step, _batches: (step + int(self._plane.member_id, 16)) % 2)


def returns_at_once(patch: Patch) -> None:
    """``catch_up`` returns at a process once the state is there, whatever its mates have got."""
    patch.setattr(ShardAgreement, "border", lambda *_given, **_more: ReplicaVerdict(freeze=False, void=False, alike=True))


def counts_alone(patch: Patch) -> None:
    """What a process computed for its first call counts, though a mate has loaded the state within that call."""
    patch.setattr(ShardAgreement, "counts", lambda *_: True)


def gives_it_beside(patch: Patch) -> None:
    """Private state is given at whatever step its donor is."""
    honest = Border.__init__

    def init(self: Border, *given: Any, **more: Any) -> None:
        honest(self, *given, **{**more, "beside": True})

    patch.setattr(Border, "__init__", init)


def of_any_donor(patch: Patch) -> None:
    """Private state of different replicas is taken for one."""
    patch.setattr(CatchUp, "given", lambda *_given, **_more: None)


def deals_by_its_own_shard(patch: Patch) -> None:
    """In a new view each shard deals by what its own processes have drawn."""
    honest = rebuild.plan_across

    def own(view: View, reports: dict[str, bytes], shard: int) -> object:
        chosen = honest(view, reports, shard)
        keys = {each.name: each.ids[shard] for each in whole_replicas(view.members)}
        drawn = ((name, Report.decode(reports[keys[name]]).drawn) for name, _ in chosen.drawn)
        return replace(chosen, drawn=tuple((name, data) for name, data in drawn if data))

    patch.setattr(rebuild, "plan_across", own)


def deals_by_its_own_records(patch: Patch) -> None:
    """After a call each shard deals by its own rank records, whatever those of the others say."""
    patch.setattr(DataAccounting, "agree", lambda self, results, _said: results.agree(self.drawing(results)))


def counts_different_samples(patch: Patch) -> None:
    """A call has its result, though the processes of a replica have computed it from different samples."""
    patch.setattr(Drawing, "differ", lambda _said: False)


BUGS: dict[Bug, tuple[Callable[[int], Job], int]] = {
    finishes_what_it_holds: (torn_shards, 0),
    finishes_what_it_adopts: (torn_adoptions, 2),
    words_of_any_view: (torn_shards, 12),
    plans_alone: (torn_adoptions, 2),
    keeps_nothing: (torn_adoptions, 2),
    leaves_the_rest_in: (torn_shards, 0),
    lets_them_in_one_by_one: (torn_shards, 1),
    comes_in_alone: (torn_shards, 1),
    returns_at_once: (local_shards, 7),
    counts_alone: (torn_founders, 1),
    gives_it_beside: (local_shards, 0),
    of_any_donor: (local_shards, 7),
    deals_by_its_own_shard: (torn_shards, 7),
    deals_by_its_own_records: (torn_shards, 1),
}
"""With the kind of histories in which it shows, and the first one that showed it."""


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_the_promises_notice(bug: Bug, monkeypatch: Patch) -> None:
    bug(monkeypatch)
    history, first = BUGS[bug]
    found = first_violation(history, range(first, MOST))
    assert found is not None, f"{bug.__name__} was not noticed in {MOST} histories"


SHOWN = {history: sorted({seed for known, seed in BUGS.values() if known is history} or {0, 1}) for history in HISTORIES}
"""The seeds that show a bug; a kind of history that shows none alone has two all the same."""


@pytest.mark.parametrize("history", HISTORIES)
def test_without_a_bug_they_are_clean(history: Callable[[int], Job]) -> None:
    for seed in SHOWN[history]:
        assert first_violation(history, range(seed, seed + 1)) is None


@pytest.mark.soak
@pytest.mark.parametrize("first", range(0, 2000, 50))
@pytest.mark.parametrize("history", HISTORIES)
def test_more_of_them_are_clean(history: Callable[[int], Job], first: int) -> None:
    assert first_violation(history, range(first, first + 50)) is None
