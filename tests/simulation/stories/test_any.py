"""Policy ``any``: sides go on apart, each as a chain, and when they meet all but one stop."""

from __future__ import annotations

from random import Random

import pytest

from consensus.config import Config, Policy
from consensus.errors import ExcludedError, LeftError, OvertakenError
from consensus.messages import Introduction, JoinReply, Ping
from consensus.progress import Progress
from consensus.protocol.admission.admission import BEACON_EVERY
from consensus.protocol.agreement.contact import LOOK_AT_MOST
from consensus.protocol.state.inputs import Introduced
from consensus.simulation import Host, World, judged, living
from tests.transcripts.script import agree, start_job

ANY = Config(policy=Policy.ANY)
SEEDS = [*range(25), 124, 315, 10007, 10010]
"""124, 315: a member is cut off while a value is voted on that keeps it.
10007: of three sides the middle one stops, which alone knew both others. 10010: members must propose their own exclusion."""


def job(size: int, seed: int = 1) -> tuple[World, list[Host]]:
    return start_job(size, seed=seed, config=ANY)


def cut_off(world: World, host: Host) -> bool:
    """Nobody that this process knows of is there any more to tell it anything."""
    view = host.machine.known_view
    known = set(host.introducers) | {member.address for member in view.members} if view else set(host.introducers)
    others = [world.at_address.get(address) for address in sorted(known - {host.machine.member.address})]
    alone = view is not None and view.ids == (host.id,)
    return not alone and not any(other is not None and other.running for other in others)


def stopped(world: World, hosts: list[Host], kind: type = OvertakenError, seconds: float = 8.0) -> float:
    took = world.run_until(lambda: all(host.stopped is not None for host in hosts), seconds)
    assert {type(host.stopped) for host in hosts} == {kind}
    return took


def step(hosts: list[Host], steps: int) -> None:
    for host in hosts:
        host.machine.set_progress(Progress(steps, 0))


def test_both_halves_go_on_and_the_larger_wins() -> None:
    world, members = job(5)
    small, large = members[:2], members[2:]
    world.isolate(small, large)
    agree(world, small, 5.0)
    agree(world, large, 5.0)
    world.faults.heal()
    stopped(world, small)
    world.run(5.0)
    assert all(host.stopped is None and len(host.activated[-1]) == 3 for host in large), "the winner is not disturbed"
    for host in small:
        assert isinstance(host.stopped, OvertakenError) and host.stopped.view == large[0].activated[-1]
        assert "what view 2" in str(host.stopped) and "is lost" in str(host.stopped)


def test_broken_links_of_the_most_senior_member_block_nobody() -> None:
    """The next one leads, must ask for promises, and does not reach the one that is to go: it was waited for, for ever."""
    world, members = job(5)
    world.isolate(members[:1], members[1:4])
    rest = members[1:]
    world.run_until(lambda: all(members[0].id not in host.activated[-1] for host in rest), 15.0)
    assert all(len(host.activated[-1]) == 4 for host in rest)


def test_committed_steps_count_more_than_members() -> None:
    world, members = job(5)
    small, large = members[:2], members[2:]
    world.isolate(small, large)
    agree(world, small)
    agree(world, large)
    step(small, 9)
    step(large, 8)
    world.faults.heal()
    stopped(world, large)
    assert all(host.stopped is None for host in small)


def test_of_equal_sides_that_with_the_lowest_id_goes_on() -> None:
    world, members = job(4)
    world.isolate(members[:2], members[2:])
    agree(world, members[:2])
    agree(world, members[2:])
    lowest = min(members, key=lambda host: host.id)
    losers = members[2:] if lowest in members[:2] else members[:2]
    world.faults.heal()
    stopped(world, losers)
    assert lowest.stopped is None


@pytest.mark.parametrize("seed", range(4))
def test_three_sides_become_one(seed: int) -> None:
    world, members = job(6, seed)
    sides = [members[:1], members[1:3], members[3:]]
    for one, other in [(0, 1), (0, 2), (1, 2)]:
        world.isolate(sides[one], sides[other])
    for side in sides:
        agree(world, side)
    world.faults.heal()
    world.run_until(lambda: len(living(world)) == 3, 10.0)
    world.run(5.0)
    assert {host.id for host in living(world)} == {host.id for host in sides[2]} == set(sides[2][0].activated[-1].ids)


def test_the_losers_come_back_through_the_winners() -> None:
    world, members = job(4)
    world.isolate(members[:1], members[1:])
    agree(world, members[:1])
    agree(world, members[1:])
    world.faults.heal()
    stopped(world, members[:1])
    error = members[0].stopped
    assert isinstance(error, ExcludedError) and error.view is not None
    world.kill(members[0])
    met = tuple(member.address for member in error.view.members)
    again = world.start("again", port=members[0].machine.member.port, introducers=(members[1].name,))
    again.machine.handle(Introduced(met), world.now)
    agree(world, [*members[1:], again])


