"""Which list we all act on: evidence in, one Paxos instance an epoch, freeze, install, activate.

The coordinator is the first member that nothing is held against; it waits a moment for more evidence, proposes, and brings
the chosen view to life. Everybody else votes, reports, builds and says Ready. Safety never depends on who believes to be
the coordinator, only on ``acceptor`` and ``quorum``.
"""

from __future__ import annotations

import logging
from math import inf

from ..errors import ExcludedError, LeftError, QuorumLostError
from ..member import Address, Member
from ..messages import (
    Accept,
    Accepted,
    Activate,
    Ballot,
    Chosen,
    Evidence,
    EvidenceKind,
    FlushReply,
    FlushRequest,
    Install,
    Prepare,
    Promise,
    Promised,
    Pull,
    Ready,
    Status,
)
from ..view import Cause, Proposal, View
from .acceptor import NO_BALLOT, Acceptor, Pending
from .attempt import Attempt, Phase
from .core import Core
from .detection import Detection
from .effects import Activated, Check, Freeze, Installed, Tether, Wish
from .flush import FlushReports
from .installation import Installation

__all__ = ["ViewChange"]

ORPHANED_AFTER = 1.0
"""How long a chosen view may stay inactive whose driver is not in it."""

BLOCKED_EVERY = 5.0
"""Seconds between two lines that say who is waited for."""


