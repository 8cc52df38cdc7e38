"""Failure detection: combines probes, suspicions and rumours. It accuses members, and never excludes them."""

from __future__ import annotations

import logging
from math import inf

from ...border import PeerProgress
from ...config import Liveness
from ...member import Address, Member
from ...messages import Ack, EvidenceKind, Gossip, Nack, Ping, PingRequest, Status, Stranger, Update
from ...progress import Progress
from ...store_requests import StoreOp, StoreReply
from ...view import View
from ..state.change import FindingKind
from ..state.core import Core
from ..state.effects import Check
from ..state.lifeguard import Suspicion
from ..state.member_table import NEVER, Peer, Sign
from .leases import Leases
from .probe import Probe, Prober
from .stall import Stall
from .verdict import Accuse, Verdicts
from .watch import Watch

PIGGYBACK = 6
"""The most rumours in one message."""


class Detection:
    """SWIM with Lifeguard for the members of the current view. ``accuse`` receives the resulting evidence."""

    def __init__(self, core: Core, accuse: Accuse, now: float) -> None:
        self._core = core
        self._accuse = accuse
        self._prober = Prober(core.config, core.rng, core.awareness, next_round=now)
        self._next_gossip = now
        self._watch = Watch(core.member.id)
        self.stall = Stall(core)
        self.leases = Leases(core, self.stall, now) if core.config.liveness is Liveness.LEASES else None
        self._verdicts = Verdicts(core, self.leases, accuse)
        self._looked_around = False
        """Whether a round of pings has begun in this view."""

    # Time

    def tick(self, now: float) -> None:
        """Send what is due, and draw conclusions from unanswered pings."""
        indirect, failed = self._prober.overdue(now)
        for probe in indirect:
            self._ask_others(probe)
            self._ask_again(probe, now)
        for probe in failed:
            self._failed(probe, now)
        for relay in self._prober.due_nacks(now):
            self._core.outbox.send_to(relay.asker, Nack(relay.asker_seq))
        if now >= self._prober.next_round:
            self._begin_round(now)
        late = self._watch.missed(self._interval, now) if self.leases is None else self.leases.overdue(now)
        for member_id in late:
            self.probe(member_id, now)
        suspected = self._core.table.suspected()
        for peer in suspected:
            self._verdicts.expire(peer, len(suspected), now)
        if now >= self._next_gossip:
            self._next_gossip = now + self._core.config.gossip_interval
            self._gossip()

    def renew(self, now: float) -> None:
        """Renew this member's lease, and read others'; also without a view."""
        if self.leases is not None and self._core.stopped is None:
            self.leases.tick(now)

    @property
    def renewal(self) -> float:
        """When ``renew`` is needed next."""
        return inf if self.leases is None else self.leases.deadline()

    def deadline(self) -> float:
        """When ``tick`` is needed next."""
        first = min(self._prober.deadline(), self._watch.deadline(), self.stall.deadline())
        if len(self._core.rumours):
            first = min(first, self._next_gossip)
        suspected = self._core.table.suspected()
        for peer in suspected:
            first = min(first, self._verdicts.time(peer), self._verdicts.fence_time(peer, len(suspected)))
        return first

    def overslept(self, late: float, now: float) -> None:
        """This member itself did nothing for ``late`` seconds (a busy host, a stop, a laptop that slept).

        So the messages that it missed say nothing about the others, but those that it did not send say much about itself.
        """
        core = self._core
        core.awareness.worse()
        core.links.overslept(late, now)
        self.stall.overslept(late, now)
        self._prober.postpone(late)
        self._watch.postpone(late)
        if self.leases is not None:
            self.leases.overslept(late)
        core.table.postpone(late)

    def adopt(self, view: View, now: float) -> None:
        """Follow a new view. A member that dies before its first ack cannot be discounted: so all are pinged at once, unless
        each was in the view before and has acked within the last round. Then the next round comes in time, and whoever
        recovers has the processors meanwhile (but see ``look_around``).
        """
        core = self._core
        core.rumours.forget(view)
        core.links.adopt(view, crowded=core.crowded)
        self._prober.forget(view)
        self._verdicts.adopt(view)
        watched = bool(self._watch.slots)
        self._watch.adopt(view if core.crowded and self.leases is None else None, self._interval, now)
        if self.leases is not None:
            self.leases.adopt(view, now)
        if not self._watch.slots:
            self._looked_around = False
            if core.crowded or any(self._unmet(peer, now) for peer in core.table):
                self._prober.next_round = now
        elif not watched:  # a thousand members should not ping in step
            self._prober.next_round = now + self._interval * core.rng.random()
        self.stall.forget()

    def _unmet(self, peer: Peer, now: float) -> bool:
        """Whether a member has just come, or has not acked within the last round."""
        return peer.status is not Status.DEAD and (peer.since >= now or peer.contact < now - self._interval)

    def look_around(self, now: float) -> None:
        """Begin a round now, if none has begun in this view: it finds the dead that nobody has noticed, and tells all of it."""
        if not self._looked_around and not self._watch.slots:
            self._prober.next_round = now

    def hinted(self, now: float) -> None:
        """This member's data plane failed: perhaps because of a broken link."""
        if self.leases is not None:
            self.leases.hinted(now)
            self._prober.next_round = now

    def ping_applicant(self, member: Member, now: float) -> None:
        """Ping an applicant outside the view; an ack sets its ``contact``."""
        seq = self._prober.next_seq()
        probe = Probe(seq, member, now, inf, now + 1.0)
        self._prober.probes[seq] = probe
        self._send_ping(probe, now)

    # Probing

    def _begin_round(self, now: float) -> None:
        core, interval, all_round = self._core, self._interval, False
        self._looked_around = True
        if self._watch.slots:
            peer = core.table.get(self._watch.turn())
            targets = [] if peer is None or peer.status is Status.DEAD else [peer.member]
            if unconfirmed := self._verdicts.unconfirmed(now):
                others = core.some(3)
                targets += [member for member in others if member not in targets]
                self._ask_to_probe(unconfirmed, others)
            interval = core.awareness.stretch(interval)
        else:
            all_round = self.leases is None or self.leases.all_round(now)
            pinged = core.table if all_round else core.table.suspected()
            targets = [peer.member for peer in pinged if peer.status is not Status.DEAD]
            if self.leases is not None and all_round:
                core.links.asked([member.id for member in targets], now)
        for probe in self._prober.begin_round(targets, interval, now):
            self._send_ping(probe, now)
        for peer in core.table if all_round and not core.crowded else ():
            waited = core.links.silent_for(peer.member.id, now)
            if waited and self._reached_by_others(peer, now):
                detail = f"no direct answer to {core.member.id[:6]} for {waited:.2f} s, though others reach it"
                self._accuse(peer.member.id, EvidenceKind.SEVERED, detail, now)

    def _ask_to_probe(self, suspects: list[Peer], others: list[Member]) -> None:
        """Let ``others`` ping members that nobody who lives may watch any more."""
        own_id = self._core.member.id
        updates = tuple(Update(peer.member.id, Status.SUSPECT, peer.incarnation, own_id) for peer in suspects[:PIGGYBACK])
        for member in others:
            self._core.outbox.send(member, Gossip(updates, direct=True))

    def _reached_by_others(self, peer: Peer, now: float) -> bool:
        """True if ``peer`` lives, though it does not answer this member.

        With leases a suspicion comes and goes with each read of the store, and a slow store keeps coming back with what a dead
        member wrote: so there its lease must have risen, or others must have passed on its answer, a moment ago.
        """
        if self.leases is None:
            return peer.suspicion is None and peer.status is Status.ALIVE
        return now - max(peer.renewed, peer.relayed) <= self._core.config.exclude_after

    @property
    def _interval(self) -> float:
        config = self._core.config
        return config.watch_interval if self._core.crowded else config.contact_interval

    def probe(self, member_id: str, now: float) -> None:
        """Ping a member out of turn, unless such a ping is under way or an earlier one stayed unanswered."""
        peer = self._core.table.get(member_id)
        if peer is None or peer.status is Status.DEAD or self._prober.probing(member_id):
            return
        if peer.suspicion is None or peer.suspicion.unanswered is None:
            self._send_ping(self._prober.start(peer.member, self._interval, now), now)

    def _send_ping(self, probe: Probe, now: float) -> None:
        core = self._core
        updates = self._rumours(about=probe.target.id)
        message = Ping(probe.seq, probe.target.id, core.epoch, core.view_id, updates, core.progress.pack(now))
        core.outbox.send(probe.target, message)

    def _rumours(self, about: str | None = None) -> tuple[Update, ...]:
        return self._core.rumours.take(PIGGYBACK, len(self._core.table) + 1, about)

    def _ask_others(self, probe: Probe) -> None:
        core = self._core
        if not core.crowded and core.table.get(probe.target.id) is not None:
            core.links.missed(probe.target.id, probe.sent)
        chosen = self._core.some(core.config.indirect_probes, without=probe.target.id)
        probe.helpers = len(chosen)
        for helper in chosen:
            core.outbox.send(helper, PingRequest(probe.seq, probe.target, self._rumours()))
        if core.table.get(probe.target.id) is not None:
            core.outbox.emit(Check(probe.target))  # SWIM's TCP fallback; it also shows a crash at once

    def _ask_again(self, probe: Probe, now: float) -> None:
        """Repeat a ping of a member that has never acked one: see ``adopt``.

        Its ack counts from when it was sent first, as nobody can tell which of the two it answers: contact is never too late.
        """
        peer = self._core.table.get(probe.target.id)
        if peer is not None and peer.contact == peer.met == NEVER:
            self._send_ping(probe, now)

    def _failed(self, probe: Probe, now: float) -> None:
        if (peer := self._core.table.get(probe.target.id)) is None:
            return
        self._suspect(probe.target.id, self._core.member.id, now)
        if peer.suspicion is not None:
            first, peer.suspicion.unanswered = peer.suspicion.unanswered is None, peer.suspicion.unanswered or probe.sent
            # A member that has just seen the suspect's lease renewed drops it; so send it until enough others saw the same.
            if self._core.crowded and (first or (self.leases is not None and not peer.suspicion.confirmed)):
                self._tell(Update(peer.member.id, Status.SUSPECT, peer.incarnation, self._core.member.id))

    def _tell(self, update: Update) -> None:
        """Send a suspicion or its refutation at once to the members that it concerns."""
        message = Gossip((update,), direct=True)
        for member in self._verdicts.concerned(update):
            self._core.outbox.send(member, message)

    def answered_check(self, member_id: str, now: float) -> None:
        """A member answered over TCP: it lives, but that is no contact (see ``evidence``)."""
        self._prober.answered_otherwise(member_id)
        peer = self._core.table.get(member_id)
        if peer is not None:
            self._core.links.answered(member_id, now)
            self._clear(peer)

    def answered(self, request: StoreOp, answer: StoreReply, now: float) -> None:
        """The store answered a request: a member that renewed its lease lives, but that is no contact."""
        for lease, lives in () if self.leases is None else self.leases.answered(request, answer, now):
            peer = self._core.table.get(lease.member.id)
            if lives and peer is not None:
                self._prober.answered_otherwise(lease.member.id)
                peer.renewed = now
                self._clear(peer)
            self._received_progress(lease.member.id, lease.progress, now)

    # Suspicion

    def believes(self, accused: str, source: str, now: float) -> bool:
        """Whether the report of ``source`` that ``accused`` is silent counts: not against a fresher sign of life to us, and in
        a large view only once enough others report the same.
        """
        core = self._core
        peer = core.table.get(accused)
        if peer is None or now - peer.last_sign < core.config.exclude_after:
            return False
        if core.crowded or self.leases is not None:
            self._suspect(accused, source, now)
        if self.leases is not None:
            return self._verdicts.judges(peer)
        return not core.crowded or (peer.suspicion is not None and peer.suspicion.confirmed)

    def _suspect(self, member_id: str, by: str, now: float, incarnation: int | None = None, *, direct: bool = True) -> None:
        """``by`` suspects a member. ``direct``: the message is from ``by`` itself; otherwise it is a rumour."""
        core = self._core
        peer = core.table.get(member_id)
        if peer is None or peer.status is Status.DEAD:
            return
        if incarnation is not None and incarnation < peer.incarnation:
            return
        if by != core.member.id and core.table.get(by) is None:
            return  # the accuser is not in this view, so its suspicion does not count in it
        rumour = Update(member_id, Status.SUSPECT, max(peer.incarnation, incarnation or 0), by)
        if peer.suspicion is None:
            minimum = self._verdicts.shortest()
            maximum = minimum * core.config.suspicion_max_mult
            needed = min(core.config.indirect_probes, len(core.table) - 1)
            core.table.suspect(peer, Suspicion(by, needed, minimum, maximum, now))
            peer.incarnation = rumour.incarnation
            core.outbox.note(logging.INFO, "suspect", f"{peer.member} does not answer (suspected by {by[:6]})", member_id)
            core.history.found(FindingKind.SUSPECT, member_id, "does not answer", by, now)
            if not (core.crowded and direct):
                core.rumours.add(rumour)
        elif peer.suspicion.confirm(by):
            peer.learn(Sign.SUSPECTED)
            convicted = len(peer.suspicion.accusers) == peer.suspicion.enough
            if not core.crowded or convicted:  # in a large view the accusers themselves send it
                core.rumours.add(rumour)
        else:
            return
        if (
            by != core.member.id
            and (core.crowded or self.leases is not None)
            and self._verdicts.concerns(member_id, self._watch)
        ):
            self.probe(member_id, now)

    def _clear(self, peer: Peer) -> None:
        silent = self._core.evidence.retract_silence(peer.member.id)  # others may have said so, without a suspicion here
        if silent or peer.suspicion is not None:
            self._core.history.cleared(peer.member.id)
        if peer.suspicion is not None:
            peer.learn(Sign.ANSWERED)
            self._core.outbox.note(logging.INFO, "refuted", f"{peer.member} answers again")

    # Rumours

    def _gossip(self) -> None:
        core = self._core
        if not len(core.rumours):
            return
        if core.crowded:
            chosen = self._core.some(core.config.gossip_fanout)
        else:
            peers = [peer.member for peer in core.table if peer.status is not Status.DEAD]
            chosen = core.rng.sample(peers, min(core.config.gossip_fanout, len(peers)))
        for member in chosen:
            updates = self._rumours(about=member.id)
            if updates:
                core.outbox.send(member, Gossip(updates))

    def merge(self, updates: tuple[Update, ...], now: float, *, direct: bool = False) -> None:
        """Rumours arrived; ``direct``: from their sources themselves."""
        core = self._core
        for update in updates:
            if update.member_id == core.member.id:
                if update.status is Status.SUSPECT and update.incarnation >= core.table.incarnation:
                    core.table.incarnation = update.incarnation + 1
                    core.awareness.worse()
                    self._refute(direct=direct)
            elif core.table.apply(update):
                if update.status is Status.SUSPECT:
                    self._suspect(update.member_id, update.by, now, update.incarnation, direct=direct)
                else:
                    core.evidence.retract_silence(update.member_id)
                    core.history.cleared(update.member_id)
                    if not direct:
                        core.rumours.add(update)

    def merge_told(self, updates: tuple[Update, ...], now: float) -> None:
        """Merge another member's beliefs, received by reconciliation: they are not passed on as rumours."""
        self.merge(updates, now, direct=True)

    def _refute(self, *, direct: bool) -> None:
        """Refute a suspicion of this member, on the same ways as it came, and to the members that judge it."""
        core = self._core
        refutation = Update(core.member.id, Status.ALIVE, core.table.incarnation, core.member.id)
        if not (core.crowded and direct):
            core.rumours.add(refutation)
        if core.crowded:
            self._tell(refutation)

    # Messages

    def on_ping(self, sender: str, address: Address, ping: Ping, now: float) -> None:
        """Answer if the ping is meant for this lifetime and its sender is not shunned."""
        core = self._core
        if ping.target != core.member.id:
            core.outbox.send_to(address, Stranger(ping.seq, ping.target))
            return
        self.merge(ping.updates, now)
        if sender in core.shunned or (sender not in core.acked and len(core.acked) >= 2 * core.config.max_members):
            return
        core.acked[sender] = now
        self._watch.received_ping(sender, self._interval, now)
        updates = self._rumours(about=sender)
        ack = Ack(ping.seq, ping.target, core.epoch, core.view_id, updates, core.progress.pack(now))
        core.outbox.send_to(address, ack)
        self._received_progress(sender, ping.progress, now)

    def _received_progress(self, sender: str, data: bytes, now: float) -> None:
        progress = Progress.unpack(data, now)
        if progress is not None and self._core.table.get(sender) is not None:
            self.stall.received(sender, progress)
            self._core.outbox.emit(PeerProgress(sender, progress.finished, progress.current, progress.inner))

    def on_ack(self, sender: str, ack: Ack, now: float) -> None:
        """An ack to a ping of ours, or to one that we sent for another member."""
        core = self._core
        self.merge(ack.updates, now)
        if (relay := self._prober.relays.pop(ack.seq, None)) is not None and ack.target == sender:
            core.outbox.send_to(relay.asker, Ack(relay.asker_seq, ack.target, ack.epoch, ack.view_id))
            return
        if ack.target == sender and core.table.get(sender) is not None:
            core.links.answered(sender, now)  # late acks too: a slow link is not broken
        probe = self._prober.answered(ack.seq, ack.target)
        if probe is None:
            return
        # Relayed acks show life, but are no contact with *us*. Nor are acks from a newer view, which may be without us.
        if ack.target == sender and (ack.epoch < core.epoch or ack.view_id == core.view_id):
            applicant = core.applicants.get(sender)
            if applicant is not None and ack.epoch:  # it has followed a view, so it applies no longer
                core.applicants.drop(sender)
            elif applicant is not None:
                applicant.contact = max(applicant.contact, probe.sent)
            if core.followed(ack.epoch, ack.view_id):
                core.table.answered(sender, probe.sent)
            else:  # it is in no view yet, or in one that we never followed: it lives, but has no vote on our next view
                core.table.met(sender, probe.sent, ack.epoch)
        if ack.target == sender:
            self._received_progress(sender, ack.progress, now)
        if (peer := core.table.get(ack.target)) is not None:
            if ack.target != sender:
                core.table.relayed(ack.target, now)
            self._clear(peer)

    def on_ping_request(self, address: Address, request: PingRequest, now: float) -> None:
        """Ping a member for another one."""
        core = self._core
        self.merge(request.updates, now)
        seq = self._prober.relay(address, request.seq, now)
        ping = Ping(seq, request.target.id, core.epoch, core.view_id, self._rumours(about=request.target.id))
        core.outbox.send(request.target, ping)

    def on_gossip(self, sender: str, address: Address, message: Gossip, now: float) -> None:
        """Rumours; or suspicions of somebody who asks that this member pings the suspects, whether it watches them or not."""
        self.merge(message.updates, now, direct=message.direct)
        if not message.direct:
            return
        asked = [update.member_id for update in message.updates if update.status is Status.SUSPECT]
        for member_id in asked:
            if member_id != self._core.member.id:
                self.probe(member_id, now)
        confirmed = self._verdicts.confirm(asked)
        if confirmed:
            self._core.reply(sender, address, Gossip(confirmed))

    def on_nack(self, nack: Nack) -> None:
        """A helper is alive."""
        self._prober.nacked(nack.seq)

    def on_stranger(self, address: Address, stranger: Stranger, now: float) -> None:
        """Another lifetime answers at the address of ``stranger.target``: the target is gone."""
        peer = self._core.table.get(stranger.target)
        if peer is not None and peer.member.address == address:
            self._accuse(stranger.target, EvidenceKind.PROOF, "another process lifetime answers at its address", now)
