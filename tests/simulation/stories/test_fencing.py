"""``fence_command`` in simulation: who runs it, when, and what a proof by it is good for."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from consensus.config import Config
from consensus.protocol.state.effects import Effect, Fence
from consensus.protocol.state.evidence import EvidenceBook
from consensus.protocol.state.member_table import NEVER
from consensus.simulation import Host, World
from consensus.simulation.script.history import draw
from consensus.simulation.script.play import play
from consensus.simulation.world.observer import Observer
from tests.transcripts.script import agree, epochs, start_job

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


@dataclass
class Starved(Observer):
    """Supervisors kill at once, and say so up to ``longest`` seconds later."""

    longest: float = 4.0

    def attach(self, world: World) -> None:
        """See ``Observer``."""
        world.faults.reaping = self.longest


class Ages:
    """How often members were discounted though the proof itself came too late for that."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, trust: float = 1.0) -> None:
        """``trust``: makes so much of the ages that are told."""
        self.count = 0
        prove = EvidenceBook.prove

        def counted(
            book: EvidenceBook,
            member_id: str,
            detail: str,
            contact: float,
            now: float,
            age: float = 0.0,
            *,
            no_vote: bool = False,
        ) -> bool:
            before = member_id in book.discounted
            fresh = prove(book, member_id, detail, contact, now, trust * age, no_vote=no_vote)
            late = now - contact >= book._config.exclude_after
            self.count += not before and member_id in book.discounted and contact != NEVER and late
            return fresh

        monkeypatch.setattr(EvidenceBook, "prove", counted)


def starved(seeds: range) -> list[str]:
    """What broke in random histories with supervisors that answer late."""
    drawn = (replace(draw(seed), fences=True) for seed in seeds)
    played = (play(scenario, observers=[Starved()]) for scenario in drawn)
    return [f"seed {result.scenario.seed}: {result}" for result in played if not result.good]


@pytest.mark.parametrize("seeds", [range(100), pytest.param(range(100, 4000), marks=pytest.mark.soak)], ids=str)
def test_a_late_word_of_a_death_in_time_counts_and_forks_nothing(seeds: range, monkeypatch: pytest.MonkeyPatch) -> None:
    """The supervisor says for how long the process was gone: that is before it could have voted anybody out."""
    ages = Ages(monkeypatch)
    assert not starved(seeds)
    assert ages.count >= len(seeds) // 20


def test_histories_tell_where_too_much_is_made_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were a death believed to be ten times as old as the supervisor says, whoever was voted out would decide alone."""
    Ages(monkeypatch, trust=10.0)
    [seed] = starved(range(77, 78))
    assert "chosen by a quorum" in seed


@pytest.mark.parametrize("late", [0, 1])
def test_one_of_two_goes_on_where_the_word_comes_late(late: int) -> None:
    world, members = start_job(2, fences=True)
    world.faults.reaping = 10.0
    world.pause(members[late])
    agree(world, [members[1 - late]], 15.0)
