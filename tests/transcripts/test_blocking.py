"""Without a quorum: who blocks says so, goes on by itself when it can, and gives up when it was told to."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import pytest

from consensus.config import Config
from consensus.errors import ExcludedError, QuorumLostError
from consensus.messages import Accepted, Ack, EvidenceKind, Message, Ping
from consensus.protocol.agreement.blockage import BLOCKED_EVERY
from consensus.protocol.state.inputs import Accusation
from consensus.simulation import Host, World

from .script import agree, epochs, start_job


def blocked(host: Host) -> list[tuple[float, str]]:
    return [(time, text) for time, kind, text in host.notes if kind == "blocked"]


def test_a_line_every_few_seconds_with_the_remedy() -> None:
    world, members = start_job(5)
    small, large = members[3:], members[:3]
    world.isolate(small, large)
    world.run(30.0)
    for host in small:
        times = [time for time, _ in blocked(host)]
        assert len(times) >= 4, "coordinator or voter, whoever is frozen says so"
        assert all(second - first == pytest.approx(BLOCKED_EVERY, abs=0.6) for first, second in pairwise(times))
    proposer = blocked(small[0])[-1][1]
    voter = blocked(small[1])[-1][1]
    for host in large:
        assert host.id[:6] in proposer and host.id[:6] in voter
    assert "bring their hosts back" in proposer and "bring their hosts back" in voter
    assert "s so far" in proposer


def test_everybody_that_is_blocked_gives_up_on_time() -> None:
    world, members = start_job(5, config=Config(quorum_timeout=20.0))
    small = members[3:]
    world.isolate(small, members[:3])
    world.run(19.0)
    assert all(host.stopped is None for host in small)
    took = world.run_until(lambda: all(host.stopped is not None for host in small), 10.0)
    assert took < 1.0 + 2 * world.config.exclude_after + 1.0
    assert all(isinstance(host.stopped, QuorumLostError) for host in small)


def test_it_goes_on_by_itself_when_members_come_back_in_time() -> None:
    world, members = start_job(6, config=Config(quorum_timeout=30.0))
    for one, other in [(0, 2), (0, 4), (2, 4)]:
        world.isolate(members[one : one + 2], members[other : other + 2])
    world.run(25.0)
    assert epochs(members) == [1] * 6
    world.faults.heal()
    assert agree(world, members) < 3.0
    world.run(30.0)
    assert all(host.stopped is None for host in members), "the time without a quorum does not add up"


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("size", "mesh", "bound"), [(5, 32, 0.7), (8, 32, 0.7), (8, 4, 4.0)])
def test_the_minority_learns_within_a_bound_that_it_is_out(size: int, mesh: int, bound: float, seed: int) -> None:
    """Within one round of pings; above ``mesh_limit``, once it is the turn of a member of the majority."""
    world, members = start_job(size, seed=seed, config=Config(mesh_limit=mesh))
    split = (size - 1) // 2 - seed % 2
    small, large = members[size - split :], members[: size - split]
    world.isolate(small, large)
    agree(world, large, 20.0)
    world.run(seed * 1.3)
    world.faults.heal()
    took = world.run_until(lambda: all(host.stopped is not None for host in small), 20.0)
    assert all(isinstance(host.stopped, ExcludedError) for host in small)
    assert took < bound


def prove(world: World, witnesses: list[Host], dead: list[Host]) -> None:
    """Somebody who saw it (a supervisor) tells."""
    for victim in dead:
        for host in witnesses:
            said = Accusation(victim.id, EvidenceKind.PROOF, "reaped")
            world.inside(host, partial(host.machine.handle, said, world.now))


def test_a_blocked_half_goes_on_once_the_other_half_is_proven_dead() -> None:
    world, members = start_job(4)
    senior, junior = members[:2], members[2:]
    world.isolate(senior, junior)
    world.run(1.0)
    for host in senior:
        world.kill(host)
    prove(world, junior, senior)
    assert agree(world, junior) < 1.0


def test_proofs_that_come_too_late_do_not_help() -> None:
    """The other half was out of sight long enough to have voted this one out: nobody can know."""
    world, members = start_job(4)
    senior, junior = members[:2], members[2:]
    world.isolate(senior, junior)
    world.run(4.0)
    assert epochs(senior) == [2, 2], "as it did"
    for host in senior:
        world.kill(host)
    prove(world, junior, senior)
    world.run(10.0)
    assert epochs(junior) == [1, 1]
    assert "(dead)" in blocked(junior[0])[-1][1]
    assert "started anew" in blocked(junior[0])[-1][1], "nobody can kill or bring back the dead"


def test_a_blocked_half_goes_on_when_the_rest_of_the_other_half_comes_back() -> None:
    world, members = start_job(4)
    senior, junior = members[:2], members[2:]
    world.isolate(senior, junior)
    world.isolate(senior[:1], senior[1:])
    world.run(4.0)
    assert epochs(members) == [1] * 4
    world.kill(senior[0])
    world.run(1.0)
    world.faults.heal()
    agree(world, members[1:])


def test_who_has_voted_for_a_view_that_never_comes_says_for_whom_it_waits() -> None:
    """It holds nothing against anybody: the one who left asked the coordinator alone, whose words are lost from then on."""
    world, (first, second, third) = start_job(3)
    voted = False

    def watch(host: Host, message: Message) -> bool:
        nonlocal voted
        voted = voted or (host is second and isinstance(message, Accepted))
        return not voted or host is not first or isinstance(message, (Ping, Ack))

    world.watch = watch
    world.inside(third, third.leave)
    world.run(BLOCKED_EVERY + 2.0)
    assert not second.machine._core.evidence.removals(second.activated[-1])
    assert [text for _, text in blocked(second)] == [
        f"frozen, waiting for {first.machine.member} to complete the next view (5 s so far)"
    ]
