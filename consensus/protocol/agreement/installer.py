"""The driver of a chosen view: it collects the reports, sends INSTALL, counts READY, and activates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf

from ...member import Address, Member
from ...messages import Accepted, Activate, EvidenceKind, FlushReply, FlushRequest, Install, Ready
from ...view import View
from ..state.change import Moment
from ..state.core import Core
from .attempt import Attempt
from .installation import PAUSE, Gain, Installation

LEAVERS_WAIT = 0.25
"""Seconds after the choice in which a leaver may finish its last call; then the old group is given up."""


class Installer:
    """Drives the installation of the view that this member had chosen, until it is active or superseded."""

    def __init__(
        self,
        core: Core,
        accuse: Callable[[str, EvidenceKind, str, float], None],
        late: Callable[[float], None],
    ) -> None:
        """``late(now)``: called when reports are waited for."""
        self._core = core
        self._accuse = accuse
        self._late = late
        self._installation: Installation | None = None

    def begin(self, installation: Installation, now: float) -> None:
        """Drive a view that was just chosen. If ACCEPT has asked for reports, late ones get ``settle_proof`` to arrive."""
        self._installation = installation
        installation.send_at(now + (self._core.config.settle_proof if installation.reports else 0.0))
        self._push(now)

    def adopt(self) -> None:
        """A new view is followed: the installation of an older one is over."""
        if self._installation is not None:
            self._installation.advance(Gain.NEWER)
            self._installation = None

    @property
    def may_tell(self) -> bool:
        """Whether others may learn of the chosen view: a leaver must keep its old group until INSTALL was sent."""
        return self._installation is None or self._installation.sent

    def waits_for(self) -> tuple[str, ...]:
        """The members for which the activation waits (empty: nothing under way)."""
        installation = self._installation
        if installation is None or installation.active:
            return ()
        return installation.missing_reports() or installation.missing_ready()

    def tick(self, now: float) -> None:
        """Ask again; accuse members that take too long."""
        installation = self._installation
        if installation is None or installation.active:
            return
        if self._core.evidence.harm:  # a call that waits for a gone member may never end
            installation.give_up_call()
        self._push(now)
        if self._in_vain(installation, now):
            self._core.out(installation.view)
        elif now >= installation.started + self._core.config.ready_timeout:
            what = "did not report" if not installation.complete else "did not build its group"
            detail = f"{what} within ready_timeout={self._core.config.ready_timeout:g} s"
            for member_id in self.waits_for():
                if member_id != self._core.member.id:
                    self._accuse(member_id, EvidenceKind.UNREADY, detail, now)

    def _in_vain(self, installation: Installation, now: float) -> bool:
        """Whether a driver that leaves with this view waits for the dead, or for members that went on without it."""
        if self._core.member.id in installation.view:
            return False
        dead = all(member_id in self._core.evidence.proofs for member_id in installation.view.ids)
        return dead or now >= installation.started + self._core.config.ready_timeout

    def deadline(self) -> float:
        """When ``tick`` is needed next."""
        return inf if self._installation is None else self._installation.next_send

    def _push(self, now: float) -> None:
        installation = self._installation
        assert installation is not None
        if not installation.complete:
            if now >= installation.next_send:
                installation.send_at(now + self._core.config.resend)
                self._send(installation, installation.missing_reports(), installation.flush_request())
                self._late(now)
        elif not installation.sent and installation.busy_leavers() and now < installation.started + LEAVERS_WAIT:
            installation.send_at(installation.started + LEAVERS_WAIT)
            self._late(now)  # the others should know of the view by now: if both die, they need no vote of the leaver
        elif not installation.sent:
            installation.advance(Gain.REPORTED)
            self._core.history.mark(Moment.SENT, installation.view.epoch, now)
            installation.send_at(now + PAUSE)
            self._install(installation, installation.view.ids)
            for member in installation.leavers:
                if member.id != self._core.member.id:
                    self._core.outbox.send(member, self._core.told())
        elif now >= installation.next_send:
            installation.sent_again(now)
            self._install(installation, installation.missing_ready())

    def _install(self, installation: Installation, to: tuple[str, ...]) -> None:
        """Send INSTALL, as a delta to holders of the parent: whole views to all would be n times O(n) bytes."""
        parent = installation.parent
        new = tuple(key for key in to if parent is None or key not in parent)
        if len(new) < len(to):
            known = frozenset(new)
            self._send(installation, tuple(key for key in to if key not in known), installation.message(whole=False))
        if new:
            self._send(installation, new, installation.message(whole=True))

    def whole(self, member_id: str) -> Install | None:
        """INSTALL with the whole view, for a joiner that has pulled; None before INSTALL was sent, and after activation."""
        installation = self._installation
        if installation is None or not installation.sent or installation.active or member_id not in installation.view:
            return None
        return installation.message(whole=True)

    def ask_again(self, sender: str) -> None:
        """Ask a member for its report that could make nothing of the first request (see ``ViewChange.ask_again``)."""
        installation = self._installation
        if installation is not None and installation.pulled(sender):
            self._send(installation, (sender,), installation.flush_request())

    def _send(self, installation: Installation, to: tuple[str, ...], message: Install | FlushRequest) -> None:
        for member_id in to:
            if member_id not in self._core.evidence.proofs:
                self._core.outbox.send(installation.view.member(member_id), message)

    def on_late_vote(self, sender: str, message: Accepted, now: float) -> None:
        """A vote that arrived after the quorum still brings its report."""
        installation = self._installation
        if installation is None or installation.parent is None:
            return
        if message.ballot == installation.ballot and message.parent_id == installation.parent.view_id:
            self._add_report(installation, sender, message.report, now)

    def on_flush_reply(self, sender: str, message: FlushReply, now: float) -> None:
        """A requested report arrived."""
        installation = self._installation
        if installation is not None and message.view_id == installation.view.view_id:
            self._add_report(installation, sender, message.report, now)

    def _add_report(self, installation: Installation, sender: str, report: bytes, now: float) -> None:
        concerned = sender in installation.view or (installation.parent is not None and sender in installation.parent)
        if concerned and not installation.sent:
            self._core.history.reported(sender, installation.view.epoch, now)
            installation.reported(sender, report)
            if installation.complete:
                self._push(now)

    def on_ready(self, sender: str, address: Address, message: Ready, now: float) -> None:
        """A member built its group."""
        installation = self._installation
        if installation is None or message.view_id != installation.view.view_id or sender not in installation.view:
            return
        installation.readied(sender)
        self._core.history.readied(sender, now)
        if installation.active:
            self._core.reply(sender, address, Activate(installation.view.epoch, installation.view.view_id))
        elif installation.all_ready:
            # Kept until the next view, to answer a Ready whose Activate was lost; a driver that leaves goes now.
            installation.advance(Gain.ALL_READY)
            self._core.history.mark(Moment.COMPLETE, installation.view.epoch, now)
            installation.send_at(inf)
            activate = Activate(installation.view.epoch, installation.view.view_id)
            for member in installation.view.members:
                self._core.outbox.send(member, activate)
            if self._core.member.id not in installation.view:
                self._core.out(installation.view)

    def after(self, attempt: Attempt, view: View, leavers: tuple[Member, ...], now: float) -> Installation:
        """The installation of the view that ``attempt`` has decided."""
        removed = () if attempt.proposal is None else self._core.history.reasons(attempt.proposal.removed)
        ended = self._core.evidence.ended
        return Installation(
            view,
            attempt.parent,
            attempt.ballot,
            dict(attempt.reports),
            now,
            after_call=attempt.after_call,
            leavers=leavers,
            removed=tuple(replace(reason, ended=reason.member_id in ended) for reason in removed),
            trail=self._core.ancestors,
        )
