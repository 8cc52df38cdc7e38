"""Histories that fork under a wrong rule, each told twice: under the rule as it is, and under the wrong one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from consensus.errors import ExcludedError, LeftError
from consensus.protocol.agreement.view_change import ViewChange
from consensus.protocol.state.evidence import EvidenceBook
from consensus.simulation.invariants import Activation, Choice, Exclusion, Invariant
from consensus.simulation.transcript import Transcript

from .script import agree, epochs, remark, unchecked
from .tale import Tale, end, violation
from .test_forks import (
    acked_from_a_newer_view,
    chain_of_four,
    count_any_ack,
    count_the_living,
    forget_the_goodbye,
    goodbye_before_the_end,
    let_leavers_discount,
    seven,
    two_leavers,
)
from .test_stale_votes import late_news, stale_votes

Patch = pytest.MonkeyPatch


def _wrong(page: Transcript, tell: Callable[[Patch], object], spoil: Callable[[Patch], object], *away: type[Invariant]) -> None:
    """The story again, with a rule changed by ``spoil``; the checkers ``away``, which see the fork coming, look away."""
    with pytest.MonkeyPatch.context() as patch:
        unchecked(patch, *away)
        spoil(patch)
        with violation(page):
            tell(patch)


def fork_chain_of_four(tale: Tale) -> None:
    tale.head(
        "Four in a row, and the fork that dropping the dead makes",
        "7 (invariants 2, 4)",
        """Three links fail, so that each hears only its neighbours in the row m0 - m2 - m1 - m3; m0 is the most
        senior. m0 and m2, half of the four with the most senior, choose {m0 m1 m2}. m2 is killed before m1 hears of
        it. Now m0 follows a list of which m1 knows nothing, and m1 still has a link to m3.""",
    )
    page = tale.page(
        "The rule",
        """Both m0 and m1 are sure that m2 is dead, were in touch with it, and discount it. But then everybody else
        has to answer: m0 needs m1, and m1 needs m0. Both wait, until the links are back and m1 learns which list was
        chosen.""",
    )
    with pytest.MonkeyPatch.context() as patch:
        unchecked(patch, Exclusion)
        world, (m0, m1, _, m3) = chain_of_four(page)
    end(world, "Both sides block:")
    assert epochs([m0, m1, m3]) == [1, 1, 1]
    remark(world, "All links are back.")
    world.faults.heal()
    agree(world, [m0, m1])
    world.run_until(lambda: m3.stopped is not None, 5.0)
    end(world)
    assert isinstance(m3.stopped, ExcludedError)
    page = tale.page(
        "The wrong rule",
        """A majority of those who are not proven dead. Of {m0 m1 m2} m0 and m1 live: m0 is half of these with the
        most senior, and goes on until it is alone. Of the four, three live: m1 and m3 are two of them, and go on as
        well.""",
        aside=True,
    )
    _wrong(page, lambda _: chain_of_four(page), count_the_living, Activation, Choice, Exclusion)


def fork_seven(tale: Tale) -> None:
    tale.head(
        "Seven, and the fork that dropping the dead makes",
        "6, 7 (invariants 2, 4)",
        """G, H, B and C, in this order the most senior, lose touch with F and K; A hears B, C, F and K, but neither G
        nor H. G, H, B and C, four of seven, choose {G H B C A}. B and C are killed before A hears of it. A, F and K
        are three of seven, G and H two of the five that were chosen.""",
    )
    page = tale.page(
        "The rule",
        """Three are not more than half of seven, and two not of five. The dead may be discounted, but then everybody
        else has to answer: G and H wait for A, and A, F and K wait for G and H.""",
    )
    with pytest.MonkeyPatch.context() as patch:
        unchecked(patch, Exclusion)
        world, (g, h, _, _, a, f, k) = seven(page)
    end(world, "Both sides block:")
    assert epochs([g, h, a, f, k]) == [1] * 5
    remark(world, "All links are back.")
    world.faults.heal()
    agree(world, [g, h, a])
    world.run_until(lambda: f.stopped is not None and k.stopped is not None, 5.0)
    end(world)
    assert isinstance(f.stopped, ExcludedError)
    page = tale.page(
        "The wrong rule",
        """A majority of those who are not proven dead. A, F and K are three of the five who live; G and H are two of
        the three who live of {G H B C A}.""",
        aside=True,
    )
    _wrong(page, lambda _: seven(page), count_the_living, Activation, Choice, Exclusion)


def fork_leavers(tale: Tale) -> None:
    tale.head(
        "Who leaves discounts nobody",
        "6, 8 (invariant 2)",
        """P and Q ask to leave; A, B and C hear them, but what they say does not get through to P and Q any more.
        They go on without the two, let J in, and are killed. What may P and Q conclude? Usually: somebody who acked
        my ping less than T ago cannot have voted me out. But whoever asked to be left out is left out at once,
        without that wait, and may even be acked afterwards.""",
    )
    page = tale.page(
        "The rule",
        """P and Q discount nobody, since they leave. They wait for A, B and C in vain, and stop after ready_timeout,
        as they wanted to. J is a member of the newest list, and goes on alone.""",
    )
    world, (p, q, _) = two_leavers(page)
    end(world, "Meanwhile:")
    assert epochs([p, q]) == [1, 1]
    world.run_until(lambda: p.stopped is not None and q.stopped is not None, 30.0)
    end(world)
    assert isinstance(p.stopped, LeftError)
    page = tale.page(
        "The wrong rule",
        "P and Q discount A, B and C, since they were in touch with them, and have {Q} chosen: Q acts beside J.",
        aside=True,
    )
    _wrong(page, lambda _: two_leavers(page), let_leavers_discount, Activation, Choice)


def fork_goodbye(tale: Tale) -> None:
    tale.head(
        "Who may have been heard to leave discounts nobody",
        "6, 8 (invariants 1, 4)",
        """A wish to leave rides on a call, in its trailer. A and B have finished the call, so they know that L leaves,
        and go on without it at once, as they may with whoever leaves. L's own copy of the result is lost: it does not
        know that the call has ended. A and B let J in, and are killed. L is in touch with nobody but the dead, whom
        it has heard less than T ago.""",
    )
    page = tale.page(
        "The rule",
        """L is bound from the moment at which its trailer can be read, not from the end of the call. It discounts
        nobody. As nobody else is left in its view, it stops, as it wanted to. J goes on.""",
    )
    world, (leaver, _) = goodbye_before_the_end(page)
    end(world)
    assert isinstance(leaver.stopped, LeftError)
    page = tale.page(
        "The wrong rule",
        """L is bound once it knows that the call has ended. It discounts A and B, as they were in touch, and has {L}
        chosen for the epoch in which A and B have acted.""",
        aside=True,
    )
    _wrong(page, lambda _: goodbye_before_the_end(page), forget_the_goodbye, Activation, Choice)


def fork_newer_ack(tale: Tale) -> None:
    tale.head(
        "An ack from a newer view is no contact",
        "6, 8 (invariant 1)",
        """A votes P out after T of silence, and acts alone. While it voted for that it did not ack P; now that is
        over, and when the link is back, it acks P again. P does not hear what was chosen, and then A dies.""",
    )
    world, (a, p) = acked_from_a_newer_view(
        tale.page(
            "The rule",
            """The ack says that A knows epoch 2, and P does not. So it may come from a list without P, and does not
            count as contact. P cannot go on.""",
        )
    )
    end(world)
    assert epochs([a, p]) == [2, 1]
    page = tale.page("The wrong rule", "Any ack counts: P discounts A, and acts alone in epoch 2 as A did.", aside=True)
    _wrong(page, lambda _: acked_from_a_newer_view(page), count_any_ack, Activation, Choice)


def fork_stale_votes(tale: Tale) -> None:
    tale.head(
        "A vote from before a newcomer's death",
        "5, 6, 9 (invariant 4)",
        """S and A have let N and M in. S is stopped for a while, and N loses touch with A and M. A asks for {A M}, N
        for {N}. S promises both of them their ballots, first A's, then N's, which is the higher one. A and M vote for
        {A M}: two of four, no quorum. Then they vote for N's list as well, its ballot is higher: N has its quorum,
        and acts alone. N and S die.""",
        """A still counts: it has the votes of A and M for its own ballot. S was in touch with it, and may be
        discounted. And N, which it has not heard for long? N was let in by this very view, and newcomers may be
        discounted without contact.""",
    )
    page = tale.page(
        "The rule",
        """But then only votes count that were asked for after its proof, and these are older. A starts again, with a
        higher ballot, and the promises of A and M tell it of their votes for N's list. It has to propose that, and is
        out itself. M, which is not in it either, blocks.""",
    )
    with pytest.MonkeyPatch.context() as patch:
        world, (a, m) = stale_votes(patch, page)
        end(world)
    assert epochs([a, m]) == [2, 2]
    page = tale.page("The wrong rule", "Old votes count: {A M} is chosen for an epoch in which N has acted alone.", aside=True)
    _wrong(
        page,
        lambda patch: stale_votes(patch, page),
        lambda patch: patch.setattr(EvidenceBook, "late", lambda *_: frozenset()),
    )


def fork_late_news(tale: Tale) -> None:
    tale.head(
        "Who voted itself out follows no other list",
        "6, 8, 12 (invariant 2)",
        """A, B and C leave, and decide so by themselves, half of six with the most senior: {D E F}. They die before D
        hears of it, and what A told E and F is held up on its way. D has lost touch with E and F. It discounts the
        dead, asks E and F for their votes for {D}, gets them, T later, and acts alone. Then A's word arrives.""",
        """Many messages are lost on purpose here: it takes that much bad luck.""",
    )
    page = tale.page(
        "The rule",
        """E and F have voted for {D}, which is without them, and so for all they know somebody acts in it. {D E F} is
        another list of that epoch: they do not follow it, and stop.""",
    )
    with pytest.MonkeyPatch.context() as patch:
        world, (d, e, f) = late_news(patch, page)
        end(world)
    assert epochs([d, e, f]) == [2, 1, 1]
    page = tale.page("The wrong rule", "E and F follow {D E F}, of which they are a majority, and go on without D.", aside=True)
    _wrong(page, lambda patch: late_news(patch, page), lambda patch: patch.setattr(ViewChange, "_voted_out", lambda *_: False))
