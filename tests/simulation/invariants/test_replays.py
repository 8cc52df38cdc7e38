from __future__ import annotations

from typing import Any

import pytest

from consensus.messages import Promise
from consensus.protocol.agreement.acceptor import Acceptor
from consensus.protocol.agreement.installer import Installer
from consensus.protocol.agreement.view_change import ViewChange
from consensus.protocol.state.member_table import MemberTable
from consensus.simulation import World, draw, judged, play
from consensus.simulation.invariants import Replays, Violation
from consensus.simulation.invariants.inside import standing, twin
from consensus.simulation.invariants.replays import CHANGES
from tests.harness.basics import around

from .stage import Stage, alone


@pytest.fixture
def every_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Replays, "every", 0)
    alone(monkeypatch, Replays)


def crashes(seed: int = 1) -> World:
    world = judged(World(seed))
    world.cluster(4)
    for name in ("m3", "m0"):
        world.run(1.0)
        world.kill(world.named(name))
    world.run(3.0)
    return world


@pytest.mark.usefixtures("every_message")
def test_a_vote_that_counts_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: whoever answers again is another voter."""

    @around(monkeypatch, Installer, "_add_report")
    def add_report(honest: Any, self: Installer, installation: object, sender: str, report: bytes, now: float) -> None:
        sender = sender + "'" if sender in installation.reports else sender  # type: ignore[attr-defined]
        installation.reports.setdefault(sender, report)  # type: ignore[attr-defined]
        honest(self, installation, sender.rstrip("'"), report, now)  # type: ignore[arg-type]

    with pytest.raises(Violation, match=r"got Accepted.* again, and it had an effect: installation was"):
        crashes()


@pytest.mark.usefixtures("every_message")
def test_a_promise_that_rises_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def prepare(self: Acceptor, request: object) -> Promise:
        self.promised = (self.promised[0] + 1, "x")
        return Promise(self.epoch, self.view.view_id, self.promised)

    monkeypatch.setattr(Acceptor, "prepare", prepare)
    with pytest.raises(Violation, match=r"got Prepare.* again, and it had an effect: acceptor was"):
        crashes()


@pytest.mark.usefixtures("every_message")
def test_an_old_install_that_installs(monkeypatch: pytest.MonkeyPatch) -> None:
    @around(monkeypatch, ViewChange, "on_install")
    def on_install(honest: Any, self: ViewChange, sender: str, address: tuple[str, int], message: object, now: float) -> None:
        if message.epoch < self._core.epoch:  # type: ignore[attr-defined]
            self._core.installed = self._core.resolve(message.view, message.delta)  # type: ignore[attr-defined]
        honest(self, sender, address, message, now)  # type: ignore[arg-type]

    with pytest.raises(Violation, match=r"got Install.* from an earlier view change, and it had an effect: views was"):
        crashes()


@pytest.mark.usefixtures("every_message")
def test_a_rumour_that_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    @around(monkeypatch, MemberTable, "apply")
    def apply(honest: Any, self: MemberTable, update: object) -> bool:
        peer = self.get(update.member_id)  # type: ignore[attr-defined]
        if peer is not None:
            peer.incarnation += 1
        return honest(self, update)  # type: ignore[arg-type]

    world = judged(World(1))
    world.cluster(4)
    world.pause(world.named("m3"))
    with pytest.raises(Violation, match="again, and it had an effect: peers was"):
        world.run(3.0)


@pytest.mark.usefixtures("every_message")
@pytest.mark.parametrize("seed", range(6))
def test_without_bugs_nothing_changes(seed: int) -> None:
    result = play(draw(seed, size=4, faults=6))
    assert result.good, str(result)


@pytest.mark.parametrize("kind", CHANGES)
def test_messages_of_view_changes_say_of_which(kind: type) -> None:
    """Else none is ever old, and none replayed: what is of no view change belongs to ``TIMELESS``."""
    assert hasattr(kind, "epoch") or hasattr(kind, "view_id")


def test_a_twin_is_equal_and_apart() -> None:
    stage = Stage(Replays)
    host = stage.hosts[0]
    other = twin(host.machine)
    assert standing(other) == standing(host.machine)
    other._core.evidence.prove(stage.hosts[1].id, "", 0.0, 1.0)
    other._core.table.get(stage.hosts[1].id).incarnation = 7
    assert standing(other) != standing(host.machine)
    assert not host.machine._core.evidence.proofs
