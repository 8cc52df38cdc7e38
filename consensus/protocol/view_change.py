"""Which list we all act on: evidence in, one Paxos instance an epoch, freeze, install, activate.

Put together from ``accusations`` (evidence), ``proposer``, ``voter`` and ``installer``; here a member follows what was
decided: it adopts chosen views, installs them, and notices when nothing moves any more.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from math import inf
from typing import Any

from ..config import Policy
from ..errors import LeftError, QuorumLostError
from ..member import Address, Member
from ..messages import Accepted, Activate, Ballot, Chosen, EvidenceKind, FlushRequest, Install, Ready
from ..view import Cause, Delta, View
from .accusations import Accusations
from .attempt import Attempt
from .change import Kind, Moment
from .contact import Contact
from .core import Core
from .detection import Detection
from .effects import Activated, Installed, Tether
from .installation import Installation
from .installer import Installer
from .life import Turn
from .proposer import Proposer
from .standing import STANDING, News
from .voter import Voter

__all__ = ["ViewChange"]

ORPHANED_AFTER = 1.0
"""How long a chosen view may stay inactive whose driver is not in it."""

BLOCKED_EVERY = 5.0
"""Seconds between two lines that say who is waited for."""


class ViewChange:
    """One member's way from view to view."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.detection: Detection  # set by the machine: they know each other
        self.contact: Contact
        self.voter = Voter(core)
        self.proposer = Proposer(core, self.voter, self._chosen)
        self.accusations = Accusations(core, self.proposer.consider, self._believes)
        self.installer = Installer(core, self.accusations.accuse)
        self._frozen_at: float | None = None
        self._blocked_since: float | None = None
        self._next_blocked_note = inf
        self._ready_to: tuple[str, Address] | None = None
        self._ready_again = inf
        self._is_ready = False
        self._adopted_at = -inf
        self._orphan_told = False

    def _believes(self, accused: str, source: str, now: float) -> bool:
        return self.detection.believes(accused, source, now)

    @property
    def changing(self) -> bool:
        """Whether a newer view than the active one is on its way, as far as this member knows."""
        core = self._core
        proposing = self.proposer.attempt is not None or bool(self.proposer.missing)
        return core.active is not core.view or self.voter.voted or proposing or self._frozen_at is not None

    # The data plane's side

    def frozen(self, now: float) -> None:
        """The data plane stopped by itself after a failure: it is owed a new epoch."""
        if self._frozen_at is None and not self._stale_word:
            self._frozen_at = now
            self._core.history.mark(Moment.HALTED, self._core.epoch + 1, now)

    def boundary(self, call: int, leavers: tuple[str, ...], now: float) -> None:
        """The data plane stopped by itself after ``call``, as its trailer asked."""
        core = self._core
        self.frozen(now)
        if not self._stale_word:
            self.proposer.boundary(call)
        for member_id in leavers:
            if core.view is not None and member_id in core.view:
                core.evidence.leaving.setdefault(member_id, now)
                core.history.found(Kind.LEAVE, member_id, f"leaves after call {call}", member_id, now)
        self.proposer.consider(now)

    @property
    def _stale_word(self) -> bool:
        """Whether what the data plane says of itself can only be about an older view.

        It speaks of a stop before it gives its report, and no view is installed without that: so until then its words are late.
        """
        return self._core.installed is not self._core.view

    def ready(self, view_id: str, now: float) -> None:
        """The data plane built the group of ``view_id``."""
        if self._core.installed is not None and self._core.installed.view_id == view_id:
            self._is_ready = True
            if self._core.installed is self._core.view:
                self._core.advance(News.BUILT)
            self._core.history.mark(Moment.READY, self._core.installed.epoch, now)
            self._send_ready(now)

    def _send_ready(self, now: float) -> None:
        core = self._core
        if core.installed is not None and self._ready_to is not None:
            self._ready_again = now + core.config.resend
            sender, address = self._ready_to
            core.reply(sender, address, Ready(core.installed.epoch, core.installed.view_id))

    # Time

    def tick(self, now: float) -> None:
        """Ask again, take up what had to wait, notice what does not move."""
        self.accusations.tick(now)
        self.voter.tick(now)
        core = self._core
        if self._waits_frozen and self._frozen_at is not None and now >= self._frozen_at + core.config.frozen_wait:
            self.accusations.accuse(core.member.id, EvidenceKind.FROZEN, "frozen without a view change", now)
        if self._is_ready and core.active is not core.installed and now >= self._ready_again:
            self._send_ready(now)
        if self._orphaned and now >= self._adopted_at + ORPHANED_AFTER:
            self._orphan_told = True
            self.accusations.accuse(core.member.id, EvidenceKind.FROZEN, "the driver of its view is not in it", now)
        self.proposer.tick(now)
        self.installer.tick(now)
        self.proposer.consider(now)
        self._watch_quorum(now)

    def deadline(self) -> float:
        """When ``tick`` is needed next."""
        core = self._core
        times = [self.accusations.deadline(), self.voter.deadline(), self.proposer.deadline()]
        times += [self.installer.deadline(), self._next_blocked_note]
        if self._is_ready and core.active is not core.installed:
            times.append(self._ready_again)
        if self._waits_frozen and self._frozen_at is not None:
            times.append(self._frozen_at + core.config.frozen_wait)
        if self._orphaned:
            times.append(self._adopted_at + ORPHANED_AFTER)
        return min(times)

    @property
    def _waits_frozen(self) -> bool:
        """Frozen, and nobody is known to do anything about it."""
        idle = self.proposer.attempt is None and not self.voter.voted
        return self._frozen_at is not None and idle and self._core.evidence.frozen_since is None

    @property
    def _orphaned(self) -> bool:
        """A driver that left with this very view cannot be missed as a member."""
        core = self._core
        if core.view is None or core.active is core.view or self._orphan_told or self.proposer.attempt is not None:
            return False
        return core.driver not in core.view and core.member.id in core.view

    # Drivers

    def found(self, view: View, now: float) -> None:
        """Make the first view: nobody else could, so nobody is asked."""
        own_id = self._core.member.id
        self.adopt(view, own_id, now)
        self.installer.begin(Installation(view, None, (0, own_id), {}, now), now)

    def _chosen(self, attempt: Attempt, now: float) -> None:
        assert attempt.proposal is not None
        core, parent = self._core, attempt.parent
        view = attempt.proposal.apply(parent)
        if core.config.policy is Policy.ANY and core.member.id not in view and core.member.id not in core.evidence.leaving:
            core.out(view)  # what it had to propose again leaves it out; the rest is for those who are in it
            return
        removed = attempt.proposal.removed
        told = tuple(parent.member(item.member_id) for item in removed if item.cause is not Cause.PROOF)
        self.adopt(view, self._core.member.id, now)
        self.installer.begin(self.installer.after(attempt, view, told, now), now)

    def on_accepted(self, sender: str, message: Accepted, now: float) -> None:
        """A vote: for the attempt under way, or late for the one that was chosen."""
        if self.proposer.attempt is not None:
            self.proposer.on_accepted(sender, message, now)
        else:
            self.installer.on_late_vote(sender, message, now)

    # Learner

    def on_flush_request(self, sender: str, address: Address, request: FlushRequest, now: float) -> None:
        """The driver of a chosen view, which we may not know yet, needs our report."""
        core = self._core
        self._chosen_is(None, request.delta, sender, sender, address, now)
        if core.view_id == request.delta.view_id and core.installed is not core.view:
            core.history.mark(Moment.ASKED, core.epoch, now)
            self.voter.on_flush_request(sender, address, request)

    def on_chosen(self, sender: str, address: Address, message: Chosen, now: float) -> None:
        """A view was chosen, which this member may not have known."""
        self._chosen_is(message.view, message.delta, message.driver, sender, address, now)

    def _chosen_is(
        self, whole: View | None, delta: Delta | None, driver: str, sender: str, address: Address, now: float
    ) -> None:
        core = self._core
        view = core.resolve(whole, delta)
        if view is None:
            self._pull_for(delta, sender, address)
        elif view.epoch <= core.epoch:
            return
        elif core.member.id not in view or not self._follows(view):
            self._left_out(view, now)
        elif not self._voted_out(view):
            self.adopt(view, driver, now)

    def _pull_for(self, delta: Delta | None, sender: str, address: Address) -> None:
        """Somebody means a view whose parent is not held here: ask him for the whole of it."""
        core = self._core
        if delta is not None and delta.epoch > core.epoch and delta.parent_id != core.view_id:
            core.reply(sender, address, core.pull())

    def _follows(self, view: View) -> bool:
        """Whether a newer ``view`` is of this member's chain. Under ``any`` only the next one certainly is."""
        mine = self._core.view
        if mine is None:
            return True
        if self._core.config.policy is Policy.ANY:
            return view.parent_id == mine.view_id
        return view.cluster == mine.cluster

    def _left_out(self, view: View, now: float) -> None:
        core = self._core
        if core.leaving or core.member.id in core.evidence.leaving:
            if core.view is not None and core.view.cluster == view.cluster:
                core.out(view)
        else:
            self.contact.left_out(view, now)

    def on_install(self, sender: str, address: Address, message: Install, now: float) -> None:
        """A chosen view with everybody's report: build its group."""
        core = self._core
        view = core.resolve(message.view, message.delta)
        if view is None:
            self._pull_for(message.delta, sender, address)
            return
        reports = message.reports.by_id(view)
        if reports is None or view.epoch < core.epoch:
            return
        if core.member.id not in view or (view.epoch > core.epoch and not self._follows(view)):
            self._left_out(view, now)
            return
        if core.installed is not None and core.installed.view_id == view.view_id:
            self._ready_to = (sender, address)
            if self._is_ready:
                self._send_ready(now)
            return
        if not self._installable(view, message.ballot, dict(reports)):
            return
        if view.epoch > core.epoch:
            self.adopt(view, sender, now)
        elif view.view_id != core.view_id:
            related = core.view is not None and core.view.cluster == view.cluster
            # What the dead had chosen is no fork: it dies with them.
            if related and core.config.policy is not Policy.ANY and sender not in core.gone:
                core.outbox.note(logging.CRITICAL, "fork", f"{sender} installs {view} against {core.view}")
            return
        core.advance(News.INSTALL)
        core.installed = core.view
        core.reasons = {reason.member_id: reason for reason in message.removed}
        core.history.installed(view, sender, message.ballot, message.removed, now)
        self._ready_to = (sender, address)
        self._is_ready = False
        core.outbox.emit(Installed(view, reports))

    def _voted_out(self, view: View) -> bool:
        """Whether this member has voted for a list without itself, and ``view`` is another of that epoch.

        Both may be chosen where whoever voted for one is dead (see ``evidence``). Then the one without us may be active, and is
        relied upon to be the only one: with us the other might have a quorum for its successor.
        """
        accepted = self.voter.accepted
        without_us = accepted is not None and any(item.member_id == self._core.member.id for item in accepted.removed)
        return without_us and view.epoch == self._core.epoch + 1

    def _installable(self, view: View, ballot: Ballot, reports: Mapping[str, bytes]) -> bool:
        """Not below a promised ballot, and not without exactly the report that we gave."""
        core = self._core
        if core.view is None:
            return True
        if self._voted_out(view):
            return False
        if view.epoch == core.epoch + 1 and (ballot < self.voter.promised or view.parent_id != core.view_id):
            return False
        if core.member.id in reports:
            return reports[core.member.id] == self.voter.report(view.epoch)
        # Without our report it must be the view that admitted (or founded with) us.
        return core.installed is None

    def on_activate(self, message: Activate, now: float) -> None:
        """Everybody is ready."""
        core = self._core
        if core.installed is None or core.installed.view_id != message.view_id or not self._is_ready:
            return
        if core.active is not core.installed and core.installed is core.view:
            core.advance(News.ACTIVATE)
            core.active = core.installed
            core.table.all_in(core.installed.epoch)
            core.history.activated(now)
            core.outbox.emit(Activated(core.installed))
            self.proposer.consider(now)

    def adopt(self, view: View, driver: str, now: float) -> None:
        """``view`` is the newest chosen one: vote on its successor from now on, and judge its members anew."""
        core = self._core
        parent = core.view
        self.contact.adopt(view, parent, now)
        core.follow(view)
        core.delta = Delta.between(parent, view)
        if parent is None:
            core.turn(Turn.FOUNDED if driver == core.member.id and not view.parent_id else Turn.ADMITTED)
        else:
            core.advance(News.NEWER)
        core.standing = STANDING.start
        core.driver = driver
        core.history.adopt(view, driver, now)
        self._adopted_at = now
        self._orphan_told = False
        core.table.adopt(view, core.applicants.contacts, now)
        core.crowded = len(core.table) >= core.config.mesh_limit
        core.gone = frozenset(key for key in core.evidence.proofs if key not in view)
        core.evidence.adopt(view, parent)
        stale = now - 2 * core.config.exclude_after
        core.acked = {key: time for key, time in core.acked.items() if key in view or time > stale}
        for member_id in view.ids:
            core.applicants.drop(member_id)
        self._frozen_at = None
        self._blocked_since, self._next_blocked_note = None, inf
        self.voter.adopt(view)
        self.proposer.adopt()
        self.installer.adopt(view)
        self.detection.adopt(view, now)
        core.outbox.emit(Tether(self._successors(view)))
        self.accusations.adopt(view, now)

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
        wanted = self._frozen or self.proposer.attempt is not None or core.evidence.due() is not None
        if not wanted and not self.installer.waits_for():
            self._blocked_since, self._next_blocked_note = None, inf
            return
        if self._blocked_since is None:
            self._blocked_since = now
            self._next_blocked_note = now + BLOCKED_EVERY
        blocked = now - self._blocked_since
        if now >= self._next_blocked_note:
            self._next_blocked_note = now + BLOCKED_EVERY
            core.outbox.note(logging.WARNING, "blocked", f"{self._blocked_text()} ({blocked:.0f} s so far)")
            self._ask_around()
        if core.leaving and blocked >= core.config.ready_timeout:  # for the others it is a crash from here on
            core.stop(LeftError("left the job on its own wish, though no quorum agreed"))
        elif blocked >= core.config.quorum_timeout:
            core.stop(QuorumLostError(f"{self._blocked_text()} (quorum_timeout={core.config.quorum_timeout:g} s is over)"))

    def _ask_around(self) -> None:
        """Perhaps the others went on without us, and those we know died since: later lifetimes at their addresses can tell."""
        core = self._core
        for member in core.view.members if core.view is not None else ():
            if member.id in core.evidence.proofs:
                core.outbox.send(member, core.pull())

    def under_way(self) -> dict[str, Any] | None:
        """The change that is not active yet, as plain values: its record so far, and what it waits for."""
        sketch = self._core.history.under_way()
        if sketch is None or self._core.view is None or self._core.stopped is not None:
            return None
        attempt = self.proposer.attempt
        waits = self.installer.waits_for() if attempt is None else attempt.waiting_for(self.proposer.discounted)
        waits = waits or self.proposer.missing
        return {**sketch, "waits_for": list(waits), "text": self._blocked_text()}

    @property
    def _frozen(self) -> bool:
        return self._frozen_at is not None or self.voter.voted

    def _blocked_text(self) -> str:
        core = self._core
        attempt = self.proposer.attempt
        if attempt is not None:
            known, waits = attempt.parent.members, attempt.waiting_for(self.proposer.discounted)
        else:
            known = core.view.members if core.view is not None else ()
            waits = self.installer.waits_for() or self.proposer.missing
        if not waits:  # a voter knows less than who proposed: at least it knows of whom it hears nothing
            mute = [self._named(member) for member in known if not core.table.trusted(member.id)]
            without = f"; it hears nothing of {', '.join(mute)}: bring their hosts back, or kill them there" if mute else ""
            return f"{'frozen, ' if self._frozen else ''}waiting for {core.coordinator()} to complete the next view{without}"
        names = ", ".join(self._named(member) for member in known if member.id in waits)
        return f"the next view waits for {names}; kill them where they hang, or bring their hosts back"

    def _named(self, member: Member) -> str:
        """A member, and whether it is dead (but not discountable: it may have voted before it died)."""
        return f"{member} (dead)" if member.id in self._core.evidence.proofs else str(member)
