"""Invariants 6 and 7: old lifetimes and incarnations have no effect, and a member that refuted a suspicion is trusted again.

A restart is a new member.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, log10

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
from ...protocol.detection.reconciliation import EVERY
from ...protocol.state.effects import Note
from ...view import View
from ..world.host import Host
from ..world.observer import Hears, Sees, Thinks
from .inside import awaits, belief, incarnation, shuns
from .invariant import SLACK, Facts, Invariant

ADMISSIBLE = 1.0
"""Seconds within which a joiner must have acked whoever proposes it."""


LATEST = 2.5
"""Seconds for which a request to join may still count though its sender was let in meanwhile (``FRESH`` and ``ADMISSIBLE``)."""


class Lifetimes(Invariant):
    """* Nobody joins who has followed a view before, under ``any`` of the same side (an applicant whose first admission it
      never heard of may join again), and no view contains a process that has not been started.
    * A value proposes nobody who has been dead for longer than ``ADMISSIBLE`` by any clock: old requests to join admit nobody.
    * A lifetime that is over (told to stop) acks, votes, proposes, installs and activates nothing.
    * Nobody but a member itself raises its incarnation, and a rumour about an older one than the receiver knows makes nobody
      suspect.
    """

    number = 6
    title = "old lifetimes have no effect"

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._met: set[str] = set()
        self._followed: dict[str, tuple[float, View]] = {}
        self._outdated: tuple[Host, list[Update]] | None = None
        self._over: set[str] = set()
        self._proposed: Accept | None = None
        """Whose joiners were looked at last."""

    def sees(self) -> Sees:
        """See ``Observer``."""
        acts = dict.fromkeys((Accepted, Activate, Install, Promise, Ready), self._acts)
        talk = dict.fromkeys((Ping, Gossip, PingRequest), self._rumours)
        return {**acts, **talk, Accept: self._propose, Ack: self._ack}

    def thinks(self) -> Thinks:
        """See ``Observer``."""
        return {Accept: lambda host, message: self._propose(host, None, message)}

    def hears(self) -> Hears:
        """See ``Observer``."""
        return dict.fromkeys((Ping, Ack, Gossip, PingRequest), self._hear)

    def stopped(self, host: Host, error: StoppedError) -> None:  # noqa: ARG002
        """See ``Observer``."""
        self._over.add(host.id)

    def installed(self, host: Host, view: View, reports: Mapping[str, bytes]) -> None:  # noqa: ARG002
        """See ``Observer``."""
        self._live(host, "installs", view)

    def activated(self, host: Host, view: View) -> None:
        """See ``Observer``."""
        self._live(host, "activates", view)

    def adopted(self, host: Host, view: View) -> None:
        """See ``Observer``."""
        if view.view_id not in self._met:
            self._met.add(view.view_id)
            self._admits(view)
        self._followed.setdefault(host.id, (self.now, view))

    def _admits(self, view: View) -> None:
        record, log = self.record, self.log
        before = record.ids.get(view.parent_id, frozenset())
        for member in view.members:
            if member.id in before:
                continue
            if member.id not in self.world.hosts:
                self.fail(f"{log.show(view)} admits {member}, which nobody started")
            since, first = self._followed.get(member.id, (self.now, view))
            if self.now - since > LATEST and self._same_side(first, view):
                text = f"which has followed {log.show(first)} since {since:.4f} s"
                self.fail(f"{log.show(view)} admits {log.name(member.id)}, {text}")

    def _same_side(self, before: View, view: View) -> bool:
        """Under ``any`` both sides of a cut may let the same applicant in, who follows one of them: no old lifetime."""
        if self.world.config.policy is not Policy.ANY:
            return True
        older: View | None = view
        while older is not None and older.epoch > before.epoch:
            older = self.record.parent(older)
        return older == before

    def _acts(self, host: Host, target: Host | None, message: Message) -> None:  # noqa: ARG002
        if self._over:
            self._live(host, "sends", type(message).__name__)

    def _live(self, host: Host, does: str, what: View | str) -> None:
        if host.id in self._over:
            self.fail(f"{self.log.name(host.id)} {does} {what} after its lifetime was over")

    def _ack(self, host: Host, target: Host | None, message: Ack) -> None:
        self._acts(host, target, message)
        if message.updates:
            self._rumours(host, target, message)

    def _propose(self, host: Host, target: Host | None, message: Accept) -> None:
        self._acts(host, target, message)
        if message is self._proposed:
            return  # to somebody else
        self._proposed = message
        record, log = self.record, self.log
        for member in message.proposal.joined:
            died = record.died.get(member.id)
            longest = ADMISSIBLE * (1 + self.world.config.drift) + SLACK
            if died is not None and record.proposed[message.proposal].time - died > longest:
                self.fail(f"{log.name(host.id)} admits {log.name(member.id)}, dead since {died:.4f} s")

    def _rumours(self, host: Host, target: Host | None, message: Ping | Ack | Gossip | PingRequest) -> None:  # noqa: ARG002
        for update in message.updates:
            owner = self.world.hosts.get(update.member_id)
            if owner is not None and update.incarnation > incarnation(owner.machine):
                log = self.log
                self.fail(
                    f"{log.name(host.id)} says {update.status.value} of incarnation {update.incarnation} of "
                    f"{log.name(owner.id)}, which is in its {incarnation(owner.machine)}"
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
        """See ``Observer``."""
        if self._outdated is None:
            return
        (receiver, updates), self._outdated = self._outdated, None
        for update in updates:
            if receiver is host and not self._alive(host, update) and belief(host.machine, update.member_id) is not None:
                log = self.log
                self.fail(
                    f"{log.name(host.id)} suspects {log.name(update.member_id)} for a rumour about its old "
                    f"incarnation {update.incarnation}"
                )


class Trust(Invariant):
    """At once where a suspect's own ack, or word of its higher incarnation, arrives; and one of them arrives within ``bound``.

    That holds while accuser and suspect are well (see ``Health``) and the suspect does not shun the accuser (whom it voted out
    it never acks again in that epoch).
    """

    number = 7
    title = "the refuted are trusted again"

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._suspects: dict[str, set[str]] = {}
        self._since: dict[tuple[str, str], float] = {}
        self._refuted: tuple[Host, list[str]] | None = None

    def bound(self, size: int) -> float:
        """Seconds in a view of ``size``: two rounds of pings; beyond ``mesh_limit`` the way of a rumour there and back.

        A rumour lives for ``retransmit_mult * ceil(log10(n + 1))`` rounds of gossip, and by then it has reached everybody with
        the probability that SWIM (section 4.1) gives; four times that, and two rounds of anti-entropy, leave nothing to luck.
        """
        config = self.world.config
        if size <= config.mesh_limit:
            return 2 * config.contact_interval + 2 * config.ping_timeout
        spread = config.gossip_interval * config.retransmit_mult * ceil(log10(size + 1))
        return 2 * config.probe_interval * (config.awareness_max + 1) + 4 * spread + 2 * EVERY

    def hears(self) -> Hears:
        """See ``Observer``."""
        return {Ack: self._hear_ack, Ping: self._hear, Gossip: self._hear}

    def noted(self, host: Host, note: Note) -> None:
        """See ``Observer``."""
        if note.kind == "suspect" and note.about:
            self._suspects.setdefault(host.id, set()).add(note.about)
            self._since[host.id, note.about] = self.now
            wait = self._wait(host)
            self.agenda.at(self.now + wait, lambda: self._look(host, note.about, wait, self.now))

    def _wait(self, host: Host) -> float:
        view = host.machine.view
        return self.bound(1 if view is None else len(view))

    def adopted(self, host: Host, view: View) -> None:
        """See ``Observer``."""
        suspects = self._suspects.get(host.id)
        if suspects:
            self._suspects[host.id] = {key for key in suspects if key in view}

    def _hear_ack(self, host: Host, sender: Host, message: Ack) -> None:
        if not self._suspects:
            return
        suspects = self._suspects.get(host.id)
        if suspects and sender.id in suspects and message.target == sender.id:
            if awaits(host.machine, message.seq, sender.id):
                self._refuted = (host, [sender.id])
        elif message.updates:
            self._hear(host, sender, message)

    def _hear(self, host: Host, sender: Host, message: Ping | Ack | Gossip) -> None:  # noqa: ARG002
        if not message.updates or not self._suspects.get(host.id):
            return
        if isinstance(message, Ping) and message.target != host.id:
            return  # meant for an earlier lifetime at this address: it is answered by Stranger, and not read
        alive = [update for update in message.updates if update.status is Status.ALIVE]
        found = []
        for update in alive:
            known = belief(host.machine, update.member_id)
            rest = [other for other in message.updates if other.member_id == update.member_id and other is not update]
            if known is not None and known[0] is Status.SUSPECT and update.incarnation > known[1] and not rest:
                found.append(update.member_id)
        if found:
            self._refuted = (host, found)

    def settled(self, host: Host) -> None:
        """See ``Observer``."""
        if self._refuted is None:
            return
        (accuser, refuted), self._refuted = self._refuted, None
        for key in refuted if accuser is host else ():
            if self._suspected(host, key):
                log = self.log
                self.fail(f"{log.name(host.id)} still suspects {log.name(key)}, which has just refuted that")

    def _suspected(self, host: Host, member_id: str) -> bool:
        known = belief(host.machine, member_id)
        return known is not None and known[0] is Status.SUSPECT

    def _look(self, host: Host, member_id: str, wait: float, asked: float) -> None:  # noqa: ARG002
        if not host.alive or host.stopped is not None:
            return
        suspect = self.world.hosts.get(member_id)
        if suspect is None or not self._suspected(host, member_id):
            self._suspects.get(host.id, set()).discard(member_id)
            return
        if not suspect.alive or suspect.stopped is not None:
            return
        if shuns(suspect.machine, host.id) or not self._mutual(host, suspect):
            return
        well, wait = self.health.well_for(host.id, member_id), max(wait, self._wait(host))  # the view may have grown
        if well > wait:
            log = self.log
            since = self.now - self._since[host.id, member_id]
            if since > wait:
                self.fail(
                    f"{log.name(host.id)} has suspected {log.name(member_id)} for {since:.2f} s, though both have been "
                    f"well for {well:.2f} s; the bound is {wait:.2f} s"
                )
        self.agenda.at(self.now + wait / 2, lambda: self._look(host, member_id, wait, self.now))

    def _mutual(self, host: Host, suspect: Host) -> bool:
        """Whether each is in the view that the other follows (else one of them is about to learn something)."""
        mine, other = host.machine.view, suspect.machine.view
        return mine is not None and other is not None and mine.view_id == other.view_id
