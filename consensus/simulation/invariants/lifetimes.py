"""Invariant 6: old lifetimes and old incarnations have no effect; a restart is a new member."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ...config import Policy
from ...errors import StoppedError
from ...messages import (
    Accept,
    Accepted,
    Ack,
    Activate,
    Gossip,
    Install,
    Message,
    Ping,
    PingRequest,
    Promise,
    Ready,
    Status,
    Update,
)
from ...view import View
from .inside import belief, incarnation
from .invariant import SLACK, Invariant
from .witness import Hears, Sees, Thinks

if TYPE_CHECKING:
    from ..host import Host
    from .jury import Jury

__all__ = ["Lifetimes"]

ADMISSIBLE = 1.0
"""Seconds within which a joiner must have acked whoever proposes it."""


LATEST = 2.5
"""Seconds for which a request to join may still count though its sender was let in meanwhile (``FRESH`` and ``ADMISSIBLE``)."""


class Lifetimes(Invariant):
    """* Nobody joins who has followed a view before, under ``any`` of the same side (an applicant whose first admission it
      never heard of may join again), and no view contains a process that has not been started.
    * A value proposes nobody who has been dead for longer than ``ADMISSIBLE``: old requests to join admit nobody.
    * A lifetime that is over (told to stop) acks, votes, proposes, installs and activates nothing.
    * Nobody but a member itself raises its incarnation, and a rumour about an older one than the receiver knows makes nobody
      suspect.
    """

    number = 6
    title = "old lifetimes have no effect"

    def __init__(self, jury: Jury) -> None:
        super().__init__(jury)
        self._met: set[str] = set()
        self._followed: dict[str, tuple[float, View]] = {}
        self._outdated: tuple[Host, list[Update]] | None = None
        self._over: set[str] = set()
        self._proposed: Accept | None = None
        """Whose joiners were looked at last."""

    def sees(self) -> Sees:
        """See ``Witness``."""
        acts = dict.fromkeys((Accepted, Activate, Install, Promise, Ready), self._acts)
        talk = dict.fromkeys((Ping, Gossip, PingRequest), self._rumours)
        return {**acts, **talk, Accept: self._propose, Ack: self._ack}

    def thinks(self) -> Thinks:
        """See ``Witness``."""
        return {Accept: lambda host, message: self._propose(host, None, message)}

    def hears(self) -> Hears:
        """See ``Witness``."""
        return dict.fromkeys((Ping, Ack, Gossip, PingRequest), self._hear)

    def stopped(self, host: Host, error: StoppedError) -> None:  # noqa: ARG002
        """See ``Witness``."""
        self._over.add(host.id)

    def installed(self, host: Host, view: View, reports: Mapping[str, bytes]) -> None:  # noqa: ARG002
        """See ``Witness``."""
        self._live(host, "installs", view)

    def activated(self, host: Host, view: View) -> None:
        """See ``Witness``."""
        self._live(host, "activates", view)

    def adopted(self, host: Host, view: View) -> None:
        """See ``Witness``."""
        if view.view_id not in self._met:
            self._met.add(view.view_id)
            self._admits(view)
        self._followed.setdefault(host.id, (self.now, view))

    def _admits(self, view: View) -> None:
        record, story = self.jury.record, self.jury.story
        before = record.ids.get(view.parent_id, frozenset())
        for member in view.members:
            if member.id in before:
                continue
            if member.id not in self.world.hosts:
                self.fail(f"{story.show(view)} admits {member}, which nobody started")
            since, first = self._followed.get(member.id, (self.now, view))
            if self.now - since > LATEST and self._same_side(first, view):
                text = f"which has followed {story.show(first)} since {since:.4f} s"
                self.fail(f"{story.show(view)} admits {story.name(member.id)}, {text}")

    def _same_side(self, before: View, view: View) -> bool:
        """Under ``any`` both sides of a cut may let the same applicant in, who follows one of them: no old lifetime."""
        if self.world.config.policy is not Policy.ANY:
            return True
        older: View | None = view
        while older is not None and older.epoch > before.epoch:
            older = self.jury.record.parent(older)
        return older == before

    def _acts(self, host: Host, target: Host | None, message: Message) -> None:  # noqa: ARG002
        if self._over:
            self._live(host, "sends", type(message).__name__)

    def _live(self, host: Host, does: str, what: View | str) -> None:
        if host.id in self._over:
            self.fail(f"{self.jury.story.name(host.id)} {does} {what} after its lifetime was over")

    def _ack(self, host: Host, target: Host | None, message: Ack) -> None:
        self._acts(host, target, message)
        if message.updates:
            self._rumours(host, target, message)

    def _propose(self, host: Host, target: Host | None, message: Accept) -> None:
        self._acts(host, target, message)
        if message is self._proposed:
            return  # to somebody else
        self._proposed = message
        record, story = self.jury.record, self.jury.story
        for member in message.proposal.joined:
            died = record.died.get(member.id)
            if died is not None and record.proposed[message.proposal].time - died > ADMISSIBLE + SLACK:
                self.fail(f"{story.name(host.id)} admits {story.name(member.id)}, dead since {died:.4f} s")

    def _rumours(self, host: Host, target: Host | None, message: Ping | Ack | Gossip | PingRequest) -> None:  # noqa: ARG002
        for update in message.updates:
            owner = self.world.hosts.get(update.member_id)
            if owner is not None and update.incarnation > incarnation(owner.machine):
                story = self.jury.story
                self.fail(
                    f"{story.name(host.id)} says {update.status.value} of incarnation {update.incarnation} of "
                    f"{story.name(owner.id)}, which is in its {incarnation(owner.machine)}"
                )

    def _hear(self, host: Host, sender: Host, message: Ping | Ack | Gossip | PingRequest) -> None:  # noqa: ARG002
        self._outdated = None
        if not message.updates:
            return
        found = [update for update in message.updates if update.status is Status.SUSPECT]
        current = {update.member_id for update in found if not self._old(host, update)}
        old = [update for update in found if update.member_id not in current and self._alive(host, update)]
        if old:
            self._outdated = (host, old)

    def _old(self, host: Host, update: Update) -> bool:
        known = belief(host.machine, update.member_id)
        return known is not None and update.incarnation < known[1]

    def _alive(self, host: Host, update: Update) -> bool:
        known = belief(host.machine, update.member_id)
        return known is not None and known[0] is Status.ALIVE

    def settled(self, host: Host) -> None:
        """See ``Witness``."""
        if self._outdated is None:
            return
        (receiver, updates), self._outdated = self._outdated, None
        for update in updates:
            if receiver is host and not self._alive(host, update) and belief(host.machine, update.member_id) is not None:
                story = self.jury.story
                self.fail(
                    f"{story.name(host.id)} suspects {story.name(update.member_id)} for a rumour about its old "
                    f"incarnation {update.incarnation}"
                )