class ViewChange:
    """One member's part in deciding views, as voter, proposer and installer."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.detection: Detection  # set by the machine: the two know each other
        self._acceptor: Acceptor | None = None
        self._flush = FlushReports(core.outbox)
        self._attempt: Attempt | None = None
        self._installation: Installation | None = None
        self._round = -1
        self._retry_at = -inf
        self._reports_due: dict[tuple[str, EvidenceKind], tuple[Evidence, float, float]] = {}
        self._wish_since: float | None = None
        self._boundary: int | None = None
        self._frozen_at: float | None = None
        self._blocked_since: float | None = None
        self._next_blocked_note = inf
        self._installer: tuple[str, Address] | None = None
        self._ready_again = inf
        self._is_ready = False
        self._adopted_at = -inf
        self._orphan_told = False

    # What the others need to know

    @property
    def changing(self) -> bool:
        """Whether a newer view than the active one is on its way, as far as this member knows."""
        core = self._core
        voted = self._acceptor is not None and self._acceptor.accepted is not None
        return core.active is not core.view or voted or self._attempt is not None or self._frozen_at is not None

    @property
    def may_tell(self) -> bool:
        """Whether the chosen view may be told: a leaver must keep its old group until INSTALL is out."""
        return self._installation is None or self._installation.sent

    # Evidence

    def accuse(self, accused: str, kind: EvidenceKind, detail: str, now: float) -> None:
        """This member itself has something against another (or, FROZEN, needs a new epoch)."""
        core = self._core
        if core.view is None or core.stopped is not None:
            return
        if kind is EvidenceKind.HINT:
            self._check(accused, now)
        elif self._record(accused, kind, detail, now):
            self._report(Evidence(core.view.view_id, accused, kind, detail[:200]), now)
        self.consider(now)

    def hint(self, suspects: tuple[str, ...], now: float) -> None:
        """The data plane failed here, and blames ``suspects`` (empty: unknown): check them at once."""
        core = self._core
        known = [member_id for member_id in suspects if core.table.get(member_id) is not None]
        for member_id in known or [peer.member.id for peer in core.table][: core.config.mesh_limit]:
            self._check(member_id, now)

    def _check(self, member_id: str, now: float) -> None:
        peer = self._core.table.get(member_id)
        if peer is not None and peer.status is not Status.DEAD and member_id not in self._core.evidence.checking:
            self._core.evidence.checking[member_id] = now
            self._core.outbox.emit(Check(peer.member))

    def checked(self, member_id: str, alive: bool | None, detail: str, now: float) -> None:
        """The result of a check."""
        self._core.evidence.checking.pop(member_id, None)
        if alive is False:
            self.accuse(member_id, EvidenceKind.PROOF, detail, now)
        elif alive:
            self.detection.answered_check(member_id)
        self.consider(now)

    def _record(self, accused: str, kind: EvidenceKind, detail: str, now: float) -> bool:
        core = self._core
        book = core.evidence
        if kind is EvidenceKind.FROZEN:
            fresh = book.frozen_since is None
            book.frozen_since = now if book.frozen_since is None else book.frozen_since
            return fresh
        peer = core.table.get(accused)
        if peer is None:
            return False
        if kind is EvidenceKind.PROOF:
            if not book.prove(accused, detail, peer.contact, now):
                return False
            peer.status, peer.suspicion = Status.DEAD, None
            core.applicants.drop(accused)
            core.outbox.note(logging.INFO, "dead", f"{peer.member}: {detail}")
            return True
        target = book.unready if kind is EvidenceKind.UNREADY else book.silent
        if accused in target:
            return False
        target[accused] = now
        core.outbox.note(logging.WARNING, kind.value, f"{peer.member}: {detail}")
        return True

    def _report(self, evidence: Evidence, now: float) -> None:
        self._reports_due[evidence.accused, evidence.kind] = (evidence, now, self._core.config.resend)
        self._send_reports(now)

    def _send_reports(self, now: float) -> None:
        for key, (evidence, due, delay) in list(self._reports_due.items()):
            if now >= due:
                self._reports_due[key] = (evidence, now + delay, min(2 * delay, 1.0))
                for member in self._seniors(evidence.accused):
                    self._core.outbox.send(member, evidence)

    def _seniors(self, accused: str) -> list[Member]:
        """The coordinator and the next two in seniority, without the accused and ourselves."""
        core = self._core
        coordinator = core.coordinator()
        if core.view is None or coordinator is None:
            return []
        start = core.view.index(coordinator.id)
        chosen = [m for m in core.view.members[start:] if m.id not in core.evidence.proofs and m.id != accused]
        return [member for member in chosen[:3] if member.id != core.member.id]

    def on_evidence(self, sender: str, address: Address, message: Evidence, now: float) -> None:
        """Somebody else's evidence, for the coordinator of the same view."""
        core = self._core
        if core.view is None or sender not in core.view:
            return
        if message.view_id != core.view.view_id:
            return  # of another view: judged there, or found again in this one
        if message.accused == core.member.id and message.kind is not EvidenceKind.FROZEN:
            return
        if message.kind is EvidenceKind.HINT:
            self._check(message.accused, now)
        elif message.kind is not EvidenceKind.SILENCE or self._believable(message.accused, now):
            self._record(message.accused, message.kind, f"{message.detail} (says {sender[:6]})", now)
        self.consider(now)

    def _believable(self, accused: str, now: float) -> bool:
        """Silence told by others counts only where we have no fresher contact ourselves."""
        peer = self._core.table.get(accused)
        if peer is None:
            return False
        mesh = len(self._core.table) < self._core.config.mesh_limit
        return not mesh or now - peer.last_sign >= self._core.config.exclude_after

    # The data plane's side

    def flushed(self, epoch: int, report: bytes) -> None:
        """The data plane stopped for ``epoch``; its report answers every ballot of that epoch."""
        for sender, address, answer in self._flush.store(epoch, report):
            self._core.reply(sender, address, answer)

    def frozen(self, now: float) -> None:
        """The data plane stopped by itself after a failure: it is owed a new epoch."""
        if self._frozen_at is None:
            self._frozen_at = now

    def boundary(self, call: int, leavers: tuple[str, ...], now: float) -> None:
        """The data plane stopped by itself after ``call``, as its trailer asked."""
        core = self._core
        self.frozen(now)
        self._boundary = call
        for member_id in leavers:
            if core.view is not None and member_id in core.view:
                core.evidence.leaving.setdefault(member_id, now)
        self.consider(now)

    def ready(self, view_id: str, now: float) -> None:
        """The data plane built the group of ``view_id``."""
        if self._core.installed is not None and self._core.installed.view_id == view_id:
            self._is_ready = True
            self._send_ready(now)

    def _watch_driver(self, now: float) -> None:
        """A driver that left with this very view cannot be missed as a member: ask for a new epoch instead."""
        core = self._core
        if self._orphaned and now >= self._adopted_at + ORPHANED_AFTER:
            self._orphan_told = True
            self.accuse(core.member.id, EvidenceKind.FROZEN, "whoever was to install this view is not in it", now)

    @property
    def _orphaned(self) -> bool:
        core = self._core
        if core.view is None or core.active is core.view or self._orphan_told or self._attempt is not None:
            return False
        return core.driver not in core.view and core.member.id in core.view

    def _send_ready(self, now: float) -> None:
        core = self._core
        if core.installed is not None and self._installer is not None:
            self._ready_again = now + core.config.resend
            sender, address = self._installer
            core.reply(sender, address, Ready(core.installed.epoch, core.installed.view_id))

    # Time

    def tick(self, now: float) -> None:
        """Ask again, take up what had to wait, notice that there is no quorum."""
        self._send_reports(now)
        self._retry_deferred(now)
        core = self._core
        if self._frozen_at is not None and now >= self._frozen_at + core.config.frozen_wait:
            if self._attempt is None and (self._acceptor is None or self._acceptor.accepted is None):
                self.accuse(core.member.id, EvidenceKind.FROZEN, "frozen without a view change", now)
        if self._is_ready and core.active is not core.installed and now >= self._ready_again:
            self._send_ready(now)
        self._watch_driver(now)
        if self._attempt is not None and now >= self._attempt.next_send:
            self._send_attempt(now)
        if self._installation is not None:
            self._push_installation(now)
        self.consider(now)
        self._watch_quorum(now)

    def deadline(self) -> float:
        """When ``tick`` is needed next."""
        core = self._core
        times = [due for _, due, _ in self._reports_due.values()]
        times.append(self._ready_again if self._is_ready and core.active is not core.installed else inf)
        if self._acceptor is not None and self._acceptor.deferred is not None:
            times.append(self._acceptor.deferred.until)
        if self._frozen_at is not None and core.evidence.frozen_since is None:
            times.append(self._frozen_at + core.config.frozen_wait)
        if self._attempt is not None:
            times.append(self._attempt.next_send)
        elif core.coordinates():
            times.append(max(self._next_proposal(), self._retry_at))
        if self._installation is not None:
            times.append(self._installation.next_send)
        times.append(self._next_blocked_note)
        if self._orphaned:
            times.append(self._adopted_at + ORPHANED_AFTER)
        return min(times)

    def _next_proposal(self) -> float:
        """When the coordinator wants to propose next, as ``consider`` decides it."""
        due = self._core.evidence.due()
        if due is not None:
            return due
        if self._boundary is not None:
            return -inf
        if self._wish_since is not None:
            return self._wish_since + self._core.config.boundary_wait
        return inf

    # Proposer

    def consider(self, now: float) -> None:
        """The coordinator proposes when there is a reason, and enough was waited for more."""
        core = self._core
        if core.view is None or core.stopped is not None or self._attempt is not None or now < self._retry_at:
            return
        if core.member.id not in core.view or not core.coordinates():
            self._drop_wish()
            return
        if core.leaving and len(core.view) == 1:
            core.stop(LeftError("left the job on its own wish"))
            return
        due = core.evidence.due()
        if due is not None:
            if now >= due:
                self._begin(self._boundary, now)
        elif self._boundary is not None:
            self._begin(self._boundary, now)
        elif core.active is core.view:
            self._consider_joins(now)

    def _consider_joins(self, now: float) -> None:
        if not self._core.applicants.admissible(now):
            self._drop_wish()
        elif self._wish_since is None:
            self._wish_since = now
            self._core.outbox.emit(Wish(True))
        elif now >= self._wish_since + self._core.config.boundary_wait:
            self._begin(None, now)

    def _drop_wish(self) -> None:
        if self._wish_since is not None:
            self._wish_since = None
            self._core.outbox.emit(Wish(False))

    def _begin(self, after_call: int | None, now: float) -> None:
        core = self._core
        assert core.view is not None and self._acceptor is not None
        promised = self._acceptor.promised
        senior = core.view.members[0].id == core.member.id
        if senior and self._round < 0 and promised == NO_BALLOT:
            self._round = 0
        else:
            self._round = max(self._round, promised[0], 0) + 1
        ballot: Ballot = (self._round, core.member.id)
        self._attempt = Attempt(core.view, ballot, after_call, now)
        if self._round == 0:
            self._propose(now)
        self._send_attempt(now)

    def _propose(self, now: float) -> None:
        core = self._core
        assert self._attempt is not None
        parent = self._attempt.parent
        removed = core.evidence.removals(parent)
        if len(removed) == len(parent):  # everybody leaves: the last one needs no successor
            removed = tuple(removal for removal in removed if removal.member_id != core.member.id)
        kept = len(parent) - len(removed)
        now_in = {member.id for member in parent.members}
        joined = [m for m in core.applicants.admissible(now) if m.id not in now_in]
        room = min(kept, core.config.max_members - kept)
        self._attempt.propose(Proposal(parent.view_id, parent.epoch + 1, removed, tuple(joined[:room])))

    def _send_attempt(self, now: float) -> None:
        attempt = self._attempt
        assert attempt is not None
        attempt.next_send = now + self._core.config.resend
        request = attempt.request()
        for member in attempt.parent.members:
            if member.id not in attempt.responders and member.id not in self._core.evidence.proofs:
                self._core.outbox.send(member, request)

    def on_promise(self, sender: str, message: Promise, now: float) -> None:
        """Phase 1b arrived."""
        attempt = self._attempt
        if attempt is None or attempt.phase is not Phase.PREPARE or message.ballot != attempt.ballot:
            return
        if message.parent_id != attempt.parent.view_id or sender not in attempt.parent:
            return
        attempt.promises[sender] = message
        if attempt.decided(self._core.evidence.discounted):
            attempt.next_send = now
            self._propose(now)
            self._send_attempt(now)

    def on_promised(self, message: Promised, now: float) -> None:
        """Somebody promised a higher ballot: start over above it, after a random pause."""
        attempt = self._attempt
        if attempt is not None and message.ballot == attempt.ballot and message.parent_id == attempt.parent.view_id:
            self._round = max(self._round, message.promised[0])
            self._attempt = None
            self._retry_at = now + self._core.config.resend * (0.5 + self._core.rng.random())

    def on_accepted(self, sender: str, message: Accepted, now: float) -> None:
        """A vote, with its voter's flush report."""
        attempt, installation = self._attempt, self._installation
        if attempt is not None and attempt.phase is Phase.ACCEPT and message.ballot == attempt.ballot:
            if message.parent_id == attempt.parent.view_id and sender in attempt.parent:
                attempt.reports[sender] = message.report
                if attempt.decided(self._core.evidence.discounted):
                    self._chosen(attempt, now)
        elif installation is not None and installation.parent is not None and message.ballot == installation.ballot:
            if message.parent_id == installation.parent.view_id and message.epoch == installation.view.epoch:
                installation.reports.setdefault(sender, message.report)
                self._push_installation(now)

    def _chosen(self, attempt: Attempt, now: float) -> None:
        assert attempt.proposal is not None
        core = self._core
        view = attempt.proposal.apply(attempt.parent)
        attempt.phase = Phase.CHOSEN
        installation = Installation(view, attempt.parent, attempt.ballot, dict(attempt.reports), now)
        installation.after_call = attempt.after_call
        installation.leavers = tuple(
            attempt.parent.member(removal.member_id)
            for removal in attempt.proposal.removed
            if removal.cause is not Cause.PROOF
        )
        self.adopt(view, core.member.id, now)
        self._installation = installation
        self._push_installation(now)

    # Installer

    def found(self, view: View, now: float) -> None:
        """Make the first view: nobody else could, so nobody is asked."""
        self.adopt(view, self._core.member.id, now)
        self._installation = Installation(view, None, (0, self._core.member.id), {}, now)
        self._push_installation(now)

    def _push_installation(self, now: float) -> None:
        installation = self._installation
        assert installation is not None
        if installation.active:
            self._installation_done(installation, now)
            return
        core = self._core
        missing = installation.missing_reports()
        if missing:
            if now >= installation.next_send:
                installation.next_send = now + core.config.resend
                self._send_view(installation, missing, installation.flush_request())
        elif not installation.sent:
            installation.sent = True
            installation.next_send = now + 2 * core.config.resend
            self._send_view(installation, installation.view.ids, installation.message())
            for member in installation.leavers:
                if member.id != core.member.id:
                    core.outbox.send(member, Chosen(installation.view, core.member.id))
        elif now >= installation.next_send:
            installation.pause = min(2 * installation.pause, 0.5)
            installation.next_send = now + installation.pause
            self._send_view(installation, installation.missing_ready(), installation.message())
        if now >= installation.started + core.config.ready_timeout:
            for member_id in missing or installation.missing_ready():
                if member_id != core.member.id:
                    what = "did not report" if missing else "did not build its group"
                    detail = f"{what} within ready_timeout={core.config.ready_timeout:g} s"
                    self.accuse(member_id, EvidenceKind.UNREADY, detail, now)

    def _send_view(self, installation: Installation, to: tuple[str, ...], message: Install | FlushRequest) -> None:
        for member_id in to:
            if member_id not in self._core.evidence.proofs:
                self._core.outbox.send(installation.view.member(member_id), message)

    def on_ready(self, sender: str, address: Address, message: Ready, now: float) -> None:
        """A member built its group."""
        installation = self._installation
        if installation is None or message.view_id != installation.view.view_id or sender not in installation.view:
            return
        installation.ready.add(sender)
        if installation.active:
            self._core.reply(sender, address, Activate(installation.view.epoch, installation.view.view_id))
        elif not installation.missing_ready():
            installation.active = True
            for member in installation.view.members:
                self._core.outbox.send(member, Activate(installation.view.epoch, installation.view.view_id))
            self._installation_done(installation, now)

    def _installation_done(self, installation: Installation, now: float) -> None:
        # Kept until the next view, to answer a Ready whose Activate was lost; a coordinator that leaves goes now.
        installation.next_send = inf
        if self._core.member.id not in installation.view:
            self._core.stop(LeftError("left the job on its own wish"))

    # Voter

    def on_prepare(self, sender: str, address: Address, message: Prepare, now: float) -> None:
        """Phase 1a."""
        acceptor = self._voter(sender, address, message)
        if acceptor is not None:
            self._core.reply(sender, address, acceptor.prepare(message))

    def on_accept(self, sender: str, address: Address, message: Accept, now: float) -> None:
        """Phase 2a: vote if ballot and lease allow, freeze, and answer with the report."""
        core = self._core
        acceptor = self._voter(sender, address, message)
        if acceptor is None:
            return
        if message.ballot < acceptor.promised:
            refusal = Promised(message.epoch, message.parent_id, message.ballot, acceptor.promised)
            core.reply(sender, address, refusal)
            return
        if acceptor.accepted_ballot != message.ballot:
            until = acceptor.wait_for(message.proposal, core.evidence.proofs, core.acked, now)
            core.shunned = acceptor.shunned
            if until > now:
                acceptor.deferred = Pending(sender, address, message, until)
                return
            acceptor.accept(message)
        self._answer(sender, address, message)

    def _answer(self, sender: str, address: Address, request: Accept) -> None:
        def vote(report: bytes) -> Accepted:
            return Accepted(request.epoch, request.parent_id, request.ballot, report)

        answer = self._flush.request(request.epoch, request.after_call, sender, address, vote)
        if answer is not None:
            self._core.reply(sender, address, answer)

    def on_flush_request(self, sender: str, address: Address, request: FlushRequest, now: float) -> None:
        """The installer of a chosen view needs our report."""
        core = self._core
        self.on_chosen(Chosen(request.view, sender), now)
        if core.view_id != request.view.view_id or core.installed is core.view:
            return

        def give(report: bytes) -> FlushReply:
            return FlushReply(request.view.epoch, request.view.view_id, report)

        answer = self._flush.request(request.view.epoch, request.after_call, sender, address, give)
        if answer is not None:
            core.reply(sender, address, answer)

    def on_flush_reply(self, sender: str, message: FlushReply, now: float) -> None:
        """A report that was missing."""
        installation = self._installation
        if installation is not None and message.view_id == installation.view.view_id and not installation.sent:
            installation.reports.setdefault(sender, message.report)
            self._push_installation(now)

    def _retry_deferred(self, now: float) -> None:
        acceptor = self._acceptor
        if acceptor is not None and acceptor.deferred is not None and now >= acceptor.deferred.until:
            pending, acceptor.deferred = acceptor.deferred, None
            self.on_accept(pending.sender, pending.address, pending.request, now)

    def _voter(self, sender: str, address: Address, message: Prepare | Accept) -> Acceptor | None:
        """The acceptor for this request; None where the sender or we must catch up first, or it is not legitimate."""
        core = self._core
        if core.view is None or message.epoch > core.epoch + 1:
            core.reply(sender, address, Pull(core.epoch))
            return None
        if message.epoch <= core.epoch:
            core.reply(sender, address, Chosen(core.view, core.driver))
            return None
        acceptor = self._acceptor
        if acceptor is None or message.parent_id != core.view_id or not acceptor.legitimate(sender, message.ballot):
            return None
        return acceptor

    # Learner

    def on_pull(self, sender: str, address: Address, message: Pull, now: float) -> None:
        """A laggard asks what was chosen since."""
        if self._core.view is not None and self._core.epoch > message.epoch:
            self._core.reply(sender, address, Chosen(self._core.view, self._core.driver))

    def on_chosen(self, message: Chosen, now: float) -> None:
        """A view was chosen, which this member may not have known."""
        core = self._core
        if message.view.epoch <= core.epoch or not message.view.consistent():
            return
        if core.member.id in message.view:
            self.adopt(message.view, message.driver, now)
        elif core.view is not None:
            self._out(message.view)

    def _out(self, view: View) -> None:
        if self._core.leaving or self._core.member.id in self._core.evidence.leaving:
            self._core.stop(LeftError("left the job on its own wish"))
        else:
            text = f"the other members went on without this one in {view}; start anew to join again"
            self._core.stop(ExcludedError(text))

    def on_install(self, sender: str, address: Address, message: Install, now: float) -> None:
        """A chosen view with everybody's report: build its group."""
        core = self._core
        view = message.view
        if not view.consistent() or view.epoch < core.epoch:
            return
        if core.member.id not in view:
            if core.view is not None:
                self._out(view)
            return
        if core.installed is not None and core.installed.view_id == view.view_id:
            self._installer = (sender, address)
            if self._is_ready:
                self._send_ready(now)
            return
        if not self._installable(message):
            return
        if view.epoch > core.epoch:
            self.adopt(view, sender, now)
        elif view.view_id != core.view_id:
            core.outbox.note(logging.CRITICAL, "fork", f"{sender} installs {view} against {core.view}")
            return
        core.installed = core.view
        self._installer = (sender, address)
        self._is_ready = False
        core.outbox.emit(Installed(view, message.reports))

    def _installable(self, message: Install) -> bool:
        """Not below a promised ballot, and not without exactly the report that we gave."""
        core = self._core
        view = message.view
        if core.view is None:
            return True
        acceptor = self._acceptor
        if acceptor is not None and view.epoch == acceptor.epoch and message.ballot < acceptor.promised:
            return False
        if view.epoch == core.epoch + 1 and view.parent_id != core.view_id:
            return False
        reports = dict(message.reports)
        if core.member.id in reports:
            return reports[core.member.id] == self._flush.get(view.epoch)
        # Without our report it must be the view that admitted (or founded with) us.
        return core.installed is None

    def on_activate(self, message: Activate, now: float) -> None:
        """Everybody is ready."""
        core = self._core
        if core.installed is None or core.installed.view_id != message.view_id or not self._is_ready:
            return
        if core.active is not core.installed and core.installed is core.view:
            core.active = core.installed
            core.outbox.emit(Activated(core.installed))
            self.consider(now)

    def adopt(self, view: View, driver: str, now: float) -> None:
        """``view`` is the newest chosen one: vote on its successor from now on, and judge its members anew."""
        core = self._core
        core.view = view
        core.driver = driver
        self._adopted_at = now
        self._orphan_told = False
        core.table.adopt(view, core.applicants.contacts, now)
        core.evidence.adopt(view)
        core.shunned = set()
        stale = now - 2 * core.config.exclude_after
        core.acked = {key: time for key, time in core.acked.items() if key in view or time > stale}
        for member_id in view.ids:
            core.applicants.drop(member_id)
        self.detection.adopt(view, now)
        self._acceptor = Acceptor(core.config, core.member.id, view)
        self._flush.forget(view.epoch)
        self._attempt = None
        if self._installation is not None and self._installation.view.view_id != view.view_id:
            self._installation = None
        self._round = -1
        self._retry_at = -inf
        self._boundary = None
        self._frozen_at = None
        self._blocked_since, self._next_blocked_note = None, inf
        self._reports_due.clear()
        self._drop_wish()
        core.outbox.emit(Tether(self._successors(view)))
        for member_id, proof in core.evidence.proofs.items():  # it died while the change was under way
            self._report(Evidence(view.view_id, member_id, EvidenceKind.PROOF, proof.detail[:200]), now)

    def _successors(self, view: View) -> tuple[Member, ...]:
        if self._core.member.id not in view:
            return ()
        start = view.index(self._core.member.id)
        ring = view.members[start + 1 :] + view.members[:start]
        return ring[: self._core.config.tethers]

    # No quorum

    def _watch_quorum(self, now: float) -> None:
        core = self._core
        if core.view is None or core.stopped is not None:
            return
        if self._attempt is None and self._frozen_at is None and self._installation_waits() is None:
            self._blocked_since, self._next_blocked_note = None, inf
            return
        if self._blocked_since is None:
            self._blocked_since = now
            self._next_blocked_note = now + BLOCKED_EVERY
        blocked = now - self._blocked_since
        if now >= self._next_blocked_note:
            self._next_blocked_note = now + BLOCKED_EVERY
            core.outbox.note(logging.WARNING, "blocked", f"{self._blocked_text()} for {blocked:.0f} s")
        if blocked >= core.config.quorum_timeout:
            core.stop(QuorumLostError(f"{self._blocked_text()} for quorum_timeout={core.config.quorum_timeout:g} s"))

    def _installation_waits(self) -> tuple[str, ...] | None:
        installation = self._installation
        if installation is None or installation.active:
            return None
        return installation.missing_reports() or installation.missing_ready()

    def _blocked_text(self) -> str:
        core = self._core
        waits = self._installation_waits()
        if self._attempt is not None:
            waits = self._attempt.waiting_for(core.evidence.discounted)
        if waits is None:
            coordinator = core.coordinator()
            return f"frozen, waiting for coordinator {coordinator} to propose the next view"
        names = ", ".join(str(m) for m in (core.view.members if core.view else ()) if m.id in waits) or ", ".join(waits)
        return f"the next view waits for {names}; restart or kill them, or run more members so that a majority survives"
