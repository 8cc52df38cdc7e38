"""Joining and leaving: the joiner's search, the members' answers to applicants, founding, and graceful leaving."""

from __future__ import annotations

import logging
from math import inf
from typing import Any

from ...config import Policy
from ...errors import JobEndedError, JoinError, LeftError
from ...member import Address, Member, format_address, whole_cohorts
from ...messages import JoinReply, JoinRequest, LeaveRequest, Refused
from ...store_requests import StoreOp, StoreReply
from ...view import NO_VIEW_ID, Delta, View
from ..agreement.contact import Contact
from ..agreement.view_change import ViewChange
from ..detection.detection import Detection
from ..state.change import FindingKind
from ..state.core import Core
from ..state.effects import Check
from ..state.join import Applicant, Search
from ..state.life import Turn
from .ending import Askers, Ending
from .founding import Founding
from .survey import Survey

BEACON_EVERY = 0.25
"""Seconds between two beacons, by which the coordinator tells introducers outside the view of the cluster (see ``join``)."""

FOUND_AGAIN = 0.25
"""Seconds between two tries to have a founding view recorded."""

HURRIED = 0.05
"""The least seconds from one hurry of a joiner to the next: it may lose and find a cluster with each answer."""

LEFT = 16
"""The most dead members at whose addresses the coordinator looks for new lifetimes."""

STRANGE_TERMS = 16
"""The most different terms of others that are logged."""

STAND_BY = 0.4
"""Seconds between two pings of an applicant by the members that may coordinate next."""