def test_one_that_slept_is_out_without_a_contest() -> None:
    world, members = job(4)
    step(members, 3)
    world.pause(members[0])
    agree(world, members[1:])
    step(members[1:], 5)
    world.resume(members[0])
    stopped(world, members[:1], ExcludedError, 1.0)


def test_nobody_blocks_where_most_are_dead_and_unproven() -> None:
    world, members = job(5)
    world.isolate(members[:1], members[1:])
    agree(world, members[:1])
    assert not any(kind == "blocked" for _, kind, _ in members[0].notes)


def test_nobody_is_excluded_without_evidence() -> None:
    world, members = job(4)
    world.faults.loss = 0.05
    world.run(60.0)
    assert all(host.activated[-1].epoch == 1 for host in members)


def history(seed: int) -> World:
    """Cuts, crashes, stops and joiners; steps are committed at different speeds."""
    rng = Random(seed)
    world = judged(World(seed, ANY))
    size = rng.choice([2, 3, 4, 5, 8])
    world.cluster(size)
    for _ in range(rng.randrange(3, 10)):
        hosts = living(world)
        choice = rng.randrange(8)
        if choice == 0 and len(hosts) > 2:
            world.kill(rng.choice(hosts))
        elif choice == 1:
            world.pause(rng.choice(hosts))
        elif choice == 2:
            for host in hosts:
                if host.paused:
                    world.resume(host)
        elif choice == 3 and len(world.hosts) < size + 4:
            world.start(f"j{len(world.hosts)}", introducers=tuple(h.name for h in rng.sample(hosts, min(3, len(hosts)))))
        elif choice in (4, 5) and len(hosts) > 1:
            side = rng.sample(hosts, rng.randrange(1, len(hosts)))
            world.isolate(side, [host for host in hosts if host not in side])
        elif choice == 6 and len(hosts) > 1:
            one, other = rng.sample(hosts, 2)
            world.faults.cut.add((one.id, other.id))
        else:
            world.faults.heal()
            world.faults.loss = rng.choice([0.0, 0.1, 0.3])
        if rng.random() < 0.5:
            advance(rng, world)
        world.run(rng.choice([0.01, 0.3, 1.0, 2.5, 4.0]))
        if not living(world):
            break
    return world


def advance(rng: Random, world: World) -> None:
    """Some views commit steps: all members of each alike, as the data plane has it."""
    for view_id in sorted({host.activated[-1].view_id for host in living(world) if host.activated}):
        more = rng.choice([0, 1, 5])
        inside = [host for host in living(world) if host.activated and host.activated[-1].view_id == view_id]
        steps = max(host.machine._core.progress.finished for host in inside) + more
        step(inside, steps)


@pytest.mark.parametrize("seed", SEEDS)
def test_after_any_history_one_side_is_left(seed: int) -> None:
    world = history(seed)
    world.faults.heal()
    for host in living(world):
        if host.paused:
            world.resume(host)
    before = [host for host in living(world) if host.activated]

    def settled() -> bool:
        hosts = [host for host in living(world) if not cut_off(world, host)]
        views = {host.activated[-1].view_id if host.activated else "" for host in hosts}
        return len(views) == 1 and (views == {""} or set(hosts[0].activated[-1].ids) == {h.id for h in hosts})

    if before:
        world.run_until(settled, 40.0)
        assert any(host.stopped is None for host in before), "somebody always goes on"
        assert all(isinstance(h.stopped, (ExcludedError, LeftError)) for h in before if h.stopped is not None)


def test_introductions_are_bounded() -> None:
    """Two sides that meet say so a few times, and a lost member is looked for ever more rarely."""
    world, members = job(6)
    world.isolate(members[:3], members[3:])
    agree(world, members[:3])
    agree(world, members[3:])
    sent: list[object] = []

    def watch(_: Host, message: object) -> bool:
        if isinstance(message, (JoinReply, Introduction, Ping)):
            sent.append(message)
        return True

    world.watch = watch
    world.run(60.0)
    replies = [message for message in sent if not isinstance(message, Ping)]
    assert len(replies) <= 60 / BEACON_EVERY + 1, "one introducer is on the other side: its beacon, and nothing else"
    lost = [message for message in sent if isinstance(message, Ping) and message.target not in members[0].activated[-1].ids]
    inside = 60 / 0.5 * 2 * 3
    assert len(lost) <= inside + 3 * (60 / LOOK_AT_MOST + 5)
    sent.clear()
    world.faults.heal()
    world.run_until(lambda: len(living(world)) == 3, 8.0)
    assert sum(isinstance(message, (JoinReply, Introduction)) for message in sent) < 20
