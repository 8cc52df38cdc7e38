from __future__ import annotations

import pytest

from consensus.border import Installed, Stopped
from consensus.config import Config, Policy
from consensus.errors import LeftError
from consensus.member import Member
from consensus.messages import Accept, Gossip, Status, Update
from consensus.protocol.state.member_table import MemberTable
from consensus.simulation.invariants import Lifetimes, Violation
from consensus.view import Cause, Proposal, Removal, View

from .stage import Stage


def test_who_was_in_a_view_does_not_join_another() -> None:
    stage = Stage(Lifetimes, 4)
    stage.world.run(3.0)
    a, *_, d = stage.hosts
    second = stage.after(stage.view, d)
    stage.follows(a, second)
    again = Proposal(second.view_id, 3, (), (stage.view.member(d.id),)).apply(second)
    with pytest.raises(Violation, match=r"view 3 .* admits m.*, which has followed view 1"):
        stage.follows(a, again)


@pytest.mark.parametrize("policy", [Policy.MAJORITY, Policy.ANY])
def test_under_any_two_sides_may_let_the_same_applicant_in(policy: Policy) -> None:
    stage = Stage(Lifetimes, 2, Config(policy=policy))
    a, b = stage.hosts
    joiner = stage.world.start("j", introducers=("m0",), wants=False)
    left, right = stage.after(stage.view, b), stage.after(stage.view, a)
    for side, driver in ((left, a), (right, b)):
        stage.follows(driver, side)
    with_it = [Proposal(side.view_id, 3, (), (joiner.machine.member,)).apply(side) for side in (left, right)]
    stage.follows(joiner, with_it[0])
    stage.world.run(3.0)
    if policy is Policy.ANY:
        stage.follows(b, with_it[1])
        out = Proposal(with_it[0].view_id, 4, (Removal(joiner.id, Cause.LEFT),)).apply(with_it[0])
        stage.follows(a, out)
        with_it[1] = Proposal(out.view_id, 5, (), (joiner.machine.member,)).apply(out)
    with pytest.raises(Violation, match=r"admits j~.*, which has followed view 3"):
        stage.follows(b, with_it[1])


def test_nobody_joins_who_was_never_started() -> None:
    stage = Stage(Lifetimes)
    stranger = Member("f" * 16, "10.0.0.1", 9)
    with pytest.raises(Violation, match="which nobody started"):
        stage.follows(stage.hosts[0], View(2, stage.view.view_id, (*stage.view.members, stranger)))


def test_an_old_request_of_the_dead_admits_nobody() -> None:
    stage = Stage(Lifetimes)
    joiner = stage.world.start("j", introducers=("m0",), wants=False)
    stage.world.kill(joiner)
    stage.world.run(1.5)
    value = Proposal(stage.view.view_id, 2, (), (joiner.machine.member,))
    with pytest.raises(Violation, match=r"admits j~.*, dead since"):
        stage.observers.sent(stage.hosts[0], stage.hosts[1], Accept(2, stage.view.view_id, (0, stage.hosts[0].id), value))


def test_a_lifetime_that_is_over_does_nothing() -> None:
    stage = Stage(Lifetimes)
    host = stage.hosts[0]
    stage.observers.effect(host, Stopped(LeftError("left")))
    with pytest.raises(Violation, match="sends Accept after its lifetime was over"):
        stage.observers.sent(host, None, Accept(2, stage.view.view_id, (0, host.id), Proposal(stage.view.view_id, 2)))
    with pytest.raises(Violation, match="installs view 1"):
        stage.observers.effect(host, Installed(stage.view, {}))


def test_only_a_member_raises_its_incarnation() -> None:
    stage = Stage(Lifetimes)
    a, b, c = stage.hosts
    with pytest.raises(Violation, match=r"says alive of incarnation 3 of m.*, which is in its 0"):
        stage.observers.sent(a, b, Gossip((Update(c.id, Status.ALIVE, 3, a.id),)))


def test_a_rumour_about_an_old_incarnation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: incarnations are not compared."""
    monkeypatch.setattr(MemberTable, "apply", lambda table, update: update.status is Status.SUSPECT)
    honest = Stage(Lifetimes).world.hosts
    assert honest
    stage = Stage(Lifetimes)
    a, b, c = stage.hosts
    peer = a.machine._core.table.get(c.id)
    assert peer is not None
    peer.incarnation = c.machine._core.table.incarnation = 2
    old = Gossip((Update(c.id, Status.SUSPECT, 1, b.id),))
    monkeypatch.setattr("consensus.protocol.detection.detection.Detection._suspect", gullible)
    with pytest.raises(Violation, match="for a rumour about its old incarnation 1"):
        stage.world.inside(a, lambda: show(stage, old))


def show(stage: Stage, message: Gossip) -> None:
    a, b, _ = stage.hosts
    stage.observers.delivered(a, b, message)
    a.machine.receive(b.id, b.machine.member.address, message, a.now)


def gullible(self: object, member_id: str, *_: object, **__: object) -> None:
    self._core.table.get(member_id).status = Status.SUSPECT  # type: ignore[attr-defined]
