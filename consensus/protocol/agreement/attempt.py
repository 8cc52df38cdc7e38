"""One proposer's try to decide the next epoch: single-decree Paxos (Lamport, Paxos Made Simple).

Round 0 skips PREPARE and belongs to the parent view's most senior member alone. Every other proposer first learns what may
already be chosen, and proposes that again. Reports come with the votes; a quorum of votes decides, but only the reports of
*all* continuing members complete a change (see ``installation``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Set as AbstractSet
from enum import Enum

from ...config import Policy
from ...messages import Accept, Ballot, Prepare, Promise
from ...transitions import Table
from ...view import Proposal, View
from ..state.quorum import is_everybody, is_quorum, missing

AGAIN = 3
"""How often a member that pulls is asked again at once: it may be unable to follow what it is told, and would pull for ever."""


class AttemptPhase(Enum):
    """The phase of an attempt; the last three end it. After OUTBID the proposer starts over with a higher ballot.

    Under ``storage`` ACCEPT is the creation of the record, and the attempt is outbid if that may have failed.
    """

    PREPARE = "prepare"
    ACCEPT = "accept"
    CHOSEN = "chosen"
    OUTBID = "outbid"
    OVERTAKEN = "overtaken"


class Outcome(Enum):
    """The events that move an attempt on."""

    PROMISED = "a quorum promised, or round 0"
    ACCEPTED = "a quorum accepted"
    REFUSED = "somebody promised a higher ballot"
    STALE = "a newcomer died since the votes"
    NEWER = "a newer view is chosen"


ATTEMPT: Table[AttemptPhase, Outcome] = Table(
    "attempt",
    AttemptPhase.PREPARE,
    {
        AttemptPhase.PREPARE: {
            Outcome.PROMISED: AttemptPhase.ACCEPT,
            Outcome.REFUSED: AttemptPhase.OUTBID,
            Outcome.NEWER: AttemptPhase.OVERTAKEN,
        },
        AttemptPhase.ACCEPT: {
            Outcome.ACCEPTED: AttemptPhase.CHOSEN,
            Outcome.REFUSED: AttemptPhase.OUTBID,
            Outcome.STALE: AttemptPhase.OUTBID,
            Outcome.NEWER: AttemptPhase.OVERTAKEN,
        },
    },
)


def promising(view: View, policy: Policy, present: AbstractSet[str], discounted: AbstractSet[str]) -> bool:
    """Whether the answers of ``present`` would be a quorum. An attempt without a quorum is safe, but leaves votes for its value
    behind; that value would later exclude members that came back meanwhile.
    """
    return policy is Policy.ANY or is_quorum(view, present, discounted)


class Attempt:
    """A ballot for the successor of ``parent``, decided by the rules of ``policy``."""

    def __init__(
        self, parent: View, ballot: Ballot, after_call: int | None, now: float, policy: Policy = Policy.MAJORITY
    ) -> None:
        self.parent = parent
        self._policy = policy
        self.epoch = parent.epoch + 1
        self.ballot = ballot
        self.after_call = after_call
        self.voting_since = now
        """When the acceptors were first asked to accept."""
        self.next_send = now
        self.phase = ATTEMPT.start
        self.proposal: Proposal | None = None
        self.promises: dict[str, Promise] = {}
        self.reports: dict[str, bytes] = {}
        self._pulls = Counter[str]()

    def propose(self, proposal: Proposal) -> None:
        """Enter ACCEPT with ``proposal``, unless a promise names a value that may be chosen already."""
        best: Ballot | None = None
        for promise in self.promises.values():
            if promise.accepted is None or promise.accepted_ballot is None:
                continue
            if best is None or promise.accepted_ballot > best:
                best, proposal = promise.accepted_ballot, promise.accepted
        self.proposal = proposal
        self.advance(Outcome.PROMISED)

    def vote_from(self, moment: float) -> None:
        """A quorum has promised: from ``moment`` on the acceptors are asked to accept."""
        self.voting_since = moment

    def send_at(self, moment: float) -> None:
        """At ``moment`` ask again the members that have not answered."""
        self.next_send = moment

    def give_up_call(self) -> None:
        """Let members freeze at once: the call that they were to end first may never end."""
        self.after_call = None

    def advance(self, outcome: Outcome) -> None:
        """Enter the next phase, or end."""
        self.phase = ATTEMPT.after(self.phase, outcome)

    def request(self) -> Prepare | Accept:
        """The request to the acceptors in this phase."""
        if self.proposal is None:
            return Prepare(self.epoch, self.parent.view_id, self.ballot)
        return Accept(self.epoch, self.parent.view_id, self.ballot, self.proposal, self.after_call)

    def pulled(self, member_id: str) -> bool:
        """A member was told of the parent. True if it is to be asked again at once."""
        waits = self.phase in (AttemptPhase.PREPARE, AttemptPhase.ACCEPT) and member_id not in self.responders
        self._pulls[member_id] += waits
        return waits and self._pulls[member_id] <= AGAIN

    @property
    def responders(self) -> AbstractSet[str]:
        """Ids of the members that have answered in this phase."""
        return self.promises.keys() if self.phase is AttemptPhase.PREPARE else self.reports.keys()

    def decided(self, discounted: frozenset[str]) -> bool:
        """Whether the answers so far are a quorum. Under ``any`` the members that the value removes do not count either; under
        ``storage`` no answers decide.
        """
        if self._policy is Policy.STORAGE:
            return False
        if self._policy is Policy.ANY:
            removed = () if self.proposal is None else self.proposal.removed
            return is_everybody(self.parent, self.responders, discounted.union(item.member_id for item in removed))
        return is_quorum(self.parent, self.responders, discounted)

    def without(self, discounted: frozenset[str]) -> tuple[str, ...]:
        """Ids of the discounted members that have not answered."""
        return tuple(key for key in self.parent.ids if key in discounted and key not in self.responders)

    def waiting_for(self, discounted: frozenset[str]) -> tuple[str, ...]:
        """Ids of the members whose answers are missing."""
        if self._policy is Policy.STORAGE:
            return ()
        return missing(self.parent, self.responders, discounted)
