"""Histories that fork under a wrong rule, each told twice: under the rule as it is, and under the wrong one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from consensus.errors import ExcludedError, LeftError
from consensus.protocol.evidence import EvidenceBook
from consensus.protocol.view_change import ViewChange
from consensus.simulation import Host, World
from consensus.simulation.invariants import Activation, Choice, Exclusion, Invariant
from consensus.simulation.transcript import Transcript

from .script import agree, epochs, remark, unchecked
from .tale import Tale, end, violation
from .test_forks import acked_from_a_newer_view, chain_of_four, count_any_ack, count_the_living, let_leavers_discount, seven
from .test_forks import two_leavers
from .test_stale_votes import late_news, stale_votes

Patch = pytest.MonkeyPatch


def _wrong(
    page: Transcript, tell: Callable[[Patch], object], spoil: Callable[[Patch], object], *away: type[Invariant]
) -> None:
    """The story again, with a rule changed by ``spoil``; the checkers ``away``, which see the fork coming, look away."""
    with pytest.MonkeyPatch.context() as patch:
        unchecked(patch, *away)
        spoil(patch)
        with violation(page):
            tell(patch)


def fork_chain_of_four(tale: Tale) -> None:
    tale.head("x", "7")
    with pytest.MonkeyPatch.context() as patch:
        unchecked(patch, Exclusion)
        world, (m0, m1, _, m3) = chain_of_four(tale.page("The rule"))
    end(world, "Both sides block:")
    assert epochs([m0, m1, m3]) == [1, 1, 1]
    remark(world, "All links are back.")
    world.faults.heal()
    agree(world, [m0, m1])
    world.run_until(lambda: m3.stopped is not None, 5.0)
    end(world)
    assert isinstance(m3.stopped, ExcludedError)
    page = tale.page("The wrong rule", aside=True)
    _wrong(page, lambda _: chain_of_four(page), count_the_living, Activation, Choice, Exclusion)


def fork_seven(tale: Tale) -> None:
    tale.head("x", "7")
    with pytest.MonkeyPatch.context() as patch:
        unchecked(patch, Exclusion)
        world, (g, h, _, _, a, f, k) = seven(tale.page("The rule"))
    end(world, "Both sides block:")
    assert epochs([g, h, a, f, k]) == [1] * 5
    remark(world, "All links are back.")
    world.faults.heal()
    agree(world, [g, h, a])
    world.run_until(lambda: f.stopped is not None and k.stopped is not None, 5.0)
    end(world)
    assert isinstance(f.stopped, ExcludedError)
    page = tale.page("The wrong rule", aside=True)
    _wrong(page, lambda _: seven(page), count_the_living, Activation, Choice, Exclusion)


def fork_leavers(tale: Tale) -> None:
    tale.head("x", "8")
    world, (p, q, j) = two_leavers(tale.page("The rule"))
    end(world, "Meanwhile:")
    assert epochs([p, q]) == [1, 1]
    world.run_until(lambda: p.stopped is not None and q.stopped is not None, 30.0)
    end(world)
    assert isinstance(p.stopped, LeftError)
    page = tale.page("The wrong rule", aside=True)
    _wrong(page, lambda _: two_leavers(page), let_leavers_discount, Activation, Choice)


def fork_newer_ack(tale: Tale) -> None:
    tale.head("x", "8")
    world, (a, p) = acked_from_a_newer_view(tale.page("The rule"))
    end(world)
    assert epochs([a, p]) == [2, 1]
    page = tale.page("The wrong rule", aside=True)
    _wrong(page, lambda _: acked_from_a_newer_view(page), count_any_ack, Activation, Choice)


def fork_stale_votes(tale: Tale) -> None:
    tale.head("x", "9")
    with pytest.MonkeyPatch.context() as patch:
        world, (a, m) = stale_votes(patch, tale.page("The rule"))
        end(world)
    assert epochs([a, m]) == [2, 2]
    page = tale.page("The wrong rule", aside=True)
    _wrong(
        page,
        lambda patch: stale_votes(patch, page),
        lambda patch: patch.setattr(EvidenceBook, "late", lambda *_: frozenset()),
    )


def fork_late_news(tale: Tale) -> None:
    tale.head("x", "12")
    with pytest.MonkeyPatch.context() as patch:
        world, (d, e, f) = late_news(patch, tale.page("The rule"))
        end(world)
    assert epochs([d, e, f]) == [2, 1, 1]
    page = tale.page("The wrong rule", aside=True)
    _wrong(
        page, lambda patch: late_news(patch, page), lambda patch: patch.setattr(ViewChange, "_voted_out", lambda *_: False)
    )
