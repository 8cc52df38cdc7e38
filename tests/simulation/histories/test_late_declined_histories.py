"""Members with backup workers that decline calls, in time or late: whoever does has what the others have averaged, or is out.

Rules of that, broken on purpose, are in here as well.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from consensus.simulation.script.scenario import POLICIES
from ftlib.core.backup.backlog import Backlog
from ftlib.core.calls.call import Call
from ftlib.core.calls.follow import Declined
from ftlib.errors import StepMismatch
from ftlib.status import Status
from tests.harness.basics import around
from tests.simulation.data_plane import Trainers, declining_late, mixing, play, play_plot, random_history

from .volume import mostly_soak

SEEDS = 40
SOAK = 2000
CHUNK = 50


@functools.cache
def played(seed: int) -> tuple[str, Counter[str]]:
    """What is wrong with the history of that seed, if anything; and what happened."""
    return _play(seed)


def _play(seed: int, make: Callable[[int], Trainers] = declining_late) -> tuple[str, Counter[str]]:
    """As ``played``, played anew: with a bug it goes another way."""
    jobs = make(seed)
    result = play(random_history(seed), jobs=jobs)
    return "" if result.good else f"{jobs.habits}\n{result.scenario}\n{result}", Counter(jobs.promises.counts)


@pytest.mark.parametrize("first", mostly_soak(range(0, SEEDS, 5), 8))
def test_promises_hold_whoever_declines_late(first: int) -> None:
    for seed in range(first, first + 5):
        wrong, _ = played(seed)
        assert not wrong, f"seed {seed}: {wrong}"


@pytest.mark.soak
def test_promises_hold_whatever_is_plotted() -> None:
    for seed in range(8):
        result, plot = play_plot(seed, make=declining_late)
        assert result.good, f"seed {seed}: {plot.script}\n{result.scenario}\n{result}"


@pytest.mark.soak
def test_the_histories_have_everything() -> None:
    counts: Counter[str] = Counter()
    for seed in range(SEEDS):
        counts.update(played(seed)[1])
    assert counts["declined"] > 100
    assert counts["stood in"] > 50
    assert counts["taken over"] > 20
    assert counts["declined late"] > 2


Patch = pytest.MonkeyPatch


@dataclass(frozen=True)
class Bug:
    """``plant`` breaks a rule; of the histories of jobs that ``make`` draws, that of ``known`` has shown it."""

    plant: Callable[[Patch], None]
    known: int
    make: Callable[[int], Trainers] = declining_late


def applies_what_lies_there(patch: Patch) -> None:
    """Who declines late applies what its gradients hold, as often as the others have averaged, but for the last time."""

    def declined(self: Backlog, call: Declined, last: int) -> Status:
        call.learn(self._entries[last].results.layout)
        for entry in self._entries[:last]:
            self._apply(entry, call)
        with self._plane.changed:
            self._plane.lag.shrink(self._entries[last].granted)
        self._drop(last + 1)
        return Status.SUCCESS

    patch.setattr(Backlog, "_declined", declined)


def takes_a_declined_call_for_another(patch: Patch) -> None:
    """A late program is told that the others did something else, where they have declined a call that it does not know."""

    @around(patch, Backlog, "take_over")
    def take_over(honest: Any, self: Backlog, call: Call) -> Status:
        last = max(0, self._regular - 1) // len(self._step) * len(self._step)
        if not call.declines and call.layout.signature != self._entries[last].results.layout.signature:
            raise StepMismatch(f"{call}: the others did something else while this worker was late")
        status: Status = honest(self, call)
        return status


def _often(seed: int) -> Trainers:
    """Jobs in which it happens more often that all who are not late decline."""
    return mixing(seed, declines=0.05, raises=0.0)


BUGS = [Bug(applies_what_lies_there, known=34), Bug(takes_a_declined_call_for_another, known=67, make=_often)]


@pytest.mark.parametrize("bug", BUGS, ids=[bug.plant.__name__ for bug in BUGS])
def test_a_planted_bug_is_found(bug: Bug, monkeypatch: Patch) -> None:
    bug.plant(monkeypatch)
    found = next((seed for seed in (bug.known, *range(SEEDS)) if _play(seed, bug.make)[0]), None)
    print(bug.plant.__name__, found)
    assert found is not None, f"{bug.plant.__doc__} Nobody noticed within {SEEDS} histories."
    monkeypatch.undo()
    assert not _play(found, bug.make)[0]


@pytest.mark.soak
@pytest.mark.parametrize("first", range(0, SOAK, CHUNK))
def test_promises_hold_in_many_more(first: int) -> None:
    bad = []
    for seed in range(first, first + CHUNK):
        for policy in POLICIES:
            result = play(random_history(seed, policy), jobs=declining_late(seed))
            if not result.good:
                bad.append(f"seed {seed} {policy}: {result}")
        result, plot = play_plot(seed, make=declining_late)
        if not result.good:
            bad.append(f"seed {seed}, {plot.script}: {result}")
    assert not bad, "\n".join(bad)
