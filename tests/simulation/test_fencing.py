"""``fence_command`` in simulation: who runs it, when, and what a proof by it is good for."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from consensus.config import Config
from consensus.protocol.state.effects import Effect, Fence
from consensus.simulation import Host, World
from consensus.simulation.world.observer import Observer

from ..transcripts.script import agree, epochs, start_job

FENCED = Config(fence_command="kill-worker")


@dataclass
class Orders(Observer):
    """Every order to run the command: (who, whom, when)."""

    seen: list[tuple[str, str, float]]

    def effect(self, host: Host, effect: Effect) -> None:
        """See ``Observer``."""
        if isinstance(effect, Fence) and effect.command:
            self.seen.append((host.id, effect.member.id, self.world.now))


def job(size: int, config: Config = FENCED) -> tuple[World, list[Host], Orders]:
    world, members = start_job(size, config=config)
    orders = Orders([])
    world.observe(orders)
    return world, members, orders


def test_a_hung_member_is_gone_before_silence_would_have_been_enough() -> None:
    world, members, orders = job(5)
    world.pause(members[3])
    took = agree(world, [host for host in members if host is not members[3]])
    assert 0.75 * 2.0 - 0.5 < took < 2.0
    assert {who for who, _, _ in orders.seen} <= {host.id for host in members[:3]}, "not all at once"


@pytest.mark.parametrize("hung", [0, 1])
def test_one_of_two_goes_on_whichever_hangs(hung: int) -> None:
    world, members, _ = job(2)
    world.pause(members[hung])
    agree(world, [members[1 - hung]])


def test_without_the_command_the_junior_of_two_blocks() -> None:
    world, members, _ = job(2, Config())
    world.pause(members[0])
    world.run(10.0)
    assert epochs(members[1:]) == [1]


def test_the_larger_side_of_a_split_shoots_first() -> None:
    world, members, orders = job(5)
    small, large = members[:2], members[2:]
    world.isolate(small, large)
    agree(world, large)
    first = {who: when for who, _, when in reversed(orders.seen)}
    assert all(first[host.id] < min(first.get(other.id, world.now) for other in small) for host in large if host.id in first)
    assert any(host.id in first for host in large)
