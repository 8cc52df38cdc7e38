"""Under policy ``any`` sides go on apart, and some checkers know of that: they must still notice what is broken on purpose."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from consensus.messages import JoinReply
from consensus.protocol.detection.verdict import Verdicts
from consensus.protocol.state.join import Search
from consensus.protocol.state.member_table import Peer
from consensus.simulation import draw
from consensus.simulation.script.play import Result
from consensus.simulation.script.play import play as play_views
from tests.harness.basics import around
from tests.simulation.data_plane import play, random_history

from . import test_salvage as salvage
from .bug import Patch
from .test_members import answers_do_not_help

SEEDS = 60
"""The most histories that are tried for one bug; the first seed that showed it is tried first."""


def trains(seed: int) -> Result:
    return play(random_history(seed, "any"))


def crowded(seed: int) -> Result:
    """Above three members it takes several to judge a silence."""
    return play_views(replace(draw(seed, policy="any"), mesh_limit=3))


def judges_early(patch: Patch) -> None:
    """A silence is evidence a second too early."""

    @around(patch, Verdicts, "time")
    def time(honest: Any, self: Verdicts, peer: Peer) -> float:
        return float(honest(self, peer)) - 1.0


def waits_for_accusers(patch: Patch) -> None:
    """A silence counts once three accuse, though fewer than three are left."""
    patch.setattr(Verdicts, "_few_are_left", property(lambda _self: False))
    patch.setattr(Verdicts, "unconfirmed", lambda _self, _now: [])


def hearsay_confirms(patch: Patch) -> None:
    """A joiner keeps to a side for as long as another joiner knows it, too."""

    @around(patch, Search, "replied")
    def replied(honest: Any, self: Search, sender: str, source: Any, reply: JoinReply, now: float) -> None:
        known = self.cluster
        if known is not None and reply.view_id == known.view_id and reply.coordinator is not None:
            sender = reply.coordinator.id
        honest(self, sender, source, reply, now)


BUGS: list[tuple[Callable[[Patch], None], Callable[[int], Result], int, str]] = [
    (salvage.redoes_what_was_finished, trains, 3, "goes on after call 0, but finished 1 last"),
    (salvage.forgets_who_is_late, trains, 4, "goes on after call 11, but finished 10 last"),
    (salvage.donors_that_lack_it, trains, 18, "the result of call 5 is gone"),
    (salvage.finishes_after_the_freeze, trains, 812, "goes on after call 6, but finished 7 last"),
    (salvage.reports_before_the_freeze, trains, 5, "goes on after call 18, but finished 19 last"),
    (salvage.one_slot_a_bucket, trains, 4, "which nobody has finished so"),
    (salvage.joiners_count_at_once, trains, 2, "computed on other weights"),
    (salvage.joiners_are_veterans, trains, 51, "ended: members finished call 50 with different tensors"),
    (salvage.state_of_any_moment, trains, 4, "deals .* after call 12, others"),
    (salvage.reports_of_a_quorum, trains, 10, "every member that held the state ended"),
    (salvage.expects_what_it_was_in, trains, 1, "bytes at ranks of one group"),
    (salvage.expects_what_some_were_in, trains, 2, "bytes at ranks of one group"),
    (judges_early, trains, 3, "invariant 5 "),
    (answers_do_not_help, trains, 5, "invariant 7 "),
    (waits_for_accusers, crowded, 37, "invariant 8 "),
    (hearsay_confirms, trains, 755651, "stuck"),
]
"""What is broken, in which histories, the first that showed it, and what must be said (a pattern)."""


@pytest.mark.parametrize(("bug", "tell", "known", "says"), BUGS, ids=[bug.__name__ for bug, *_ in BUGS])
def test_a_planted_bug_is_found(
    bug: Callable[[Patch], None], tell: Callable[[int], Result], known: int, says: str, monkeypatch: Patch
) -> None:
    bug(monkeypatch)
    told = ((seed, tell(seed)) for seed in (known, *range(SEEDS)))
    found = next((seed for seed, result in told if not result.good and re.search(says, str(result))), None)
    print(bug.__name__, found)
    assert found is not None, f"{bug.__doc__} Nobody noticed within {SEEDS} histories."
    monkeypatch.undo()
    result = tell(found)
    assert result.good, str(result)
