"""A world with one checker under test, to which impossible things can be shown."""

from __future__ import annotations

from collections.abc import Iterable

from consensus.config import Config
from consensus.messages import Accept, Accepted, Ballot, Ready
from consensus.protocol.effects import Activated, Installed
from consensus.simulation import Host, World
from consensus.simulation.invariants import Invariant, Jury, standard
from consensus.view import Cause, Proposal, Removal, View


class Stage:
    """``size`` members that act in their first view; ``jury`` asks ``kind`` alone, and is told what a test makes up."""

    def __init__(self, kind: type[Invariant], size: int = 3, config: Config | None = None, seed: int = 1) -> None:
        self.world = World(seed, config)
        self.jury = Jury([kind])
        self.world.observe(self.jury)
        self.world.cluster(size)
        self.view = next(iter(self.world.hosts.values())).activated[-1]
        self.hosts = [self.world.hosts[key] for key in self.view.ids]

    def after(self, parent: View, *out: Host) -> View:
        """The successor of ``parent`` without ``out``."""
        return self.value(parent, *out).apply(parent)

    def value(self, parent: View, *out: Host, cause: Cause = Cause.SILENCE) -> Proposal:
        return Proposal(parent.view_id, parent.epoch + 1, tuple(Removal(host.id, cause) for host in out))

    def choose(self, driver: Host, value: Proposal, voters: Iterable[Host], ballot: Ballot | None = None) -> View:
        """``driver`` proposes ``value``, hears ``voters``, and follows."""
        parent = self.jury.record.views[value.parent_id]
        ballot = ballot or (1, driver.id)
        accept = Accept(value.epoch, value.parent_id, ballot, value)
        self.jury.told_itself(driver, accept)
        for voter in voters:
            vote = Accepted(value.epoch, value.parent_id, ballot, report(voter, value.epoch))
            if voter is driver:
                self.jury.told_itself(driver, vote)
            else:
                self.jury.sent(voter, driver, vote)
                self.jury.delivered(driver, voter, vote)
        view = value.apply(parent)
        self.jury.follows(driver, view)
        return view

    def install(self, view: View, *hosts: Host, reports: dict[str, bytes] | None = None) -> None:
        """``hosts`` install ``view``, with the continuing members' reports."""
        before = self.jury.record.ids.get(view.parent_id, frozenset())
        usual = {key: f"{key}:{view.epoch}".encode() for key in view.ids if key in before}
        told = usual if reports is None else reports
        for host in hosts:
            self.jury.follows(host, view)
            self.jury.effect(host, Installed(view, told))

    def ready(self, view: View, *hosts: Host) -> None:
        for host in hosts:
            self.jury.sent(host, None, Ready(view.epoch, view.view_id))

    def activate(self, view: View, *hosts: Host) -> None:
        for host in hosts:
            self.jury.effect(host, Activated(view))


def report(host: Host, epoch: int) -> bytes:
    """What the stub data plane of ``host`` reports."""
    return f"{host.id}:{epoch}".encode()


def alone(monkeypatch: object, kind: type[Invariant]) -> None:
    """Worlds check ``kind`` and nothing else: a planted bug breaks more than one rule."""
    monkeypatch.setattr(standard, "STANDARD", (kind,))  # type: ignore[attr-defined]
