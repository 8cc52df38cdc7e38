"""A voter in the Paxos instance of one epoch, with one rule beyond Paxos: it honours the leases that its acks grant.

It accepts a value that excludes X without proof or X's own request only if it has acked nothing from X for T_excl. From the
first such request on it never acks X again in this epoch. So a member that was acked within T_excl knows that the acking member
has not voted it out; discounting relies on that (see ``evidence``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...config import Config
from ...member import Address
from ...messages import Accept, Ballot, Prepare, Promise, Promised
from ...view import Cause, Proposal, Removal, View
from ..state.evidence import Proof
from ..state.member_table import NEVER

NO_BALLOT: Ballot = (-1, "")


@dataclass(frozen=True, slots=True)
class PendingAccept:
    """An Accept that waits until the lease of an excluded member runs out (at ``until``)."""

    sender: str
    address: Address
    request: Accept
    until: float


class Acceptor:
    """Votes for the successor of ``view``. Replaced by a new one at each chosen view."""

    def __init__(self, config: Config, own_id: str, view: View) -> None:
        self._config = config
        self._own_id = own_id
        self.view = view
        self.epoch = view.epoch + 1
        self.promised: Ballot = NO_BALLOT
        self.accepted_ballot: Ballot | None = None
        self.accepted: Proposal | None = None
        self.shunned: set[str] = set()
        """The members that this one does not ack any more in this epoch."""
        self.deferred: PendingAccept | None = None

    def prepare(self, request: Prepare) -> Promise | Promised:
        """Phase 1b."""
        if request.ballot < self.promised:
            return Promised(self.epoch, self.view.view_id, request.ballot, self.promised)
        self.promised = request.ballot
        return Promise(self.epoch, self.view.view_id, request.ballot, self.accepted_ballot, self.accepted)

    def legitimate(self, sender: str, ballot: Ballot) -> bool:
        """Whether the ballot is the sender's own; round 0 is legitimate only for the most senior member."""
        return sender in self.view and ballot[1] == sender and (ballot[0] > 0 or sender == self.view.members[0].id)

    def wait_for(self, proposal: Proposal, proofs: Mapping[str, Proof], acked: Mapping[str, float], now: float) -> float:
        """Until when leases forbid accepting ``proposal`` (``now``: they do not). Shuns the excluded members."""
        until = now
        for removal in proposal.removed:
            if self._needs_lease(removal, proofs):
                self.shunned.add(removal.member_id)
                until = max(until, acked.get(removal.member_id, NEVER) + self._config.exclude_after)
        return until

    def _needs_lease(self, removal: Removal, proofs: Mapping[str, Proof]) -> bool:
        # The rest of a broken cohort cannot act without the lost member, in whatever view, so nobody needs to wait for it.
        if removal.cause in (Cause.PROOF, Cause.LEFT, Cause.COHORT) or removal.member_id == self._own_id:
            return False
        return removal.member_id not in proofs

    def defer(self, pending: PendingAccept) -> None:
        """A lease still forbids ``pending``: keep it, in place of an earlier one."""
        self.deferred = pending

    def resume(self) -> None:
        """Clear the deferred Accept, which is now handled again."""
        self.deferred = None

    def accept(self, request: Accept) -> None:
        """Phase 2b: take the value (the caller has checked ballot and lease)."""
        self.promised = request.ballot
        self.accepted_ballot = request.ballot
        self.accepted = request.proposal