class Admission:
    """One member's part in joins and leaves, its own and others'."""

    def __init__(
        self,
        core: Core,
        detection: Detection,
        change: ViewChange,
        contact: Contact,
        search: Search,
        now: float,
        founding: Founding | None = None,
    ) -> None:
        """``founding``: given if members vote who founds."""
        self._core = core
        self._detection = detection
        self._change = change
        self._contact = contact
        self.search = search
        self._founding = founding
        self.survey = Survey(core, search, now) if core.config.policy is Policy.STORAGE else None
        self._ending = Ending(search)
        self._askers = Askers(core.config.max_members)
        self._next_try = -inf
        """When this member may try again to found, if it has to ask a store."""
        self._next_beacon = now + BEACON_EVERY
        self._hurried = -inf
        self._answers: dict[tuple[bool, bool], JoinReply] = {}
        """The latest replies to applicants, by whether they hold the whole view, and a delta."""
        self._strange_terms: set[str] = set()
        """Terms unlike ours with which others looked for this job."""
        self._leave_call: int | None = None
        self._ended = False
        """Whether this member leaves because its program has ended."""
        self._next_leave = inf

    # Time

    def tick(self, now: float) -> None:
        """Search, found, answer applicants, repeat a leave."""
        core = self._core
        core.applicants.expire(now)
        if core.view is None:
            self._search(now)
            return
        if now >= self._next_beacon:
            self._next_beacon = now + BEACON_EVERY
            self._beacon()
            if core.applicants and core.stands_by():
                for applicant in core.applicants.fresh(now, wanting=True):
                    self._ping(applicant, now)
        if core.leaving and now >= self._next_leave:
            self._ask_to_leave(now)

    def deadline(self) -> float:
        """When ``tick`` is needed next."""
        core = self._core
        if core.view is None:
            return self.search.next_send if self.survey is None else min(self.search.next_send, self.survey.deadline())
        beacon = self._next_beacon if self._beaconing() or core.applicants else inf
        return min(beacon, self._next_leave if core.leaving else inf)

    # Joining

    def _search(self, now: float) -> None:
        core = self._core
        if self._ending.over:
            text = "the job has ended: the programs of those who were met there have come to their ends, and nobody is left"
            core.stop(JobEndedError(text))
            return
        if self._founding is not None:
            self._vote(self._founding, now)
        if self.survey is not None:
            self._look(self.survey, now)
        # The cheap condition first: this runs often, and too few applicants are useless.
        if self.search.may_found(len(core.applicants), now) and self._entitled() and self._vacant(now):
            founders = whole_cohorts((core.member, *self._supporters(now))[: core.config.room])
            if core.member in founders and self.search.may_found(len(founders) - 1, now):
                epoch = 1 if self.survey is None else self.survey.next_epoch
                self._found(View(epoch, NO_VIEW_ID, tuple(founders)), now)
                if core.view is not None:
                    return
        failure = self.search.failure(now)
        if failure is not None:
            if self.survey is not None and not self.search.found:
                failure = self.survey.failure(core.config.join_timeout, now) or failure
            core.stop(JoinError(failure))
            return
        if now >= self.search.next_send:
            self._ask(now)

    def _ask(self, now: float) -> None:
        """Send a request to join to all addresses where a member may know the cluster."""
        core, search = self._core, self.search
        search.ask_at(now + search.interval(core.rng.random()))
        for member in self._ending.doubtful:
            core.outbox.emit(Check(member))
        vote, met = None, []
        if self._founding is not None:  # an applicant may be missing in our list: ask those too
            vote, met = self._founding.vote, [a.member.address for a in core.applicants.fresh(now, wanting=False)]
        known = "" if search.cluster is None else search.cluster.view_id
        waited = int(1000 * (now - search.ready)) if search.wants else 0
        request = JoinRequest(core.member, search.wants, core.config.terms, vote, known, waited)
        for address in search.targets(met):
            core.outbox.send_to(address, request)

    def _look(self, survey: Survey, now: float) -> None:
        """The store takes precedence: the members that reported a cluster may all have died since."""
        survey.tick(now)
        newest, search = survey.newest, self.search
        if not search.found or newest is None or not survey.answered:
            return
        newer = search.cluster is not None and search.cluster.epoch > newest.view.epoch
        others = search.beacon is not None and search.beacon.id not in newest.view
        if not newer and not others and survey.orphaned(now):
            search.lost(now)

    def _vacant(self, now: float) -> bool:
        """Whether the job has no cluster with a living member, as far as the store (if there is one) knows."""
        return self.survey is None or (self.survey.answered and self.survey.orphaned(now) and now >= self._next_try)

    def _found(self, view: View, now: float) -> None:
        self._next_try = now + FOUND_AGAIN
        self._change.found(view, now)

    def answered(self, request: StoreOp, answer: StoreReply, now: float) -> None:
        """The store answered a request."""
        if self.survey is not None and self._core.view is None and self._core.stopped is None:
            self.survey.told(request, answer, now)
            self._search(now)

    def store_changed(self, now: float) -> None:
        """Something in the store may have changed."""
        if self.survey is not None:
            self.survey.store_changed(now)

    def received(self, sender: str, now: float) -> None:
        """A message of ``sender`` arrived: it lives."""
        if self.survey is not None and self._core.view is None:
            self.survey.received(sender, now)

    def _vote(self, founding: Founding, now: float) -> None:
        core, search = self._core, self.search
        if search.cluster is None and founding.consider(search.first, search.founder, core.applicants, now):
            search.ask_at(now)
        silent = founding.to_check(core.applicants, now)
        if silent is not None:
            core.outbox.emit(Check(silent))

    def _entitled(self) -> bool:
        """Whether this member votes for itself; True if members do not vote."""
        candidate = self._core.member if self._founding is None else self._founding.candidate
        return candidate is not None and candidate.id == self._core.member.id

    def _supporters(self, now: float) -> list[Member]:
        """The members that would be in the first view with this one."""
        if self._founding is not None:
            return self._founding.supporters(self._core.applicants, now)
        return [applicant.member for applicant in self._core.applicants.fresh(now, wanting=False)]

    def checked(self, member_id: str, alive: bool | None, now: float, *, listens: bool = False) -> None:
        """The result of a check. ``listens``: a connection was accepted there."""
        if alive is False and self._core.view is None:
            self._ending.died(member_id)
        if self.survey is not None and self._core.view is None:
            self.survey.checked(member_id, alive, now, listens=listens)
        if alive is False and self._founding is not None and self._core.view is None:
            self._founding.died(member_id, now)

    def on_join_reply(self, sender: str, address: Address, reply: JoinReply, now: float) -> None:
        """A member that we asked answered, or a coordinator's beacon arrived."""
        if self._core.view is None:
            search = self.search
            if reply.view is not None and search.rivals(reply.view):
                self._contact.bring_together(JoinReply(search.cluster, search.coordinator), reply, now)
            if self._of_the_dead(reply, now):
                reply = JoinReply(None, None)  # the sender does not know yet that all are gone
            known, asked = search.found, (search.coordinator, search.beacon)
            search.replied(sender, address, reply, now)
            self._ending.told(sender, ended=reply.ended)
            if search.found and not known and now >= self._hurried + HURRIED:
                self._hurried = now
                search.hurry(now)
            elif (search.coordinator, search.beacon) != asked:
                search.impatient()  # not at once: two members that differ about the coordinator would make us ask forever
            self._search(now)
        elif reply.view is not None:
            self._contact.pointed(reply.view, reply.coordinator, now)
        elif reply.coordinator is not None:
            self._contact.compare(reply.coordinator.id, address, reply.epoch, reply.view_id, now)

    def _of_the_dead(self, reply: JoinReply, now: float) -> bool:
        """Whether a reply is about the newest cluster in the store, and that cluster has no living member."""
        survey = self.survey
        if survey is None or survey.newest is None or not survey.orphaned(now):
            return False
        told = reply.view_id if reply.view is None else reply.view.view_id
        return told == survey.newest.view.view_id

    def on_refused(self, message: Refused) -> None:
        """The cluster will never admit this member, or has ended."""
        if self._core.view is None:
            text = message.reason[:500]
            self._core.stop(JobEndedError(text) if message.ended else JoinError(f"the cluster refused this member: {text}"))

    def seek_admission(self, now: float) -> None:
        """From now on this joiner wants to be admitted."""
        self.search.ready = self.search.ready if self.search.wants else now
        self.search.wants = True
        self.search.hurry(now)

    def add_introducers(self, addresses: tuple[Address, ...], now: float) -> None:
        """More addresses to ask."""
        self.search.add(addresses)
        self.search.ask_at(now)

    def set_introducers(self, addresses: tuple[Address, ...], founder: bool, refused: str, now: float) -> None:
        """The introducers' names resolve to other addresses than before."""
        self.search.set(addresses, founder, refused)
        self.search.ask_at(now)

    def attend(self, address: Address, listening: bool) -> None:
        """Whether a process listens at an introducer's address."""
        self.search.attend(address, listening)

    # Letting in

    def on_join_request(self, sender: str, address: Address, request: JoinRequest, now: float) -> None:
        """Somebody asks to join; the coordinator and the next two note it, and everybody replies what it knows.

        Only a member of a view refuses: the job's terms are those of its cluster.
        """
        core = self._core
        if request.member.id != sender or sender == core.member.id:
            return
        if core.view is None:
            self._meet(address, request, now)
            return
        if request.terms != core.config.terms:
            text = f"its settings are {request.terms[:200]!r}, the job's are {core.config.terms!r}: make them equal"
            core.outbox.send_to(address, Refused(text))
            return
        self._askers.received(address, now)
        core.outbox.send_to(address, self._answer(core.view, request.known))
        for member_id in core.view.at(request.member.address):
            if member_id not in (sender, core.member.id):
                core.outbox.emit(Check(core.view.member(member_id)))  # another lifetime has its address: it must be gone
        if core.stands_by() and sender not in core.view:
            applicant = core.applicants.received(request.member, request.wants, now, waited=request.waited / 1000)
            if applicant is None:
                if core.coordinates():
                    core.outbox.send_to(
                        address, Refused(f"{core.config.max_members} joiners are waiting already: try again later")
                    )
            elif applicant.wants:
                self._ping(applicant, now)
                self._change.proposer.consider(now)

    def _meet(self, address: Address, request: JoinRequest, now: float) -> None:
        """Somebody asks, and this process has no view either. It refuses nobody: whose terms are the job's is not known yet."""
        core = self._core
        alike = request.terms == core.config.terms
        if self.survey is not None:
            self.survey.met(request.member, now, alike=alike)
        if not alike:
            self._tell_apart(request)
        elif self.search.founder or self._founding is not None:
            core.applicants.received(request.member, request.wants, now, request.vote)
        known = self.search.cluster
        core.outbox.send_to(address, _reply(known, self.search.coordinator if known else None, request.known))
        self._search(now)

    def _tell_apart(self, request: JoinRequest) -> None:
        """Log, once for the same terms, that somebody looks for this job with others."""
        terms = request.terms[:200]
        if terms not in self._strange_terms and len(self._strange_terms) < STRANGE_TERMS:
            self._strange_terms.add(terms)
            text = f"{request.member} looks for this job with the settings {terms!r}, here they are {self._core.config.terms!r}"
            self._core.outbox.note(logging.WARNING, "terms", f"{text}: they found nothing together, make them equal")

    def _answer(self, view: View, known: str) -> JoinReply:
        """The reply to an applicant: the same object for equal replies, so that a long view is encoded once for all of them."""
        reply = _reply(view, self._core.coordinator(), known, self._core.delta, ended=self._ended)
        news = reply.view is not None, reply.delta is not None
        if self._answers.get(news) != reply:
            self._answers[news] = reply
        return self._answers[news]

    def spares(self) -> list[dict[str, Any]]:
        """The waiting applicants, longest wait first, as plain values; the coordinator and the next two know them."""
        wanting = sorted((each for each in self._core.applicants if each.wants), key=lambda each: each.ready)
        return [
            {"id": each.member.id, "address": format_address(each.member.address), "meta": each.member.shown()}
            for each in wanting
        ]

    def _ping(self, applicant: Applicant, now: float) -> None:
        """Ping an applicant: it may be admitted only after a recent ack. The next two in seniority ping too, less often, in
        case they have to coordinate.
        """
        core = self._core
        if now - applicant.pinged >= min(0.1 if core.coordinates() else STAND_BY, core.config.contact_interval):
            applicant.pinged = now
            self._detection.ping_applicant(applicant.member, now)

    def _beaconing(self) -> bool:
        core = self._core
        if core.view is None or not core.coordinates():
            return False
        return bool(self._outside())

    def _outside(self) -> list[Address]:
        """Addresses of processes that may not know this cluster: the introducers, and those of dead members of the view.

        Dead members stay in a view for long only if it has no quorum: perhaps because the others went on without this member.
        """
        view, proofs = self._core.view, self._core.evidence.proofs
        if view is None:
            return []
        left = [view.member(member_id).address for member_id in list(proofs)[:LEFT] if member_id in view]
        places = dict.fromkeys((*self.search.introducers, *left))
        return [address for address in places if all(member_id in proofs for member_id in view.at(address))]

    def _beacon(self) -> None:
        core = self._core
        if self._beaconing():  # without the view: a new process there asks for it
            beacon = JoinReply(None, core.member, None, core.view_id, core.epoch, self._ended)
            for address in self._outside():
                core.outbox.send_to(address, beacon)

    # Leaving

    def leave(self, after_call: int | None, now: float, *, ended: bool = False) -> None:
        """Ask the others to go on without this member; a single member just leaves. ``ended``: the program has ended."""
        core = self._core
        self._ended = self._ended or ended
        if core.view is None:
            core.stop(LeftError("left the job on its own wish"))
            return
        if self._ended:
            for address in self._askers.fresh(now):
                core.outbox.send_to(address, self._answer(core.view, core.view_id))
        if len(core.view) == 1 and core.member.id in core.view:
            core.evidence.leave(core.member.id, after_call, now, ended=self._ended)
            core.close()
            return
        if core.stopped is None:
            core.turn(Turn.LEAVE_REQUESTED)
        self._leave_call = after_call
        self._ask_to_leave(now)

    def _ask_to_leave(self, now: float) -> None:
        core = self._core
        self._next_leave = now + core.config.resend
        coordinator = core.coordinator()
        if core.view is None or coordinator is None:
            return
        core.evidence.leave(core.member.id, self._leave_call, now, ended=self._ended)
        core.history.found(FindingKind.LEAVE, core.member.id, _asked(self._ended), core.member.id, now)
        request = LeaveRequest(core.view.view_id, core.member.id, self._leave_call, self._ended)
        if self._ended:  # the next coordinators have to know it too: this member may be gone before the change is agreed
            for senior in core.seniors(without=core.member.id):
                core.outbox.send(senior, request)
        elif coordinator.id != core.member.id:
            core.outbox.send(coordinator, request)
        if coordinator.id == core.member.id:
            self._change.proposer.consider(now)

    def on_leave_request(self, sender: str, message: LeaveRequest, now: float) -> None:
        """A member leaves."""
        core = self._core
        if core.view is not None and sender == message.member_id and sender in core.view:
            core.evidence.leave(sender, message.after_call, now, ended=message.ended)
            core.history.found(FindingKind.LEAVE, sender, _asked(message.ended), sender, now)
            self._change.proposer.consider(now)


def _asked(ended: bool) -> str:
    return "its program has ended" if ended else "asked to leave"


def _reply(
    view: View | None, coordinator: Member | None, known: str, delta: Delta | None = None, *, ended: bool = False
) -> JoinReply:
    """The reply to an applicant whose newest view is ``known``: only what is new, since a thousand may ask again and again."""
    if view is None:
        return JoinReply(None, None)
    if known == view.view_id:
        return JoinReply(None, coordinator, None, known, view.epoch, ended)
    if delta is not None and known == delta.parent_id:
        return JoinReply(None, coordinator, delta, view.view_id, view.epoch, ended)
    return JoinReply(view, coordinator, None, view.view_id, view.epoch, ended)
