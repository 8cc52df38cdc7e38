"""Invariant 7: a refuted member is trusted again within a bound."""

from __future__ import annotations

from math import ceil, log10
from typing import TYPE_CHECKING

from ...messages import Ack, Gossip, Ping, Status
from ...protocol.effects import Note
from ...protocol.reconciliation import EVERY
from ...view import View
from .inside import awaits, belief, shuns
from .invariant import Invariant
from .witness import Hears

if TYPE_CHECKING:
    from ..host import Host
    from .jury import Jury

__all__ = ["Trust"]


class Trust(Invariant):
    """At once where a suspect's own ack, or word of its higher incarnation, arrives; and one of them arrives within ``bound``.

    That holds while accuser and suspect are well (see ``Ground``) and the suspect does not shun the accuser (whom it voted out
    it never acks again in that epoch).
    """

    number = 7
    title = "the refuted are trusted again"

    def __init__(self, jury: Jury) -> None:
        super().__init__(jury)
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
        """See ``Witness``."""
        return {Ack: self._hear_ack, Ping: self._hear, Gossip: self._hear}

    def noted(self, host: Host, note: Note) -> None:
        """See ``Witness``."""
        if note.kind == "suspect" and note.about:
            self._suspects.setdefault(host.id, set()).add(note.about)
            self._since[host.id, note.about] = self.now
            wait = self._wait(host)
            self.jury.at(self.now + wait, lambda: self._look(host, note.about, wait, self.now))

    def _wait(self, host: Host) -> float:
        view = host.machine.view
        return self.bound(1 if view is None else len(view))

    def adopted(self, host: Host, view: View) -> None:
        """See ``Witness``."""
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
        """See ``Witness``."""
        if self._refuted is None:
            return
        (accuser, refuted), self._refuted = self._refuted, None
        for key in refuted if accuser is host else ():
            if self._suspected(host, key):
                story = self.jury.story
                self.fail(f"{story.name(host.id)} still suspects {story.name(key)}, which has just refuted that")

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
        well, wait = self.jury.ground.well_for(host.id, member_id), max(wait, self._wait(host))  # the view may have grown
        if well > wait:
            story = self.jury.story
            since = self.now - self._since[host.id, member_id]
            if since > wait:
                self.fail(
                    f"{story.name(host.id)} has suspected {story.name(member_id)} for {since:.2f} s, though both have been "
                    f"well for {well:.2f} s; the bound is {wait:.2f} s"
                )
        self.jury.at(self.now + wait / 2, lambda: self._look(host, member_id, wait, self.now))

    def _mutual(self, host: Host, suspect: Host) -> bool:
        """Whether each is in the view that the other follows (else one of them is about to learn something)."""
        mine, other = host.machine.view, suspect.machine.view
        return mine is not None and other is not None and mine.view_id == other.view_id
