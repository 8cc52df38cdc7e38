"""The coordinator tells who will be in the next view before it is proposed; nothing but the data plane's preparing follows."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from consensus.border import Boundary, Expected
from consensus.config import Config
from consensus.messages import Forecast, Message
from consensus.progress import Progress
from consensus.protocol.state.effects import Effect
from consensus.simulation import Host, Observer, World
from consensus.view import Delta, View

from ..transcripts.script import agree, epochs, start_job


class Told(Observer):
    """What each process was told to expect."""

    def __init__(self, expected: dict[str, list[View]]) -> None:
        self.expected = expected

    def effect(self, host: Host, effect: Effect) -> None:
        if isinstance(effect, Expected):
            self.expected.setdefault(host.name, []).append(effect.view)


class Cluster:
    """Three members inside calls, and somebody who wants to join; what each was told to expect."""

    def __init__(self, watch: Callable[[Host, Message], bool] = lambda *_: True, *, calls: bool = True) -> None:
        self.world, self.members = start_job(3, config=Config(boundary_wait=30.0))
        self.expected: dict[str, list[View]] = {}
        self.world.observe(Told(self.expected))
        self.world.watch = watch
        for host in self.members:
            host.machine.set_progress(Progress(16, 0) if calls else host.machine._core.progress)
        self.joiner = self.world.start("j", introducers=(self.members[0].name,))

    @property
    def all(self) -> list[Host]:
        return [*self.members, self.joiner]

    def boundary(self) -> None:
        world: World = self.world
        for host in self.members:
            world.inside(host, lambda host=host: host.machine.handle(Boundary(17, ()), world.now))  # type: ignore[misc]


def test_members_and_joiner_are_told_once_of_the_view_that_is_installed_then() -> None:
    cluster = Cluster()
    cluster.world.run_until(lambda: cluster.members[0].boundary_requested, 1.0)
    cluster.world.run(0.5)
    assert epochs(cluster.members) == [1] * 3, "nothing follows from it"
    assert {name: len(views) for name, views in cluster.expected.items()} == {host.name: 1 for host in cluster.all}
    cluster.boundary()
    assert agree(cluster.world, cluster.all) < 0.1
    installed = cluster.members[0].activated[-1]
    assert {view.view_id for views in cluster.expected.values() for view in views} == {installed.view_id}


def test_before_the_first_call_there_is_nothing_to_prepare_for() -> None:
    cluster = Cluster(calls=False)
    agree(cluster.world, cluster.all)
    assert not cluster.expected


def test_nobody_needs_it() -> None:
    cluster = Cluster(lambda _, message: not isinstance(message, Forecast))
    cluster.world.run_until(lambda: cluster.members[0].boundary_requested, 1.0)
    cluster.boundary()
    assert agree(cluster.world, cluster.all) < 0.1


def test_a_joiner_that_dies_then_leaves_the_members_as_they_are() -> None:
    cluster = Cluster()
    cluster.world.run_until(lambda: len(cluster.expected) == 4, 1.0)
    cluster.world.kill(cluster.joiner)
    cluster.world.run(3.0)
    assert epochs(cluster.members) == [1] * 3
    cluster.boundary()
    agree(cluster.world, cluster.members)


@pytest.mark.parametrize("which", ["stale", "foreign", "without us"])
def test_what_can_not_come_next_is_not_prepared_for(which: str) -> None:
    world, members = start_job(3)
    told: dict[str, list[View]] = {}
    world.observe(Told(told))
    view = members[0].machine.view
    assert view is not None
    later = View(view.epoch + 1, view.view_id, view.members[:2], origin=view.cluster)
    message = {
        "stale": Forecast(view, None),
        "foreign": Forecast(View(view.epoch + 1, "another", view.members, origin="another"), None),
        "without us": Forecast(None, Delta.between(view, later)),  # of three the last one is left out
    }[which]
    sender, _, receiver = members
    world.inside(receiver, lambda: receiver.machine.receive(sender.id, sender.member.address, message, world.now))
    assert not told
