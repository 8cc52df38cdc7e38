"""Two values chosen for one epoch: old votes, late news, and why at most one of them ever comes to anything."""

from __future__ import annotations

from typing import Any

import pytest

from consensus.errors import ExcludedError
from consensus.member import Address
from consensus.messages import (
    Accept,
    Ack,
    Chosen,
    Evidence,
    EvidenceKind,
    FlushRequest,
    Gossip,
    Install,
    Introduction,
    Message,
    Nack,
    Ping,
    PingRequest,
    Prepare,
)
from consensus.protocol.agreement import proposer
from consensus.protocol.agreement.attempt import AttemptPhase
from consensus.protocol.agreement.view_change import ViewChange
from consensus.protocol.state.evidence import EvidenceBook
from consensus.protocol.state.inputs import Accusation
from consensus.simulation import Host, World
from consensus.simulation.invariants import Trust
from consensus.simulation.transcript import Transcript
from tests.harness.basics import around

from .script import remark, start_job, unchecked, write_down


class Losses:
    """Messages of some types are lost on some ways."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lost: set[tuple[type[Message], str, str]] = set()

        @around(monkeypatch, world.network, "carry")
        def carried(carry: Any, sender: Host, target: Host | None, address: Address, message: Message) -> None:
            if target is None or (type(message), sender.name, target.name) not in self.lost:
                carry(sender, target, address, message)
            else:
                world.show("lost", sender, target, message)

    def lose(self, sender: Host, *targets: Host, types: tuple[type[Message], ...]) -> None:
        self.lost |= {(kind, sender.name, target.name) for kind in types for target in targets}

    def pass_on(self, sender: Host, target: Host, kind: type[Message]) -> None:
        self.lost.discard((kind, sender.name, target.name))


def in_phase(host: Host, phase: AttemptPhase) -> bool:
    attempt = host.machine._change.proposer.attempt
    return attempt is not None and attempt.phase is phase


def stale_votes(monkeypatch: pytest.MonkeyPatch, page: Transcript | None = None) -> tuple[World, list[Host]]:
    """S and A let N and M in. While S is paused, A proposes {A, M} and N, cut off from these two, {N}; S promises both.

    A and M vote for {A, M}, which is no quorum; then for N's later ballot, which is one, and N acts alone. N and S die. A has
    acks of S, and N was new: may it count M's old vote?
    """
    monkeypatch.setattr(proposer, "promising", lambda *_: True)  # else nobody proposes with so few in sight
    world, (s, a) = start_job(2)
    n, m = (world.start(name, introducers=(s.name,)) for name in ("N", "M"))
    world.run_until(lambda: all(host.activated and len(host.activated[-1]) == 4 for host in (s, a, n, m)), 10.0)
    assert n.id > a.id, "N's ballot is the higher one"
    world.run(1.0)
    write_down(world, [s, a, n, m], page, "S A N M")
    remark(world, "N and A M lose touch with each other, and S is stopped.")
    losses = Losses(world, monkeypatch)
    losses.lose(a, s, n, types=(Accept,))
    losses.lose(n, s, types=(Accept, Prepare))
    losses.lose(n, s, a, m, types=(Chosen, Install, FlushRequest, Introduction))
    losses.lose(s, a, n, types=(Ack,))
    losses.lose(a, n, types=(Ack,))
    losses.lose(m, n, types=(Ack,))
    losses.lose(s, a, n, m, types=(Prepare, Accept))
    world.faults.cut_groups([[n.id], [a.id, m.id]])
    world.pause(s)
    world.run(2.5)
    for other in (s, a, m):
        world.inside(n, lambda o=other: n.machine.handle(Accusation(o.id, EvidenceKind.SILENCE, ""), n.now))  # type: ignore[misc]
    world.run(0.4)
    assert in_phase(a, AttemptPhase.PREPARE)
    assert in_phase(n, AttemptPhase.PREPARE)
    remark(world, "S is back. It has heard the PREPARE of A, not yet that of N.")
    world.resume(s)
    world.run_until(lambda: in_phase(a, AttemptPhase.ACCEPT), 1.0)
    world.run(0.01)
    remark(world, "Now that of N gets through: its ballot is the higher one.")
    losses.pass_on(n, s, Prepare)
    world.run_until(lambda: in_phase(n, AttemptPhase.ACCEPT), 1.0)
    losses.pass_on(s, a, Ack)
    world.run(0.05)
    remark(world, "N and A M are in touch again.")
    world.faults.heal()
    world.run_until(lambda: n.activated[-1].epoch == 3, 5.0)
    assert n.activated[-1].ids == (n.id,)
    assert in_phase(a, AttemptPhase.ACCEPT), "A still has its vote and M's"
    world.kill(n)
    world.kill(s)
    world.run(5.0)
    return world, [a, m]


def test_a_vote_older_than_a_newcomers_death_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by writing down why dead newcomers need no contact: a quorum may hold older members that answered before."""
    _, (a, m) = stale_votes(monkeypatch)
    assert [host.activated[-1].epoch for host in (a, m)] == [2, 2], "N may have acted, so nobody else does"


