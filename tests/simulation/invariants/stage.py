"""A world with one checker under test, to which impossible things can be shown."""

from __future__ import annotations

from collections.abc import Iterable

from consensus.border import Activated, Installed
from consensus.config import Config
from consensus.messages import Accept, Accepted, Ballot, Ready
from consensus.simulation import Host, World
from consensus.simulation.invariants import Checkers, Invariant, checkers
from consensus.view import Cause, Proposal, Removal, View


class Stage:
    """``size`` members that act in their first view; ``checkers`` asks ``kind`` alone.

    ``observers`` can be shown what a test makes up.
    """

    def __init__(self, kind: type[Invariant], size: int = 3, config: Config | None = None, seed: int = 1) -> None:
        self.world = World(seed, config)
        self.checkers = Checkers([kind])
        self.observers = self.world.observers
        self.world.observe(self.checkers)
        self.world.cluster(size)
        self.view = next(iter(self.world.hosts.values())).activated[-1]
        self.hosts = [self.world.hosts[key] for key in self.view.ids]

    def follows(self, host: Host, view: View) -> None:
        self.observers.show("adopted", host, view)

    def after(self, parent: View, *out: Host) -> View:
        """The successor of ``parent`` without ``out``."""
        return self.value(parent, *out).apply(parent)

    def value(self, parent: View, *out: Host, cause: Cause = Cause.SILENCE) -> Proposal:
        return Proposal(parent.view_id, parent.epoch + 1, tuple(Removal(host.id, cause) for host in out))

    def choose(self, driver: Host, value: Proposal, voters: Iterable[Host], ballot: Ballot | None = None) -> View:
        """``driver`` proposes ``value``, hears ``voters``, and follows."""
        parent = self.checkers.facts.record.views[value.parent_id]
        ballot = ballot or (1, driver.id)
        accept = Accept(value.epoch, value.parent_id, ballot, value)
        self.observers.told_itself(driver, accept)
        for voter in voters:
            vote = Accepted(value.epoch, value.parent_id, ballot, report(voter, value.epoch))
            if voter is driver:
                self.observers.told_itself(driver, vote)
            else:
                self.observers.sent(voter, driver, vote)
                self.observers.delivered(driver, voter, vote)
        view = value.apply(parent)
        self.follows(driver, view)
        return view

    def install(self, view: View, *hosts: Host, reports: dict[str, bytes] | None = None) -> None:
        """``hosts`` install ``view``, with the continuing members' reports."""
        before = self.checkers.facts.record.ids.get(view.parent_id, frozenset())
        usual = {key: f"{key}:{view.epoch}".encode() for key in view.ids if key in before}
        told = usual if reports is None else reports
        for host in hosts:
            self.follows(host, view)
            self.observers.effect(host, Installed(view, told))

    def ready(self, view: View, *hosts: Host) -> None:
        for host in hosts:
            self.observers.sent(host, None, Ready(view.epoch, view.view_id))

    def activate(self, view: View, *hosts: Host) -> None:
        for host in hosts:
            self.observers.effect(host, Activated(view))


def report(host: Host, epoch: int) -> bytes:
    """What the stub data plane of ``host`` reports."""
    return f"{host.id}:{epoch}".encode()


def alone(monkeypatch: object, kind: type[Invariant]) -> None:
    """Worlds check ``kind`` and nothing else: a planted bug breaks more than one rule."""
    monkeypatch.setattr(checkers, "STANDARD", (kind,))  # type: ignore[attr-defined]
