"""A member's vote and its flush report: the answering side of a view change.

Accepting a proposal freezes the data plane; the vote is sent with the report of what was finished. ``acceptor`` holds the
rules, ``flush`` the reports; this module connects both to messages.
"""

from __future__ import annotations

from math import inf

from ...member import Address
from ...messages import Accept, Accepted, FlushReply, FlushRequest, Prepare, Promised
from ...view import Proposal, View
from ..state.change import Moment
from ..state.core import Core
from .acceptor import NO_BALLOT, Acceptor, PendingAccept
from .flush import FlushReports


class Voter:
    """Answers PREPARE, ACCEPT and requests for a report."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._acceptor: Acceptor | None = None
        self._flush = FlushReports(core.outbox)

    @property
    def voted(self) -> bool:
        """Whether a successor of the current view was accepted here."""
        return self._acceptor is not None and self._acceptor.accepted is not None

    @property
    def accepted(self) -> Proposal | None:
        """The value that this member accepted as the successor of the current view."""
        return None if self._acceptor is None else self._acceptor.accepted

    @property
    def promised(self) -> tuple[int, str]:
        """The highest ballot seen for the next epoch."""
        return NO_BALLOT if self._acceptor is None else self._acceptor.promised

    def report(self, epoch: int) -> bytes | None:
        """The report given for ``epoch``, None if there is none."""
        return self._flush.get(epoch)

    def adopt(self, view: View) -> None:
        """Vote on the successor of ``view`` from now on."""
        self._acceptor = Acceptor(self._core.config, self._core.member.id, view)
        self._core.shun(self._acceptor.shunned)
        self._flush.forget(view.epoch)

    def tick(self, now: float) -> None:
        """Handle the Accept that had to wait until a lease ran out."""
        acceptor = self._acceptor
        if acceptor is not None and acceptor.deferred is not None and now >= acceptor.deferred.until:
            pending = acceptor.deferred
            acceptor.resume()
            self.on_accept(pending.sender, pending.address, pending.request, now)

    def deadline(self) -> float:
        """When ``tick`` is needed next."""
        deferred = self._acceptor.deferred if self._acceptor is not None else None
        return inf if deferred is None else deferred.until

    def on_prepare(self, sender: str, address: Address, message: Prepare) -> None:
        """Phase 1a."""
        acceptor = self._acceptor_for(sender, address, message)
        if acceptor is not None:
            self._core.reply(sender, address, acceptor.prepare(message))

    def on_accept(self, sender: str, address: Address, message: Accept, now: float) -> None:
        """Phase 2a: vote if ballot and lease allow, freeze, and answer with the report."""
        core = self._core
        acceptor = self._acceptor_for(sender, address, message)
        if acceptor is None:
            return
        if message.ballot < acceptor.promised:
            refusal = Promised(message.epoch, message.parent_id, message.ballot, acceptor.promised)
            core.reply(sender, address, refusal)
            return
        if acceptor.accepted_ballot != message.ballot:
            until = acceptor.wait_for(message.proposal, core.evidence.proofs, core.acked, now)
            if until > now:
                acceptor.defer(PendingAccept(sender, address, message, until))
                return
            acceptor.accept(message)
            core.history.mark(Moment.ASKED, message.epoch, now)

        def vote(report: bytes) -> Accepted:
            return Accepted(message.epoch, message.parent_id, message.ballot, report)

        answer = self._flush.request(message.epoch, message.after_call, sender, address, vote)
        if answer is not None:
            core.reply(sender, address, answer)

    def _acceptor_for(self, sender: str, address: Address, message: Prepare | Accept) -> Acceptor | None:
        """The acceptor for this request; None if the sender or we must catch up first, or the request is not legitimate."""
        core = self._core
        if core.view is None or message.epoch > core.epoch + 1:
            core.reply(sender, address, core.pull())
            return None
        if message.epoch <= core.epoch:
            core.reply(sender, address, core.told(message.parent_id))
            return None
        acceptor = self._acceptor
        if acceptor is None or message.parent_id != core.view_id or not acceptor.legitimate(sender, message.ballot):
            return None
        return acceptor

    def on_flush_request(self, sender: str, address: Address, request: FlushRequest) -> None:
        """The driver of the chosen view (already adopted by the caller) needs our report. This is no vote: we may have none."""

        def give(report: bytes) -> FlushReply:
            return FlushReply(request.delta.epoch, request.delta.view_id, report)

        answer = self._flush.request(request.delta.epoch, request.after_call, sender, address, give)
        if answer is not None:
            self._core.reply(sender, address, answer)

    def flushed(self, epoch: int, report: bytes) -> None:
        """The data plane stopped for ``epoch``; its report answers every ballot of that epoch. Older reports are not needed."""
        if epoch < self._core.epoch:
            return
        for sender, address, answer in self._flush.store(epoch, report):
            self._core.reply(sender, address, answer)