def test_counting_it_forks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EvidenceBook, "late", lambda *_: frozenset())
    with pytest.raises(AssertionError, match=r"activate|two active views"):
        stale_votes(monkeypatch)


def late_news(monkeypatch: pytest.MonkeyPatch, page: Transcript | None = None) -> tuple[World, list[Host]]:
    """A, B, C leave, and decide it by themselves: {D, E, F}. They die before D hears of it; what A told E and F is held up.

    D has lost touch with E and F. It discounts the dead, and by the votes of E and F, once they can be asked, acts alone. Then
    A's word arrives: E and F are a majority of {D, E, F}. May they go on from there?
    """
    unchecked(monkeypatch, Trust)  # it does not know of losses by type
    world, (a, b, c, d, e, f) = start_job(6, page=page)
    remark(world, "D and E F lose touch with each other.")
    losses = Losses(world, monkeypatch)
    world.faults.cut_groups([[d.id], [e.id, f.id]])
    world.run(4.5)
    losses.lose(a, d, e, f, types=(Accept,))
    losses.lose(a, d, types=(FlushRequest, Chosen, Install))
    losses.lose(b, d, e, f, types=(Chosen,))
    losses.lose(c, d, e, f, types=(Chosen,))
    world.faults.cut_both(a.id, d.id)
    remark(world, "B, C and A ask to leave; of what they say to D, E and F, little gets through.")
    world.inside(a, lambda: a.fail((d.id,)))  # A looks after D for a moment, and so gets all three requests together
    for leaver in (b, c):
        world.inside(leaver, leaver.leave)
    world.run(0.01)
    world.inside(a, a.leave)
    world.run(0.3)
    world.faults.cut -= {(a.id, d.id), (d.id, a.id)}
    remark(world, "What A says to E and F is held up from now on.")
    world.faults.clogged |= {(a.id, e.id), (a.id, f.id)}
    world.run_until(lambda: a.machine.view is not None and a.machine.view.ids == (d.id, e.id, f.id), 2.0)
    world.run(world.config.settle_proof + 0.001)  # until A asks for the missing reports
    for leaver in (a, b, c):
        world.kill(leaver)
    world.run(4.0)
    remark(world, "D gets through to E and F again, and what they answer to it; nothing else does.")
    # The links between D and the others are back, but only what D asks and what they answer gets through.
    losses.lose(d, e, f, types=(Ack, Ping, Chosen, Install))
    for one, other in ((e, f), (f, e)):
        losses.lose(one, d, types=(Ack, Ping, Gossip, PingRequest, Nack, Evidence))
        losses.lose(one, d, other, types=(Accept, Prepare))
    monkeypatch.setattr(world.network, "connects", lambda asker, target, _: d.id not in (asker, target))
    world.faults.cut.clear()
    world.run_until(lambda: d.activated[-1].ids == (d.id,), 12.0)
    for one, other in ((e, f), (f, e)):
        losses.pass_on(one, other, Accept)
        losses.pass_on(one, other, Prepare)
    remark(world, "What A said to E and F arrives. D and E F lose touch again.")
    world.faults.clogged.clear()
    world.network.release()
    world.faults.cut_groups([[d.id], [e.id, f.id]])
    world.run(8.0)
    return world, [d, e, f]


def test_who_voted_itself_out_follows_no_other_view_of_that_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by writing down why parents form a chain."""
    _, (d, e, f) = late_news(monkeypatch)
    assert [host.activated[-1].epoch for host in (d, e, f)] == [2, 1, 1]
    assert isinstance(e.stopped, ExcludedError) and isinstance(f.stopped, ExcludedError), "nobody waits for them in vain"


def test_following_it_forks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ViewChange, "_voted_out", lambda *_: False)
    with pytest.raises(AssertionError, match=r"chain|activate|two active views"):
        late_news(monkeypatch)
