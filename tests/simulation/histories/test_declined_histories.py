"""Members that decline calls, of any kind, in random histories: nobody has a result of such a call, whoever dies meanwhile."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from consensus.simulation.script.scenario import POLICIES
from ftlib.core.calls import adoption
from ftlib.core.calls.attempt import UNKNOWN, Attempt, CallDeclined
from ftlib.core.calls.call import CallOutcome, Results
from ftlib.core.calls.session import Session
from ftlib.core.tensors.layout import Layout
from ftlib.core.tensors.trailer import Trailer
from ftlib.data import mates
from ftlib.data.sampling import Share
from tests.harness.basics import around
from tests.simulation.data_plane import (
    POLICIES_OF_REPLICAS,
    declining,
    declining_sharded,
    play,
    play_plot,
    random_history,
    sharded_history,
)

from .volume import mostly_soak

SEEDS, SHARDED = 40, 20
ODD = (
    (192, ""),  # two suspect each other and do not watch each other, and who heard both dies: each waits for others to act
    (709193, ""),  # a newcomer is left alone with the state, in a call that it follows: it must not drop the state after that
    (700866, "storage"),  # one process has begun an epoch, its mate and all others decline, and have not
    (701226, "storage"),  # one process adopts a call of which the others know that its replica has drawn it apart
)
"""Of replicas of several processes: seed, policy."""
DEALT_APART = 600049
SOAK = 2000
CHUNK = 50


@functools.cache
def played(seed: int) -> tuple[str, Counter[str]]:
    """What is wrong with the history of that seed, if anything; and what happened."""
    return _play(seed)


def _play(seed: int) -> tuple[str, Counter[str]]:
    """As ``played``, played anew: with a bug it goes another way."""
    jobs = declining(seed)
    result = play(random_history(seed), jobs=jobs)
    return "" if result.good else f"{jobs.habits}\n{result.scenario}\n{result}", Counter(jobs.promises.counts)


@pytest.mark.parametrize("first", mostly_soak(range(0, SEEDS, 5), 3))
def test_promises_hold_whoever_declines(first: int) -> None:
    for seed in range(first, first + 5):
        wrong, _ = played(seed)
        assert not wrong, f"seed {seed}: {wrong}"


@functools.cache
def played_by_shards(seed: int, policy: str = "") -> tuple[str, Counter[str]]:
    """As ``played``, with replicas of several processes."""
    jobs = declining_sharded(seed)
    scenario, shards = sharded_history(seed, policy)
    result = play(scenario, jobs=jobs, shards=shards)
    return "" if result.good else f"{shards} shards, {jobs.habits}\n{result}", Counter(jobs.promises.counts)


@pytest.mark.parametrize("first", mostly_soak(range(0, SHARDED, 5), 2))
def test_all_shards_of_a_call_are_declined_or_none(first: int) -> None:
    for seed in range(first, first + 5):
        wrong, _ = played_by_shards(seed)
        assert not wrong, f"seed {seed}: {wrong}"


def test_whoever_deals_the_samples_in_another_way_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: what the processes of a replica agree on names no epoch where they were at different batches."""
    honest = mates._together

    def together(column: Sequence[Share]) -> Share:
        share = honest(column)
        return share if len({each.use for each in column}) == 1 else replace(share, data_epoch=0)

    monkeypatch.setattr(mates, "_together", together)
    jobs = declining_sharded(DEALT_APART)
    scenario, shards = sharded_history(DEALT_APART, "storage")
    assert re.search("deals .* after call 1, others", str(play(scenario, jobs=jobs, shards=shards)))
    monkeypatch.undo()
    assert not played_by_shards(DEALT_APART, "storage")[0]


@pytest.mark.parametrize(("seed", "policy"), ODD)
def test_what_went_wrong_once(seed: int, policy: str) -> None:
    wrong, _ = played_by_shards(seed, policy)
    assert not wrong


def test_promises_hold_whatever_is_plotted() -> None:
    for seed in range(8):
        result, plot = play_plot(seed, make=declining)
        assert result.good, f"seed {seed}: {plot.script}\n{result.scenario}\n{result}"


