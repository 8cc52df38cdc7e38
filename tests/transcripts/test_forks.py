"""The histories that fork when dead members are merely dropped from the denominator, and do not under rules (a) and (b).

Each is told twice: with the rules as they are, and with the quorum "a majority of those not proven dead" in their place,
so that the test is known to be able to fail.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any

import pytest

from consensus.border import Boundary, Leave
from consensus.config import Config
from consensus.errors import ExcludedError, LeftError
from consensus.messages import Ack, Chosen, EvidenceKind, Introduction, Message
from consensus.progress import Progress
from consensus.protocol.agreement import attempt
from consensus.protocol.agreement.proposer import Proposer
from consensus.protocol.detection.detection import Detection
from consensus.protocol.state import evidence
from consensus.protocol.state.inputs import Accusation
from consensus.simulation import Host, World
from consensus.simulation.invariants import Activation, Exclusion
from consensus.simulation.transcript import Transcript
from consensus.simulation.world.observer import Observer
from consensus.view import View
from tests.harness.basics import around

from .script import agree, cut, epochs, remark, start_job, unchecked

CUT_ONLY = Config(link_timeout=0.0)
"""With a word on broken links these histories take another turn: see ``test_partitions``."""


def majority_of_the_living(view: View, responders: AbstractSet[str], discounted: AbstractSet[str]) -> bool:
    living = [key for key in view.ids if key not in discounted]
    present = [key for key in living if key in responders]
    return 2 * len(present) > len(living) or (2 * len(present) == len(living) and present[0] == living[0])


@pytest.fixture(autouse=True)
def silence_by_force(monkeypatch: pytest.MonkeyPatch) -> None:
    """``give_up`` tells members whom to take for silent."""
    unchecked(monkeypatch, Exclusion)


@pytest.fixture
def wrong_quorum(monkeypatch: pytest.MonkeyPatch) -> None:
    count_the_living(monkeypatch)


def count_the_living(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt, "is_quorum", majority_of_the_living)
    monkeypatch.setattr(evidence.EvidenceBook, "discounted", property(lambda book: frozenset(book.proofs)))
    # The fork itself shall show, not the checker of quorums that sees it coming.
    unchecked(monkeypatch, Activation)


def give_up(world: World, host: Host, others: list[Host], seconds: float = 1.9) -> None:
    """At T_excl ``host`` holds silence against ``others``, and keeps to it (their word still reaches it through the rest)."""
    world.run(seconds)
    remark(world, "The script decides what a detector would a moment later.")

    def insist() -> None:
        for other in others:
            world.inside(host, lambda o=other: host.machine.handle(Accusation(o.id, EvidenceKind.SILENCE, ""), world.now))  # type: ignore[misc]
        if host.machine.status()["epoch"] == 1:
            world.after(0.01, insist)

    insist()


def chain_of_four(page: Transcript | None = None) -> tuple[World, list[Host]]:
    """Links 0-1, 0-3, 2-3 are cut; 0 and 2 choose {0, 1, 2}; 2 dies before 1 hears of it."""
    world, members = start_job(4, config=CUT_ONLY, page=page, names="m0 m1 m2 m3")
    m0, m1, m2, m3 = members
    remark(world, "The links m0-m1, m0-m3 and m2-m3 are cut.")
    cut(world, (m0, m1), (m0, m3), (m2, m3))
    give_up(world, m0, [m3])
    world.run_until(lambda: m0.machine.status()["epoch"] == 2, 10.0)
    assert m0.machine.view is not None
    assert m0.machine.view.ids == (m0.id, m1.id, m2.id)
    world.kill(m2)
    world.run(10.0)
    return world, members


def seven(page: Transcript | None = None) -> tuple[World, list[Host]]:
    """G, H, B, C choose {G, H, B, C, A}; B and C die before A hears of it; A is in touch with F and K alone."""
    world, members = start_job(7, config=CUT_ONLY, page=page, names="G H B C A F K")
    g, h, b, c, a, f, k = members
    remark(world, "All links between G H B C and F K are cut, and those of A to G and H.")
    world.isolate([g, h, b, c], [f, k])
    world.isolate([g, h], [a])
    give_up(world, g, [f, k], 1.7)  # before its own detector judges one of them alone
    world.run_until(lambda: g.machine.status()["epoch"] == 2, 10.0)
    assert g.machine.view is not None
    assert g.machine.view.ids == (g.id, h.id, b.id, c.id, a.id)
    world.kill(b)
    world.kill(c)
    world.run(10.0)
    return world, members


def test_four_with_three_links_cut_do_not_fork() -> None:
    world, (m0, m1, _, m3) = chain_of_four()
    assert epochs([m0, m1, m3]) == [1, 1, 1], "both sides block"
    world.faults.heal()
    agree(world, [m0, m1])
    world.run_until(lambda: m3.stopped is not None, 5.0)
    assert isinstance(m3.stopped, ExcludedError)


def test_seven_do_not_fork() -> None:
    world, (g, h, _, _, a, f, k) = seven()
    assert epochs([g, h, a, f, k]) == [1] * 5, "both sides block"
    world.faults.heal()
    agree(world, [g, h, a])
    world.run_until(lambda: f.stopped is not None and k.stopped is not None, 5.0)
    assert isinstance(f.stopped, ExcludedError)


@pytest.mark.usefixtures("wrong_quorum")
@pytest.mark.parametrize("story", [chain_of_four, seven])
def test_dropping_the_dead_from_the_denominator_forks(story: Callable[[], object]) -> None:
    with pytest.raises(AssertionError, match="active"):
        story()


def two_leavers(page: Transcript | None = None) -> tuple[World, list[Host]]:
    """P and Q leave; A, B, C agree but cannot tell them, let J in, and die: P and Q were voted out without any lease."""
    world, members = start_job(5, config=CUT_ONLY, page=page, names="A B C P Q")
    a, b, c, p, q = members
    remark(world, "From now on nothing gets through from A, B, C to P and Q, nor between these. P and Q ask to leave.")
    world.faults.cut |= {(one.id, other.id) for one in (a, b, c) for other in (p, q)}
    cut(world, (p, q))
    for leaver in (p, q):
        world.inside(leaver, lambda host=leaver: host.machine.handle(Leave(None), world.now))  # type: ignore[misc]
    agree(world, [a, b, c])
    j = world.start("J", introducers=(a.name, b.name, c.name))
    world.run_until(lambda: bool(j.activated), 5.0)
    for host in (a, b, c):
        world.kill(host)
    remark(world, "The links are back.")
    world.faults.heal()
    world.run(5.0)
    return world, [p, q, j]


def test_who_leaves_discounts_nobody() -> None:
    """Found by this suite."""
    world, (p, q, j) = two_leavers()
    assert epochs([p, q]) == [1, 1], "they cannot know whether they are still in"
    assert j.activated[-1].ids == (j.id,)
    world.run_until(lambda: p.stopped is not None and q.stopped is not None, 30.0)
    assert isinstance(p.stopped, LeftError)


def let_leavers_discount(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Proposer, "discounted", property(lambda proposer: proposer._core.evidence.discounted))


def test_leavers_that_discount_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    let_leavers_discount(monkeypatch)
    unchecked(monkeypatch, Activation)
    with pytest.raises(AssertionError, match="active"):
        two_leavers()


def goodbye_before_the_end(page: Transcript | None = None) -> tuple[World, list[Host]]:
    """A and B have finished the call whose trailer says that L leaves; L's own copy is lost. They let J in, and die."""
    world, members = start_job(3, config=CUT_ONLY, page=page, names="A B L")
    a, b, leaver = members
    call = 17
    for host in members:
        host.machine.set_progress(Progress(call - 1, call, host.now, busy=True))
    remark(world, "All are in a call, whose trailer says that L leaves after it. A and B finish it; L is cut off before.")
    leaver.machine.set_progress(Progress(call - 1, call, leaver.now, busy=True, leaving=True))
    cut(world, (a, leaver), (b, leaver))
    for host in (a, b):
        host.machine.set_progress(Progress(call, 0, host.now))
        world.inside(host, lambda host=host: host.machine.handle(Boundary(call, (leaver.id,)), host.now))  # type: ignore[misc]
    agree(world, [a, b])
    j = world.start("J", introducers=(a.name, b.name))
    cut(world, (j, leaver))
    world.run_until(lambda: bool(j.activated), 5.0)
    for host in (a, b):
        world.kill(host)
    remark(world, "The links are back.")
    world.faults.heal()
    world.run(5.0)
    return world, [leaver, j]


