"""One member's view changes: evidence in, one Paxos instance an epoch, freeze, install, activate.

Combines ``accusations`` (evidence), ``proposer``, ``voter`` and ``installer``. This module follows what was decided: it adopts
chosen views and installs them; ``blockage`` and ``abandonment`` notice a change that does not move.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any

from ...border import Activated, Expected, Installed
from ...config import Policy
from ...member import Address
from ...messages import (
    Accepted,
    Activate,
    Ballot,
    Chosen,
    EvidenceKind,
    FlushRequest,
    Forecast,
    Install,
    Ready,
    ViewRecord,
)
from ...view import Cause, Delta, View
from ..detection.accusations import Accusations
from ..detection.detection import Detection
from ..state.change import FindingKind, Moment
from ..state.core import Core
from ..state.effects import KeepConnections
from ..state.life import Turn
from ..state.standing import StandingEvent
from .abandonment import Abandonment
from .attempt import Attempt
from .blockage import Blockage
from .contact import Contact
from .installation import Installation
from .installer import Installer
from .proposer import Proposer
from .register import Register
from .voter import Voter


class ViewChange:
    """One member's way from view to view."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.detection: Detection  # see ``meet``
        self.contact: Contact
        self.voter = Voter(core)
        self.register = Register(core, self._recorded, self._not_recorded, lambda: self._needs_view)
        self.proposer = Proposer(core, self.voter, self._chosen, self.register.create)
        self.accusations = Accusations(core, self.proposer.consider, self._believes, self._look_around)
        self.installer = Installer(core, self.accusations.accuse, self._look_around)
        self._frozen_at: float | None = None
        self._frozen_wait = core.config.frozen_wait
        """Seconds from then until this member asks for a new epoch."""
        self._blockage = Blockage(core, self.proposer, self.installer, lambda: self._stands_still, self._look_after)
        self._ready_to: tuple[str, Address] | None = None
        self._ready_again = inf
        self._is_ready = False
        self._abandonment = Abandonment(core, self.proposer)

    def meet(self, detection: Detection, contact: Contact) -> None:
        """Set the parts that are made from parts of this one. Call once, before anything else."""
        self.detection, self.contact = detection, contact

    @property
    def _stands_still(self) -> bool:
        return self._frozen_at is not None or self.voter.voted

    def _look_after(self, member_id: str, now: float) -> None:
        self.accusations.accuse(member_id, EvidenceKind.HINT, "", now)
        self.detection.probe(member_id, now)

    def _believes(self, accused: str, source: str, now: float) -> bool:
        return self.detection.believes(accused, source, now)

    def ask_again(self, sender: str) -> None:
        """A member lacked the view before the one that is being decided or installed, and has just been told of it.

        Where a member dies shortly after another one, its driver asks for both changes at once: whoever has not heard of the
        first one drops the second request. Without this it would come again only after ``resend``.
        """
        self.proposer.ask_again(sender)
        self.installer.ask_again(sender)

    @property
    def changing(self) -> bool:
        """Whether a change from the active view to a newer one is under way, as far as this member knows."""
        core = self._core
        proposing = self.proposer.attempt is not None or bool(self.proposer.missing)
        return core.active is not core.view or self.voter.voted or proposing or self._frozen_at is not None

    # The data plane's side

    def frozen(self, now: float, suspects: tuple[str, ...] = ()) -> None:
        """The data plane stopped by itself after a failure: it is owed a new epoch.

        Usually a member has died, and the change without it comes soon. A member that blames itself knows better: its own group
        has ended, and it asks at once.
        """
        if self._frozen_at is None and not self._stale_word:
            self._frozen_at = now
            self._frozen_wait = 0.0 if self._core.member.id in suspects else self._core.config.frozen_wait
            self._core.history.mark(Moment.HALTED, self._core.epoch + 1, now)

    def boundary(self, call: int, leavers: tuple[str, ...], now: float) -> None:
        """The data plane stopped by itself after ``call``, because its trailer asked for it."""
        core = self._core
        self.frozen(now)
        if not self._stale_word:
            self.proposer.boundary(call)
        for member_id in leavers:
            if core.view is not None and member_id in core.view:
                core.evidence.leaving.setdefault(member_id, now)
                core.history.found(FindingKind.LEAVE, member_id, f"leaves after call {call}", member_id, now)
        self.proposer.consider(now)

    @property
    def _stale_word(self) -> bool:
        """Whether a stop that the data plane reports now can only be about an older view.

        The data plane reports a stop before it gives its flush report, and no view is installed without that report. So until
        the newest view is installed, a reported stop is an old one.
        """
        return self._core.installed is not self._core.view

    def ready(self, view_id: str, now: float) -> None:
        """The data plane built the group of ``view_id``."""
        if self._core.installed is not None and self._core.installed.view_id == view_id:
            self._is_ready = True
            if self._core.installed is self._core.view:
                self._core.advance(StandingEvent.BUILT)
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
        """Repeat requests, handle what had to wait, notice a change that does not move."""
        self.accusations.tick(now)
        self.voter.tick(now)
        core = self._core
        if self._waits_frozen and self._frozen_at is not None and now >= self._frozen_at + self._frozen_wait:
            self.accusations.accuse(core.member.id, EvidenceKind.FROZEN, "frozen without a view change", now)
        if self._is_ready and core.active is not core.installed and now >= self._ready_again:
            self._send_ready(now)
        if self._abandonment.due(now):
            self.accusations.accuse(core.member.id, EvidenceKind.FROZEN, "the driver of its view is not in it", now)
        self.proposer.tick(now)
        self.installer.tick(now)
        self.proposer.consider(now)
        self._blockage.tick(now)
        self.register.tick(now)

    def deadline(self) -> float:
        """When ``tick`` is needed next."""
        core = self._core
        first = min(
            self.accusations.deadline(),
            self.voter.deadline(),
            self.proposer.deadline(),
            self.installer.deadline(),
            self._blockage.deadline(),
            self._abandonment.deadline(),
            self.register.deadline(),
        )
        if self._is_ready and core.active is not core.installed:
            first = min(first, self._ready_again)
        if self._frozen_at is not None and self._waits_frozen:
            first = min(first, self._frozen_at + self._frozen_wait)
        return first

    @property
    def _waits_frozen(self) -> bool:
        """Whether the data plane is frozen, and no member is known to act on that."""
        idle = self.proposer.attempt is None and not self.voter.voted
        return self._frozen_at is not None and idle and self._core.evidence.frozen_since is None

    # Drivers

    def found(self, view: View, now: float) -> None:
        """Make the first view: no other member could, so there is no vote; a store, if used, takes the first founder."""
        if self.register.used:
            self.register.create(ViewRecord(view, self._core.member.id))
        else:
            self._found(view, now)

    def _found(self, view: View, now: float) -> None:
        own_id = self._core.member.id
        self.adopt(view, own_id, now)
        self.installer.begin(Installation(view, None, (0, own_id), {}, now), now)

    def _chosen(self, attempt: Attempt, now: float) -> None:
        assert attempt.proposal is not None
        core, parent = self._core, attempt.parent
        view = attempt.proposal.apply(parent)
        if core.config.policy is Policy.ANY and core.member.id not in view and core.member.id not in core.evidence.leaving:
            core.out(view)  # the value that it had to propose again excludes it; its members do the rest
            return
        removed = attempt.proposal.removed
        told = tuple(parent.member(item.member_id) for item in removed if item.cause is not Cause.PROOF)
        self.adopt(view, self._core.member.id, now)
        self.installer.begin(self.installer.after(attempt, view, told, now), now)

    def _look_around(self, now: float) -> None:
        self.detection.look_around(now)

    # The store

    @property
    def _needs_view(self) -> bool:
        """Whether this member waits for a newer view than it has, or for the activation of this one."""
        core = self._core
        idle = self._frozen_at is None and self.proposer.attempt is None and core.evidence.due() is None
        return core.active is not core.view or not idle

    def _recorded(self, record: ViewRecord, now: float) -> None:
        """A newer record stands: ours, which we install, or another member's."""
        core, view = self._core, record.view
        own = record.driver == core.member.id
        if core.view is None:
            if own and record.proposal is None:
                self._found(view, now)
            elif core.member.id in view:  # the member that founded with us or admitted us may be gone
                self.adopt(view, record.driver, now, record.trail)
        elif own and record.proposal is not None and view.parent_id == core.view.view_id:
            self.proposer.recorded(record, now)
        elif not self._follows(view, record.trail):
            core.out(view)
        else:
            self.adopt(view, record.driver, now, record.trail)

    def _not_recorded(self, now: float, until: float) -> None:
        if self._core.view is not None:
            self.proposer.refused(now, until)

    def on_accepted(self, sender: str, message: Accepted, now: float) -> None:
        """A vote: for the attempt under way, or late for the one that was chosen."""
        if self.proposer.attempt is not None:
            self.proposer.on_accepted(sender, message, now)
        else:
            self.installer.on_late_vote(sender, message, now)

    # Following a chosen view

    def on_flush_request(self, sender: str, address: Address, request: FlushRequest, now: float) -> None:
        """The driver of a chosen view (which we may not know yet) needs our report."""
        core = self._core
        if any(joiner.id == core.member.id for joiner in request.delta.joined):
            return  # it was for a member that has died at this address: a joiner has nothing to report on the view before
        self._chosen_is(Chosen(None, sender, request.delta), sender, address, now)
        if core.view_id == request.delta.view_id and core.installed is not core.view:
            core.history.mark(Moment.ASKED, core.epoch, now)
            self.voter.on_flush_request(sender, address, request)

    def on_chosen(self, sender: str, address: Address, message: Chosen, now: float) -> None:
        """A view was chosen, which this member may not have known."""
        self._chosen_is(message, sender, address, now)

    def _chosen_is(self, message: Chosen, sender: str, address: Address, now: float) -> None:
        core = self._core
        view = core.resolve(message.view, message.delta)
        if view is None:
            self._pull_for(message.delta, sender, address)
        elif view.epoch <= core.epoch:
            return
        elif self.register.used and message.driver == core.member.id:
            self.register.told(view, now)  # others have read that our own record stands: we have to install it
        elif not self._follows(view, message.trail):
            self._left_out(view, sender, address, now)
        elif self._voted_out(view):
            core.out(view)  # it never can take part in that: else all would wait for its report until they exclude it
        else:
            self.adopt(view, message.driver, now, message.trail)

    def _pull_for(self, delta: Delta | None, sender: str, address: Address) -> None:
        """A message is about a view whose parent this member does not hold: pull the whole view from the sender."""
        core = self._core
        if delta is not None and delta.epoch > core.epoch and delta.parent_id != core.view_id:
            core.reply(sender, address, core.pull())

    def _follows(self, view: View, trail: tuple[str, ...]) -> bool:
        """Whether this member is in the newer ``view``, and that is of its chain.

        Under ``any`` a chain may become two: there this member's own view must be known to come before it.
        """
        core = self._core
        if core.member.id not in view:
            return False
        if core.view is None:
            return True
        if core.config.policy is Policy.ANY:
            return core.view.view_id in (view.parent_id, *trail)
        return view.cluster == core.view.cluster and core.descends(view, trail)

    def _left_out(self, view: View, sender: str, address: Address, now: float) -> None:
        core = self._core
        related = core.view is not None and core.view.cluster == view.cluster
        if self.register.used and not related:
            self.register.look()  # the store says which of two clusters goes on
        elif related and core.member.id in view and core.config.policy is not Policy.ANY:
            if sender not in core.gone:
                self.contact.introduce(address, now)  # the view that the sender follows can never be active
        elif core.leaving or core.member.id in core.evidence.leaving:
            if related:
                core.out(view)
        else:
            self.contact.left_out(view, now)

    def on_forecast(self, message: Forecast) -> None:
        """The coordinator is about to propose a view: the data plane may prepare for it; there is no other effect."""
        core, view = self._core, self._core.resolve(message.view, message.delta)
        next_one = core.view is None or (core.active is core.view and view is not None and view.parent_id == core.view_id)
        if view is not None and core.member.id in view and next_one:
            core.outbox.emit(Expected(view))

    def on_install(self, sender: str, address: Address, message: Install, now: float) -> None:
        """A chosen view with all reports: build its group."""
        core = self._core
        view = core.resolve(message.view, message.delta)
        if view is None:
            self._pull_for(message.delta, sender, address)
            return
        reports = message.reports.by_id(view)
        if reports is None or view.epoch < core.epoch:
            return
        if core.member.id not in view or (view.epoch > core.epoch and not self._follows(view, message.trail)):
            self._left_out(view, sender, address, now)
            return
        if core.installed is not None and core.installed.view_id == view.view_id:
            self._ready_to = (sender, address)
            if self._is_ready:
                self._send_ready(now)
            return
        if not self._installable(view, message.ballot, reports):
            return
        if view.epoch > core.epoch:
            self.adopt(view, sender, now, message.trail)
        elif view.view_id != core.view_id:
            related = core.view is not None and core.view.cluster == view.cluster
            if related and core.config.policy is not Policy.ANY and sender not in core.gone:
                self.contact.introduce(address, now)  # only one of the two can ever be active
            return
        core.install(message.removed)
        core.history.installed(sender, message.ballot, message.removed, now)
        self._ready_to = (sender, address)
        self._is_ready = False
        ended = any(reason.ended for reason in core.reasons.values())
        core.outbox.emit(Installed(view, reports, ended))

    def _voted_out(self, view: View) -> bool:
        """Whether this member has voted for a view without itself, and ``view`` is another one of that epoch.

        Both may be chosen if all that voted for one are dead (see ``evidence``). Then the view without us may be active, and
        its members rely on being the only ones: with our vote ``view`` might have a quorum for its successor.
        """
        accepted = self.voter.accepted
        without_us = accepted is not None and any(item.member_id == self._core.member.id for item in accepted.removed)
        return without_us and view.epoch == self._core.epoch + 1

    def _installable(self, view: View, ballot: Ballot, reports: Mapping[str, bytes]) -> bool:
        """Whether the ballot is not below a promised one, and the reports hold exactly the report that we gave."""
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
        """All members are ready."""
        core = self._core
        if core.installed is None or core.installed.view_id != message.view_id or not self._is_ready:
            return
        if core.active is not core.installed and core.installed is core.view:
            core.activate()
            core.table.all_in(core.installed.epoch)
            core.history.activated(now)
            core.outbox.emit(Activated(core.installed))
            if core.driver == core.member.id:
                self.register.clean(core.installed)
            self.proposer.consider(now)

    def adopt(self, view: View, driver: str, now: float, trail: tuple[str, ...] = ()) -> None:
        """``view`` is the newest chosen one: vote on its successor from now on, and judge its members again."""
        core = self._core
        parent = core.view
        self.contact.adopt(view, parent, now)
        core.follow(view, trail, driver=driver)
        if parent is None:
            core.turn(Turn.FOUNDED if driver == core.member.id and not view.parent_id else Turn.ADMITTED)
        core.history.adopt(view, driver, now)
        self._abandonment.adopt(now)
        core.table.adopt(view, core.applicants.contacts, now)
        core.judge_anew(view, now)
        core.evidence.adopt(view, parent)
        core.applicants.admitted(view)
        self._frozen_at = None
        self._blockage.adopt()
        self.voter.adopt(view)
        self.proposer.adopt()
        self.installer.adopt()
        self.detection.adopt(view, now)
        core.outbox.emit(KeepConnections(core.successors()))
        self.register.adopt(now)
        self.accusations.adopt(view, now)

    def under_way(self) -> dict[str, Any] | None:
        """The change that is not active yet, as plain values: its record so far, and the members that it waits for."""
        sketch = self._core.history.under_way()
        if sketch is None or self._core.view is None or self._core.stopped is not None:
            return None
        return {**sketch, "waits_for": list(self._blockage.waits_for()), "text": self._blockage.text()}