@pytest.mark.soak
def test_the_histories_have_everything() -> None:
    counts: Counter[str] = Counter()
    for seed in range(SEEDS):
        counts.update(played(seed)[1])
    assert counts["declined"] > 500
    assert counts["finished"] > 2 * counts["declined"]
    assert counts["adopted"] > 5
    assert counts["loaded"] > 5
    counts = Counter()
    for seed in range(SHARDED):
        counts.update(played_by_shards(seed)[1])
    assert counts["declined"] > 30
    assert counts["fits"] > 200


Patch = pytest.MonkeyPatch


def one_does_not_refuse(patch: Patch) -> None:
    """A member applies what another one has declined."""

    @around(patch, Attempt, "_ended")
    def ended(honest: Any, self: Attempt, *arguments: Any) -> tuple[Trailer, Results]:
        trailer, results = honest(self, *arguments)
        if results.outcome is CallOutcome.DECLINED_HERE and self._session.rank == 1:
            results.outcome = CallOutcome.INTACT
        return trailer, results


def adopters_do_not_hear_of_it(patch: Patch) -> None:
    """Who adopts a declined call takes it for one with a result."""

    @around(patch, adoption.Adoption, "receive")
    def receive(honest: Any, self: adoption.Adoption, *arguments: Any) -> Results:
        results: Results = honest(self, *arguments)
        if results.outcome is CallOutcome.DECLINED_HERE:
            results.outcome = CallOutcome.INTACT
        return results


def only_who_declines_ends_it(patch: Patch) -> None:
    """The others go on with a call of which who declines knows nothing but the records."""

    @around(patch, Attempt, "_hear")
    def hear(honest: Any, self: Attempt, *arguments: Any) -> None:
        try:
            honest(self, *arguments)
        except CallDeclined:
            self._trailer = None


def expects_what_it_knows(patch: Patch) -> None:
    """After a declined call each member expects what it has made of it itself."""

    @around(patch, Session, "ended")
    def ended(honest: Any, self: Session, layout: Layout, *arguments: Any, **more: Any) -> None:
        if layout is not UNKNOWN or self.rank:
            honest(self, layout, *arguments, **more)


def tells_what_it_was(patch: Patch) -> None:
    """A flush report has the signature of a declined call: not all members know it."""
    honest = Results.__init__

    def made(self: Results, number: int, layout: Layout, *arguments: Any, **more: Any) -> None:
        honest(self, number, layout, *arguments, **more)
        self.signature = layout.signature

    patch.setattr(Results, "__init__", made)


BUGS = [one_does_not_refuse, adopters_do_not_hear_of_it, only_who_declines_ends_it, expects_what_it_knows, tells_what_it_was]


@pytest.mark.parametrize("plant", BUGS)
def test_a_planted_bug_is_found(plant: Callable[[Patch], None], monkeypatch: Patch) -> None:
    plant(monkeypatch)
    found = next((seed for seed in range(SEEDS) if _play(seed)[0]), None)
    print(plant.__name__, found)
    assert found is not None, f"{plant.__doc__} Nobody noticed within {SEEDS} histories."


@pytest.mark.soak
@pytest.mark.parametrize("first", range(0, SOAK, CHUNK))
def test_promises_hold_in_many_more(first: int) -> None:
    bad = []
    for seed in range(first, first + CHUNK):
        for policy in POLICIES:
            result = play(random_history(seed, policy), jobs=declining(seed))
            if not result.good:
                bad.append(f"seed {seed} {policy}: {result}")
        for policy in POLICIES_OF_REPLICAS:
            scenario, shards = sharded_history(seed, policy)
            result = play(scenario, jobs=declining_sharded(seed), shards=shards)
            if not result.good:
                bad.append(f"seed {seed} {policy}, sharded: {result}")
        result, plot = play_plot(seed, make=declining)
        if not result.good:
            bad.append(f"seed {seed}, {plot.script}: {result}")
    assert not bad, "\n".join(bad)