def test_who_may_have_been_heard_to_leave_discounts_nobody() -> None:
    """It does not know that the call has ended, and that the others let it go."""
    _, (leaver, j) = goodbye_before_the_end()
    assert epochs([leaver]) == [1]
    assert isinstance(leaver.stopped, LeftError), "nobody is left to wait for"
    assert j.activated[-1].ids == (j.id,)


def forget_the_goodbye(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bound is who knows that the call has ended."""

    def discounted(self: Proposer) -> frozenset[str]:
        evidence = self._core.evidence
        return frozenset() if self._core.member.id in evidence.leaving else evidence.discounted

    monkeypatch.setattr(Proposer, "discounted", property(discounted))


def test_to_be_bound_at_the_end_of_the_call_forks(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_the_goodbye(monkeypatch)
    unchecked(monkeypatch, Activation)
    with pytest.raises(AssertionError, match="both can activate"):
        goodbye_before_the_end()


class Acks(Observer):
    """The epochs of the acks that arrive at one member."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.epochs: list[int] = []

    def delivered(self, host: Host, sender: Host, message: Message) -> None:
        if host is self.host and isinstance(message, Ack):
            self.epochs.append(message.epoch)


def acked_from_a_newer_view(page: Transcript | None = None) -> tuple[World, list[Host]]:
    """A votes P out of {A, P} and acts alone. Healed, its acks reach P, the views that it tells do not; then A dies."""
    world, (a, p) = start_job(2, page=page, names="A P")
    remark(world, "The link is cut.")
    cut(world, (a, p))
    agree(world, [a])
    if page is not None:
        page.talk = frozenset({"Ack"})
    remark(world, "The link is back, but whenever A tells P what was chosen, that gets lost.")
    world.faults.heal()
    world.watch = lambda _, message: not isinstance(message, (Chosen, Introduction))
    acks = Acks(p)
    world.observe(acks)
    world.run_until(lambda: acks.epochs != [], 5.0)
    assert acks.epochs[0] == 2, "A knows a newer view, and acks all the same"
    world.kill(a)
    world.run(5.0)
    return world, [a, p]


def test_an_ack_from_a_newer_view_is_no_contact() -> None:
    """Found by writing down why discounting is safe: a voter does not ack whom it excludes, but only until the epoch ends."""
    _, (a, p) = acked_from_a_newer_view()
    assert epochs([a, p]) == [2, 1], "P cannot know whether A went on without it"


def count_any_ack(monkeypatch: pytest.MonkeyPatch) -> None:
    @around(monkeypatch, Detection, "on_ack")
    def on_ack(honest: Any, self: Detection, sender: str, ack: Ack, now: float) -> None:
        core = self._core
        honest(self, sender, replace(ack, epoch=core.epoch, view_id=core.view_id), now)


def test_counting_it_as_contact_forks(monkeypatch: pytest.MonkeyPatch) -> None:
    count_any_ack(monkeypatch)
    unchecked(monkeypatch, Activation)
    with pytest.raises(AssertionError, match="activate"):
        acked_from_a_newer_view()
