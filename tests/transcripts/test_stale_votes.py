"""A vote that is older than a newcomer's death, and what may have happened in between."""

from __future__ import annotations

import pytest

from consensus.member import Address
from consensus.messages import Accept, Ack, Chosen, EvidenceKind, FlushRequest, Install, Message, Prepare
from consensus.protocol.attempt import Phase
from consensus.protocol.evidence import EvidenceBook
from consensus.simulation import Host, World

from .script import start_job


class Losses:
    """Messages of some types are lost on some ways."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lost: set[tuple[type[Message], str, str]] = set()
        carry = world.network.carry

        def carried(sender: Host, target: Host | None, address: Address, message: Message) -> None:
            if target is None or (type(message), sender.name, target.name) not in self.lost:
                carry(sender, target, address, message)

        monkeypatch.setattr(world.network, "carry", carried)

    def lose(self, sender: Host, *targets: Host, types: tuple[type[Message], ...]) -> None:
        self.lost |= {(kind, sender.name, target.name) for kind in types for target in targets}

    def pass_on(self, sender: Host, target: Host, kind: type[Message]) -> None:
        self.lost.discard((kind, sender.name, target.name))


def in_phase(host: Host, phase: Phase) -> bool:
    attempt = host.machine._change.proposer.attempt
    return attempt is not None and attempt.phase is phase


def stale_votes(monkeypatch: pytest.MonkeyPatch) -> tuple[World, list[Host]]:
    """S and A let N and M in. While S is paused, A proposes {A, M} and N, cut off from these two, {N}; S promises both.

    A and M vote for {A, M}, which is no quorum; then for N's later ballot, which is one, and N acts alone. N and S die. A has
    acks of S, and N was new: may it count M's old vote?
    """
    world, (s, a) = start_job(2)
    n, m = (world.start(name, introducers=(s.name,)) for name in ("n", "m"))
    world.run_until(lambda: all(host.activated and len(host.activated[-1]) == 4 for host in (s, a, n, m)), 10.0)
    assert n.id > a.id, "N's ballot is the higher one"
    world.run(1.0)
    losses = Losses(world, monkeypatch)
    losses.lose(a, s, n, types=(Accept,))
    losses.lose(n, s, types=(Accept, Prepare))
    losses.lose(n, s, a, m, types=(Chosen, Install, FlushRequest))
    losses.lose(s, a, n, types=(Ack,))
    losses.lose(a, n, types=(Ack,))
    losses.lose(m, n, types=(Ack,))
    losses.lose(s, a, n, m, types=(Prepare, Accept))
    world.faults.cut_groups([[n.id], [a.id, m.id]])
    world.pause(s)
    world.run(2.5)
    for other in (s, a, m):
        world.inside(n, lambda o=other: n.machine.evidence(o.id, EvidenceKind.SILENCE, "", n.now))  # type: ignore[misc]
    world.run(0.4)
    assert in_phase(a, Phase.PREPARE)
    assert in_phase(n, Phase.PREPARE)
    world.resume(s)
    world.run_until(lambda: in_phase(a, Phase.ACCEPT), 1.0)
    world.run(0.01)
    losses.pass_on(n, s, Prepare)
    world.run_until(lambda: in_phase(n, Phase.ACCEPT), 1.0)
    losses.pass_on(s, a, Ack)
    world.run(0.05)
    world.faults.heal()
    world.run_until(lambda: n.activated[-1].epoch == 3, 5.0)
    assert n.activated[-1].ids == (n.id,)
    assert in_phase(a, Phase.ACCEPT), "A still has its vote and M's"
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
