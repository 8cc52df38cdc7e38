"""Random jobs, each from its seed: ``SEED=1234 pytest -k one_case`` plays one again."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest

from ftlib import ElasticSampler
from ftlib.data.dealing.deal import Deal
from ftlib.data.dealing.replica import Replica
from ftlib.data.drawer import FILLER, Drawer
from ftlib.data.sampling import Share
from tests.harness.basics import around

from .job import play
from .plot import Plot

CASES = 2000
PARTS = 4


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.soak) for part in range(1, PARTS))])
def test_every_sample_is_committed_once_whoever_comes_and_goes(part: int) -> None:
    _play_all(range(part, CASES, PARTS))


@pytest.mark.parametrize("make", [Plot.declining, Plot.syncing], ids=["declined calls", "local training"])
def test_so_it_is_with(make: Callable[[int], Plot]) -> None:
    _play_all(range(600), make)


def test_one_case_again() -> None:
    _play(int(os.environ.get("SEED", "763")))


@pytest.mark.soak
def test_many_more_cases() -> None:
    _play_all(range(CASES, 40_000))


def _play_all(seeds: Iterable[int], make: Callable[[int], Plot] = Plot.of) -> None:
    for seed in seeds:
        _play(seed, make)


def _play(seed: int, make: Callable[[int], Plot] = Plot.of) -> None:
    try:
        play(seed, make)
    except Exception as error:
        raise AssertionError(f"SEED={seed}: {error!r}") from error


# --- the same with defects: the cases above have to find each ------------------------------------------------------------


def _dealt_batches_too_early(patch: pytest.MonkeyPatch) -> None:
    """A member draws whatever a view change deals, before a call has finished in that view."""
    patch.setattr(Drawer, "_limit", lambda self, now: now.deal.length(self._me))


def _nothing_goes_back(patch: pytest.MonkeyPatch) -> None:
    """What members of the old view held is forgotten."""

    @around(patch, Deal, "again")
    def forgetful(
        again: Any, self: Deal, used: object, kept: object, returned: object, drawers: list[str], **more: object
    ) -> Deal:
        gone = [member for member in self.drawers if member not in drawers]
        lost = {member: self.length(member) for member in gone}
        return again(self, {**used, **lost}, kept, returned, drawers, **more)


def _dropped_is_lost(patch: pytest.MonkeyPatch) -> None:
    """What a failed call used up does not come back."""

    @around(patch, Replica, "_spent")
    def careless(spent: Any, self: Replica, *args: object) -> tuple[object, ...]:
        at, count, _, pieces = spent(self, *args)
        return at, count, [], pieces


def _shortest_loop(patch: pytest.MonkeyPatch) -> None:
    """Loops end where the member that looks ahead least is."""

    @around(patch, Replica, "completed")
    def hasty(completed: Any, self: Replica, looping: list[Share]) -> Replica:
        done = completed(self, looping)
        return done if done.left is None else replace(done, left=min(share.ahead for share in looping))


def _late_loops_do_not_count(patch: pytest.MonkeyPatch) -> None:
    """Loops end although one that is late has drawn more."""
    patch.setattr(Drawer, "late", Drawer.follow)


def _late_loops_end_with_the_others(patch: pytest.MonkeyPatch) -> None:
    """A backup worker says what is drawn, and not that the program has a call to make."""
    patch.setattr(Drawer, "late", lambda self: Share(ahead=self._queue.waiting, late=True))


def _backup_workers_go_on(patch: pytest.MonkeyPatch) -> None:
    """They act in the last calls of an epoch, too: all go on for ever, or until the program comes."""
    patch.setattr(ElasticSampler, "closing", False)


def _learners_hold_the_loops_open(patch: pytest.MonkeyPatch) -> None:
    """What a joiner's loader has drawn counts while it only follows: it uses up none of that, so the others go on for ever."""
    patch.setattr(Drawer, "follow", lambda self: Share(ahead=self._queue.waiting, late=True))


def _loaders_draw_beyond_the_end(patch: pytest.MonkeyPatch) -> None:
    """However many fillers a loader asks for when the epoch is complete, it gets them."""

    @around(patch, Drawer, "_next")
    def generous(following: Any, self: Drawer) -> object:
        batch = following(self)
        if batch is None and self._now is not None and self._now.left and self._queue.waiting < 4:
            self._queue.items.append(FILLER)
            return FILLER
        return batch


def _halted_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A worker that joins again has forgotten that its last call came to nothing."""

    @around(patch, Drawer, "bind")
    def forgetful(bind: Any, self: Drawer, member: str) -> None:
        bind(self, member)
        self._halted = None


def _what_is_adopted_is_this_batch(patch: pytest.MonkeyPatch) -> None:
    """A member that adopts a call which it had left by an exception takes its next batch for the one that was used up."""

    @around(patch, Drawer, "finished")
    def mistaken(finished: Any, self: Drawer, shares: dict[str, Share], step: int) -> None:
        own = shares.get(self._me)
        if self._call is not None and own is not None and own.data_epoch:
            self._call.share = own
        finished(self, shares, step)


def _unfinished_syncs_give_back(patch: pytest.MonkeyPatch) -> None:
    """What a sync would have used up goes back where it is not finished, though the program goes on with it."""

    @around(patch, Drawer, "begin")
    def forgetful(begin: Any, self: Drawer, batches: int, *, beside: int = 0, kept: bool = False) -> Share:
        del kept
        share: Share = begin(self, batches, beside=beside)
        return share


def _nothing_comes_beside(patch: pytest.MonkeyPatch) -> None:
    """What is drawn beside the call that completes an epoch makes no loop longer."""
    patch.setattr(Drawer, "_coming", 0)


DEFECTS = [
    (_dealt_batches_too_early, 139),
    (_nothing_goes_back, 0),
    (_dropped_is_lost, 2),
    (_shortest_loop, 3),
    (_late_loops_do_not_count, 3),
    (_late_loops_end_with_the_others, 64),
    (_backup_workers_go_on, 11),
    (_learners_hold_the_loops_open, 0),
    (_loaders_draw_beyond_the_end, 2),
    (_halted_is_forgotten, 323),
]
"""Each with the first case that finds it: that is tried before the others, to save the search."""


@pytest.mark.parametrize(("defect", "known"), DEFECTS, ids=[defect.__name__ for defect, _ in DEFECTS])
def test_the_cases_find_a_planted_defect(
    defect: Callable[[pytest.MonkeyPatch], None], known: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    defect(monkeypatch)
    with pytest.raises(AssertionError, match="SEED="):
        _play_all((known, *range(400)))


@pytest.mark.parametrize(
    ("defect", "make", "known"),
    [
        (_what_is_adopted_is_this_batch, Plot.declining, 373),
        (_unfinished_syncs_give_back, Plot.syncing, 0),
        (_nothing_comes_beside, Plot.syncing, 91),
    ],
)
def test_so_do_the_other_kinds(
    defect: Callable[[pytest.MonkeyPatch], None], make: Callable[[int], Plot], known: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    defect(monkeypatch)
    with pytest.raises(AssertionError, match="SEED="):
        _play_all((known, *range(600)), make)
