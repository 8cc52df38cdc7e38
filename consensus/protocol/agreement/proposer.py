"""The coordinator's decision to propose: when, what, and with which ballot.

It waits a moment for more evidence (``evidence.due``), holds joins back until a call boundary, and proposes the difference
between the current view and the next. Safety never depends on which member believes that it is the coordinator.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from ...border import BoundaryRequest
from ...config import Policy
from ...member import whole_cohorts
from ...messages import Accepted, Ballot, Forecast, Promise, Promised, ViewRecord
from ...progress import NOWHERE
from ...view import Delta, Proposal, View
from ..state.change import Moment
from ..state.core import Core
from ..state.quorum import is_quorum
from .acceptor import NO_BALLOT
from .attempt import Attempt, AttemptPhase, Outcome, promising
from .voter import Voter

SMALLER_WAITS = 0.5
"""Seconds for which less than a majority leaves the decision to the others, if a store decides."""

STANDS_IN = 5.0
"""Seconds for which a coordinator may leave a due view unrecorded before the next in seniority tries, and then the one after
it: perhaps only the coordinator cannot reach the store. The store takes only the first record.
"""


class Proposer:
    """Proposes views. Calls ``chosen(attempt, now)`` with each decided attempt."""

    def __init__(
        self, core: Core, voter: Voter, chosen: Callable[[Attempt, float], None], record: Callable[[ViewRecord], None]
    ) -> None:
        """``record``: asks the store to record a view (policy ``storage``); the answer comes by ``recorded`` or ``refused``."""
        self._core = core
        self._voter = voter
        self._chosen = chosen
        self._record = record
        self.attempt: Attempt | None = None
        self._round = -1
        self._retry_at = -inf
        self._ripe_at = -inf
        """From then on enough members are present to decide; inf: too few are."""
        self.missing: tuple[str, ...] = ()
        """The members that have to come back, or be proven dead in time, before this member proposes anything."""
        self._minor_since: float | None = None
        """Under ``storage``: since when less than a majority is present."""
        self._stands_in_at = inf
        """Under ``storage``: when this member proposes in the coordinator's place."""
        self._boundary_requested_at: float | None = None
        self._boundary: int | None = None

    def adopt(self) -> None:
        """Start over for the successor of a new view."""
        if self.attempt is not None and self.attempt.phase is not AttemptPhase.CHOSEN:
            self.attempt.advance(Outcome.NEWER)
        self.attempt = None
        self._round = -1
        self._retry_at = -inf
        self._ripe_at = -inf
        self.missing = ()
        self._minor_since = None
        self._stands_in_at = inf
        self._boundary = None
        self._drop_boundary_request()

    # When

    def boundary(self, call: int) -> None:
        """The data plane stopped after ``call``: joins and leaves that wait for a boundary may be proposed now."""
        self._boundary = call

    def tick(self, now: float) -> None:
        """Ask again the members that have not answered."""
        if self.attempt is not None and now >= self.attempt.next_send:
            self._send(self.attempt, now)

    def deadline(self) -> float:
        """When ``tick`` or ``consider`` is needed next."""
        if self.attempt is not None:
            return self.attempt.next_send
        wanted_at = self._wanted_at() if self._core.coordinates() else max(self._stands_in_at, self._ripe_at)
        return max(wanted_at, self._retry_at)

    def _wanted_at(self) -> float:
        """When the coordinator wants to propose next, by the rules of ``consider``."""
        if self._last_to_leave:
            return inf
        due = self._core.evidence.due(unstable=self._core.unstable)
        if due is not None:
            return inf if self._ripe_at == inf else max(due, self._ripe_at)  # members come back by packets
        if self._boundary is not None:
            return -inf
        if self._boundary_requested_at is not None:
            # Not in the middle of a call: the call ends by itself, and the next packet or round looks again.
            return inf if self._core.progress.busy else self._boundary_requested_at + self._patience
        return inf

    def consider(self, now: float) -> None:
        """Propose, if this member coordinates, there is a reason, and it has waited long enough for more evidence."""
        core = self._core
        if core.view is None or core.stopped is not None or now < self._retry_at:
            return
        if self._leaves_the_dead:
            core.close()
            return
        if self.attempt is not None:  # it may have waited only for a proof
            self._count(self.attempt, now)
            return
        if core.member.id not in core.view or not core.coordinates():
            self._drop_boundary_request()
            self._stand_in(now)
            return
        if self._last_to_leave:  # not before the view without the others is active: until then they do not know it
            if core.active is core.view or core.evidence.frozen_since is not None:  # or its driver is gone
                core.close()
            return
        due = core.evidence.due(unstable=core.unstable)
        if due is not None:
            if now >= due and self._ripe(now):
                self._begin(now)
        elif self._boundary is not None:
            self._begin(now)
        elif core.active is core.view:
            self._consider_joins(now)

    def _stand_in(self, now: float) -> None:
        """Propose in place of a coordinator that does not, if the store answers this member."""
        core = self._core
        wanted = core.config.policy is Policy.STORAGE and core.evidence.due() is not None and not core.store_away
        ids = [member.id for member in core.seniors()] if wanted else []
        if core.member.id not in ids:
            self._stands_in_at = inf
        elif self._stands_in_at == inf:
            self._stands_in_at = now + STANDS_IN * ids.index(core.member.id)
        elif now >= self._stands_in_at and self._ripe(now):
            self._begin(now)

    @property
    def _last_to_leave(self) -> bool:
        """Whether this member leaves and nobody is left to ask."""
        core = self._core
        alone = core.view is not None and len(core.view) == 1
        return alone and (core.leaving or core.member.id in core.evidence.leaving)

    def _ripe(self, now: float) -> bool:
        """Whether enough members are present to decide; after a time of too few, others get a round of pings to come back."""
        core = self._core
        assert core.view is not None
        present = core.present(now)
        if core.config.policy is Policy.STORAGE:
            return self._first_come(core.view, present, now)
        if not promising(core.view, core.config.policy, present, self.discounted):
            self._ripe_at = inf
            self.missing = tuple(key for key in core.view.ids if key not in present and key not in self.discounted)
        elif self._ripe_at == inf:
            self._ripe_at = now + core.config.contact_interval + core.config.silence_settle
            self.missing = ()
        return now >= self._ripe_at

    def _first_come(self, view: View, present: frozenset[str], now: float) -> bool:
        """Of two sides of a partition either may record the next view: the smaller waits, so that the larger is first."""
        if is_quorum(view, present, frozenset(self._core.evidence.proofs)):
            self._minor_since, self._ripe_at = None, -inf
        elif self._minor_since is None:
            self._minor_since, self._ripe_at = now, now + SMALLER_WAITS
        return now >= self._ripe_at

    def _consider_joins(self, now: float) -> None:
        core = self._core
        full = core.view is not None and len(core.view) >= core.config.room
        if full or not core.applicants.any_admissible(now):
            self._drop_boundary_request()
        elif self._boundary_requested_at is None:
            self._boundary_requested_at = now
            core.history.mark(Moment.BOUNDARY_REQUESTED, core.epoch + 1, now)
            core.outbox.emit(BoundaryRequest(True))
            self._foretell(core.view, now)
        elif now >= self._boundary_requested_at + self._patience and not core.progress.busy:
            self._begin(now)

    def _foretell(self, parent: View | None, now: float) -> None:
        """Send the expected next view to its members, so that they build its group while the call goes on.

        Not before the first call: then nobody waits for the group.
        """
        core = self._core
        if parent is None or core.progress == NOWHERE:
            return
        view = self._proposal(parent, now).apply(parent)
        known, new = Forecast(None, Delta.between(parent, view)), Forecast(view, None)
        for member in view.members:
            core.outbox.send(member, known if member.id in parent else new)

    @property
    def _patience(self) -> float:
        """Seconds that joins wait for a call to end. Less before the first call, when there is nothing to interrupt: a starting
        job doubles with each view, and should not take a second each time.
        """
        config = self._core.config
        return min(config.boundary_wait, config.silence_settle) if self._core.progress == NOWHERE else config.boundary_wait

    def _drop_boundary_request(self) -> None:
        if self._boundary_requested_at is not None:
            self._boundary_requested_at = None
            self._core.history.unmark(Moment.BOUNDARY_REQUESTED)
            self._core.outbox.emit(BoundaryRequest(False))

    # What

    def _begin(self, now: float) -> None:
        core = self._core
        assert core.view is not None
        if core.config.policy is Policy.STORAGE:
            self._begin_record(core.view, now)
            return
        promised = self._voter.promised
        senior = core.view.members[0].id == core.member.id
        if senior and self._round < 0 and promised == NO_BALLOT:
            self._round = 0
        else:
            self._round = max(self._round, promised[0], 0) + 1
        ballot: Ballot = (self._round, core.member.id)
        attempt = self.attempt = Attempt(core.view, ballot, self._after_call, now, core.config.policy)
        core.history.proposed(ballot, now)
        if self._round == 0:
            attempt.propose(self._proposal(attempt.parent, now))
        self._send(attempt, now)

    def _begin_record(self, parent: View, now: float) -> None:
        """Ask the store to record the next view. There are no ballots: the store takes one record an epoch."""
        core, own_id = self._core, self._core.member.id
        attempt = self.attempt = Attempt(parent, (0, own_id), self._after_call, now, core.config.policy)
        attempt.send_at(inf)
        core.history.proposed(attempt.ballot, now)
        proposal = self._proposal(parent, now)
        attempt.propose(proposal)
        trail = (core.view_id, *core.ancestors)
        self._record(ViewRecord(proposal.apply(parent), own_id, proposal, attempt.after_call, trail))

    def recorded(self, record: ViewRecord, now: float) -> None:
        """A record of this member stands: its newest proposal, or one that it had given up."""
        assert record.proposal is not None and self._core.view is not None
        attempt = self.attempt
        if attempt is None or attempt.proposal != record.proposal:
            attempt = Attempt(self._core.view, (0, self._core.member.id), record.after_call, now, self._core.config.policy)
            attempt.propose(record.proposal)
        attempt.advance(Outcome.ACCEPTED)
        self._core.history.decided((), ())
        self._chosen(attempt, now)

    def refused(self, now: float, until: float) -> None:
        """The record may not stand: propose again at ``until``, for the reasons of that time."""
        if self.attempt is not None:
            self.attempt.advance(Outcome.REFUSED)
            self.attempt = None
        self._retry_at = until
        self.consider(now)

    def _proposal(self, parent: View, now: float) -> Proposal:
        core = self._core
        removed = parent.with_cohorts(core.evidence.removals(parent))
        if len(removed) == len(parent):  # all leave: the last one needs no successor
            removed = tuple(removal for removal in removed if removal.member_id != core.member.id)
        kept = len(parent) - len(removed)
        # Not more joiners than kept members: stalled ones could block the next change (each has acked us a moment ago).
        room = max(0, min(kept, core.config.room - kept))
        joined = [member for member in core.applicants.admissible(now) if member.id not in parent]
        return Proposal(parent.view_id, parent.epoch + 1, removed, tuple(whole_cohorts(joined[:room])))

    @property
    def _after_call(self) -> int | None:
        evidence = self._core.evidence
        if self._boundary is None:
            return evidence.last_call
        return None if evidence.harm else self._boundary

    def _send(self, attempt: Attempt, now: float) -> None:
        if self._after_call is None:  # some member will not end that call
            attempt.give_up_call()
        attempt.send_at(now + self._core.config.resend)
        request = attempt.request()
        for member in attempt.parent.members:
            if member.id not in attempt.responders and member.id not in self._core.evidence.proofs:
                self._core.outbox.send(member, request)

    def ask_again(self, sender: str) -> None:
        """Ask a member for its answer that could make nothing of the first request (see ``ViewChange.ask_again``)."""
        attempt = self.attempt
        if attempt is None or attempt.next_send == inf or sender not in attempt.parent or sender in self._core.evidence.proofs:
            return
        if attempt.pulled(sender):
            self._core.outbox.send(attempt.parent.member(sender), attempt.request())

    # Answers

    def on_promise(self, sender: str, message: Promise, now: float) -> None:
        """Phase 1b arrived."""
        attempt = self._matching(message)
        if attempt is not None and attempt.phase is AttemptPhase.PREPARE and sender in attempt.parent:
            attempt.promises[sender] = message
            self._count(attempt, now)

    def on_promised(self, message: Promised, now: float) -> None:
        """A voter promised a higher ballot: start over above it, after a random pause."""
        attempt = self._matching(message)
        if attempt is not None:
            attempt.advance(Outcome.REFUSED)
            self._round = max(self._round, message.promised[0])
            self.attempt = None
            self._retry_at = now + self._core.config.resend * (0.5 + self._core.rng.random())

    def on_accepted(self, sender: str, message: Accepted, now: float) -> None:
        """A vote arrived, with the voter's flush report."""
        attempt = self._matching(message)
        if attempt is not None and attempt.phase is AttemptPhase.ACCEPT and sender in attempt.parent:
            attempt.reports[sender] = message.report
            self._core.history.reported(sender, attempt.epoch, now)
            self._count(attempt, now)

    def _count(self, attempt: Attempt, now: float) -> None:
        """Go on to the next phase if the answers so far are a quorum, without those that certainly cannot come."""
        if not attempt.decided(self.discounted):
            return
        if attempt.phase is AttemptPhase.ACCEPT and not attempt.decided(
            self.discounted - self._core.evidence.late(attempt.voting_since)
        ):
            attempt.advance(Outcome.STALE)
            self._begin(now)
            return
        if attempt.phase is AttemptPhase.PREPARE:
            self._core.history.mark(Moment.PREPARED, attempt.epoch, now)
            attempt.propose(self._proposal(attempt.parent, now))
            attempt.vote_from(now)
            self._send(attempt, now)
        elif attempt.phase is AttemptPhase.ACCEPT:
            attempt.advance(Outcome.ACCEPTED)
            self._core.history.decided(tuple(attempt.reports), attempt.without(self.discounted))
            self._chosen(attempt, now)

    @property
    def discounted(self) -> frozenset[str]:
        """The members whose answers may be missing. A leaving member may be voted out in spite of its lease, so it may discount
        nobody: from the moment at which others may know that it leaves, even if it does not know yet that its call has ended.

        Under ``any``: all members that there is reason to remove. Members that are cut off may miss only in PREPARE: one that
        is cut off after a value was proposed that keeps it is alive, and has to accept that value.
        """
        evidence, own_id = self._core.evidence, self._core.member.id
        if self._core.config.policy is Policy.ANY:
            asking = self.attempt is not None and self.attempt.phase is AttemptPhase.PREPARE
            return evidence.accused.union(key for key in evidence.cut_off if asking and key != own_id)
        return frozenset() if self._core.going else evidence.discounted

    @property
    def _leaves_the_dead(self) -> bool:
        """Whether this member leaves, all others of its view are proven dead, and it asked to leave or cannot decide alone."""
        core, view, own_id = self._core, self._core.view, self._core.member.id
        if view is None or not core.going or own_id not in view or len(view) == 1:
            return False
        if not all(key in core.evidence.proofs for key in view.ids if key != own_id):
            return False
        return own_id in core.evidence.leaving or not self._decides_alone(view)

    def _decides_alone(self, view: View) -> bool:
        """Whether this member needs no other member's answer for the successor of ``view``."""
        policy, own_id = self._core.config.policy, self._core.member.id
        return policy is Policy.STORAGE or promising(view, policy, {own_id}, self.discounted)

    def _matching(self, message: Promise | Promised | Accepted) -> Attempt | None:
        attempt = self.attempt
        if attempt is None or message.ballot != attempt.ballot or message.parent_id != attempt.parent.view_id:
            return None
        return attempt
