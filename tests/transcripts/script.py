"""Words for writing histories."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest

from consensus.config import Config
from consensus.simulation import Host, World, judged
from consensus.simulation.invariants import Invariant, checkers
from consensus.simulation.transcript import Transcript

LETTERS = "A B C D E F G H"


def start_job(
    size: int,
    *,
    seed: int = 1,
    config: Config | None = None,
    fences: bool = False,
    page: Transcript | None = None,
    names: str = LETTERS,
) -> tuple[World, list[Host]]:
    """A job whose members have pinged each other for a while, in seniority order (not the order of their start).

    What happens from here on is written down on ``page`` (see ``write_down``).
    """
    world = judged(World(seed, config, fences=fences))
    world.cluster(size)
    world.run(1.0)
    members = seniority(world)
    write_down(world, members, page, names)
    return world, members


def write_down(world: World, members: Sequence[Host], page: Transcript | None, names: str = LETTERS) -> None:
    """From now on ``page`` (where there is one) observes the world; ``members`` have ``names`` there, too many of them numbers.

    Every message takes one millisecond from now on, so that what belongs together is seen together.
    """
    if page is None:
        return
    called = names.split() if len(members) <= len(names.split()) else [f"m{index}" for index in range(len(members))]
    for host, name in zip(members, called, strict=False):
        page.people.meet(host.id, name)
    world.faults.latency = (0.001, 0.001)
    world.observe(page)
    page.begin(members)


def remark(world: World, text: str) -> None:
    """Say what the script does now, where somebody writes the story down."""
    for observer in world.observers:
        if isinstance(observer, Transcript):
            observer.remark(text)


def unchecked(monkeypatch: pytest.MonkeyPatch, *kinds: type[Invariant]) -> None:
    """Worlds of this test do not check these: what they see coming, or what the script does by force, is not the point."""
    monkeypatch.setattr(checkers, "STANDARD", tuple(kind for kind in checkers.STANDARD if kind not in kinds))


def seniority(world: World) -> list[Host]:
    view = next(host.activated[-1] for host in world.hosts.values() if host.running and host.activated)
    return [world.hosts[key] for key in view.ids]


def agree(world: World, hosts: Sequence[Host], seconds: float = 10.0) -> float:
    """Wait until ``hosts`` act in one view of exactly them; how long it took."""
    ids = {host.id for host in hosts}

    def done() -> bool:
        views = {host.activated[-1].view_id if host.activated else "" for host in hosts}
        return len(views) == 1 and views != {""} and set(hosts[0].activated[-1].ids) == ids

    return world.run_until(done, seconds)


def epochs(hosts: Iterable[Host]) -> list[int]:
    return [host.activated[-1].epoch for host in hosts]


def cut(world: World, *pairs: tuple[Host, Host]) -> None:
    for one, other in pairs:
        world.faults.cut_both(one.id, other.id)
