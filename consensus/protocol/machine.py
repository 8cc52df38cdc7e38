"""The membership protocol of one member, sans-IO: messages and time in, effects out.

No socket, no clock, no thread and no randomness of its own. A driver calls ``receive``, ``handle`` and ``tick`` with the
current time, carries out what ``drain`` returns, and calls again no later than ``next_deadline``. The same code runs on real
sockets and in a simulation with thousands of members.

A packet's way: ``machine`` -> ``dispatch`` -> ``detection`` (``probe``, ``verdict``, ``member_table``) -> ``evidence`` ->
``view_change`` (``accusations``, ``proposer``, ``attempt``, ``quorum``, ``voter``, ``acceptor``, ``flush``, ``installer``) ->
``outbox``. Messages from outside the view go to ``admission`` and ``contact``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, assert_never

from ..border import Boundary, Built, Flushed, Hint, Leave, SeekAdmission, Stalled
from ..config import Config
from ..errors import ExcludedError, StoppedError
from ..member import Address, Member, format_address
from ..messages import MAX_DETAIL, Evidence, EvidenceKind, Message, Status
from ..progress import Progress
from ..view import Reason, View
from .admission.admission import Admission
from .admission.founding import Founding
from .agreement.contact import Contact
from .agreement.view_change import ViewChange
from .detection.detection import Detection
from .detection.reconciliation import Reconciliation
from .dispatch import Dispatch
from .state.change import Moment
from .state.core import Core
from .state.effects import Effect, Quit
from .state.inputs import Accusation, Answered, Checked, Died, Input, Introduced, Listening, Resolved, StoreChanged
from .state.join import Search
from .state.life import Turn

if TYPE_CHECKING:
    from random import Random


class Machine:
    """One member. ``founder``: whether it may make the first view; ``introducers``: the addresses to join through."""

    def __init__(
        self,
        config: Config,
        member: Member,
        rng: Random,
        *,
        founder: bool,
        introducers: tuple[Address, ...],
        voted: bool = False,
        refused: str = "",
    ) -> None:
        """``voted``: members vote who founds (see ``founding``); ``refused``: why the first introducer must not found."""
        self._core = Core(config, member, rng)
        self._founder = founder
        self._voted = voted
        self._refused = refused
        self._introducers = introducers
        self._change = ViewChange(self._core)
        self._detection: Detection
        self._reconciliation: Reconciliation
        self._contact: Contact
        self._admission: Admission
        self._dispatch: Dispatch
        self._awaited: float | None = None
        """The deadline that ``next_deadline`` returned: the driver calls ``tick`` no later."""
        self._latest = 0.0
        """The time of the latest input."""

    def start(self, now: float) -> None:
        """Begin to look for the cluster. Call once, before anything else."""
        core = self._core
        self._detection = Detection(core, self._change.accusations.accuse, now)
        self._reconciliation = Reconciliation(core, self._detection.merge_told, now)
        change = self._change
        self._contact = Contact(core, self._detection, change.accusations, change.installer, change.register)
        change.meet(self._detection, self._contact)
        search = Search(core.config, core.member, self._introducers, self._founder, now, self._refused)
        founding = Founding(core.member, now) if self._voted else None
        self._admission = Admission(core, self._detection, self._change, self._contact, search, now, founding)
        parts = self._detection, self._reconciliation, self._change, self._contact, self._admission
        self._dispatch = Dispatch(core, *parts)
        self.tick(now)

    # In

    def receive(self, sender: str, address: Address, message: Message, now: float) -> None:
        """Handle a message from ``sender``, answered at ``address``. Nonsense changes nothing and raises nothing."""
        if self._core.stopped is None and sender != self._core.member.id:
            self._notice_lateness(now)
            self._core.table.received(sender, now)
            self._dispatch.take(sender, address, message, now)
            self._settle(now)

    def tick(self, now: float) -> None:
        """Do what is due."""
        if self._core.stopped is None:
            self._notice_lateness(now)
            self._awaited = None
            self._admission.tick(now)
            self._detection.renew(now)
            if self._core.view is not None:
                self._judge_stall(now)
                self._detection.tick(now)
                self._reconciliation.tick(now)
                self._change.tick(now)
                self._contact.tick(now)
            self._settle(now)

    def handle(self, what: Input, now: float) -> None:  # noqa: C901, PLR0912 - one case an input: a table, read as one
        """Handle an input that is no message: a report of the data plane, or something that the agent has found out."""
        core, change, admission = self._core, self._change, self._admission
        match what:
            case Hint(suspects):
                change.frozen(now, suspects)
                change.accusations.hint(suspects, now)
                self._detection.hinted(now)
            case Flushed(epoch, report):
                core.history.mark(Moment.FLUSHED, epoch, now)
                change.voter.flushed(epoch, report)
            case Built(view_id):
                change.ready(view_id, now)
            case Boundary(call, leavers):
                change.boundary(call, leavers, now)
            case SeekAdmission():
                admission.seek_admission(now)
                self.tick(now)
            case Leave(after_call, ended):
                admission.leave(after_call, now, ended=ended)
            case Accusation(accused, kind, detail, age):
                change.accusations.accuse(accused, kind, detail, now, age=age)
            case Checked(member_id, alive, detail, listens):
                if alive:
                    self._detection.answered_check(member_id, now)
                change.accusations.checked(member_id, alive, detail, now)
                admission.checked(member_id, alive, now, listens=listens)
            case Answered(request, answer):
                if core.stopped is None:
                    change.register.answered(request, answer, now)
                    self._detection.answered(request, answer, now)
                    admission.answered(request, answer, now)
            case StoreChanged():
                change.register.store_changed(now)
                admission.store_changed(now)
            case Introduced(addresses):
                admission.add_introducers(addresses, now)
                self.tick(now)
            case Listening(address, listening):
                admission.attend(address, listening)
            case Resolved(addresses, founder, refused):
                admission.set_introducers(addresses, founder, refused, now)
                self.tick(now)
            case Died(detail, error):
                self._die(detail, error)
            case _:
                assert_never(what)
        self._settle(now)

    def set_progress(self, progress: Progress) -> None:
        """Set the data plane's progress, which pings and acks carry from now on.

        Call this before the next input: ``leaving`` must be as new as that input (see ``proposer``).
        """
        self._core.proceed(progress)

    def _die(self, detail: str, error: StoppedError) -> None:
        """Say the last words. Whether it has voted is said, too: then those who have hardly met it can go on without it."""
        core = self._core
        if core.stopped is not None:
            return
        if core.view is not None:
            no_vote = not self._change.voter.voted
            farewell = Evidence(core.view.view_id, core.member.id, EvidenceKind.PROOF, detail[:MAX_DETAIL], no_vote)
            for member in core.view.members:
                if member.id != core.member.id:
                    core.outbox.send(member, farewell)
        core.stop(error, Turn.DIED)
        core.outbox.emit(Quit())
        core.outbox.close()

    # Out

    def drain(self) -> list[Effect]:
        """The effects to carry out now, in this order."""
        return self._core.outbox.drain()

    def next_deadline(self) -> float | None:
        """When ``tick`` is needed at the latest; None once stopped."""
        if self._core.stopped is not None:
            return None
        deadline = min(self._admission.deadline(), self._detection.renewal)
        if self._core.view is not None:
            change = min(self._change.deadline(), self._contact.deadline())
            deadline = min(deadline, self._detection.deadline(), self._reconciliation.deadline(), change)
        self._awaited = max(deadline, self._latest)  # a deadline before the latest input is not late
        return deadline

    # State to look at

    def witness(self, seen: Callable[[Message], None]) -> None:
        """Call ``seen`` with each message of this member to itself, just before it is handled: no network carries it."""
        self._core.outbox.show(seen)

    @property
    def member(self) -> Member:
        """Who we are."""
        return self._core.member

    @property
    def view(self) -> View | None:
        """The newest view known to be chosen."""
        return self._core.view

    @property
    def installed_view(self) -> View | None:
        """The newest view for which we have all reports."""
        return self._core.installed

    @property
    def active_view(self) -> View | None:
        """The newest view in which every member was ready."""
        return self._core.active

    @property
    def known_view(self) -> View | None:
        """The own view; for a joiner the cluster's view as it received it."""
        return self._core.view if self._core.view is not None else self._admission.search.cluster

    @property
    def reasons(self) -> Mapping[str, Reason]:
        """Why members of the view before the installed one are not in it; a new mapping at each install, never changed."""
        return self._core.reasons

    @property
    def driver(self) -> str:
        """Id of the member that installs the newest chosen view, as far as known."""
        return self._core.driver

    @property
    def changing(self) -> bool:
        """Whether a view change is under way."""
        return self._change.changing

    @property
    def applicants_waiting(self) -> bool:
        """Whether an applicant waits and there is room (known at the coordinator and the next two)."""
        return self._core.room > 0 and bool(self._core.applicants)

    @property
    def stopped(self) -> StoppedError | None:
        """Why this lifetime ended."""
        return self._core.stopped

    def belief(self, member_id: str) -> Status | None:
        """What is believed of another member of the view; None for a stranger."""
        peer = self._core.table.get(member_id)
        return None if peer is None else peer.status

    def suspects(self) -> tuple[str, ...]:
        """Ids of the members that this one suspects, in seniority order."""
        view, found = self._core.view, self._core.table.suspected()
        ids = [peer.member.id for peer in found if peer.status is Status.SUSPECT]
        return () if view is None else tuple(sorted(ids, key=view.index))

    def last_change(self) -> dict[str, Any]:
        """The newest view change as this member saw it (see ``Change.as_dict``); empty before the first."""
        return self._core.history.newest_as_dict()

    def status(self) -> dict[str, Any]:
        """What this member believes, as plain values."""
        core = self._core
        coordinator = core.coordinator()
        return {
            "id": core.member.id,
            "job": core.config.job,
            "epoch": core.epoch,
            "view_id": core.view_id,
            "active_epoch": 0 if core.active is None else core.active.epoch,
            "changing": self.changing,
            "coordinator": coordinator.id if coordinator else None,
            "policy": core.config.policy.value,
            "awareness": core.awareness.score,
            "stopped": str(core.stopped) if core.stopped else None,
            "members": [self._describe(member) for member in core.view.members] if core.view else [],
            "spares": self._admission.spares(),
            "view_changes": core.history.counts(),
            "history": core.history.as_list(),
            "under_way": self._change.under_way(),
        }

    def _describe(self, member: Member) -> dict[str, Any]:
        peer, cause = self._core.table.get(member.id), self._core.evidence.cause(member.id)
        return {
            "id": member.id,
            "address": format_address(member.address),
            "meta": member.shown(),
            "cohort": member.shown_cohort(),
            "status": peer.status.value if peer else "alive",
            "incarnation": peer.incarnation if peer else self._core.table.incarnation,
            "evidence": cause.value if cause else None,
        }

    # Inside

    def _notice_lateness(self, now: float) -> None:
        """Detect that this agent was woken late: it could not receive from the others (Lifeguard: suspect yourself first)."""
        late = 0.0 if self._awaited is None else now - self._awaited
        if late > self._core.config.ping_timeout and self._core.view is not None:
            self._awaited = None  # once
            self._detection.overslept(late, now)
            # Usual on a busy host, and harmless; warn when half of the time to exclusion has passed.
            level = logging.WARNING if late >= self._core.config.exclude_after / 2 else logging.DEBUG
            self._core.outbox.note(level, "late", f"this agent was held up for {late:.2f} s: nobody is blamed for that time")

    def _judge_stall(self, now: float) -> None:
        """If the others have waited too long for this member's data plane, it hangs: the agent ends this lifetime."""
        core = self._core
        since = self._detection.stall.since()
        if since is None or now - since < core.config.stall_timeout:
            return
        call, waited = core.progress.finished + 1, now - since
        core.outbox.emit(Stalled(call, waited))
        text = f"it had not entered call {call} for {waited:.1f} s while the others waited in it (stall_timeout)"
        self._die(f"stalled: {text}", ExcludedError(f"this worker stalled: {text}"))

    def _settle(self, now: float) -> None:
        """After every input: deliver this member's messages to itself."""
        core, self._latest = self._core, now
        while (message := core.outbox.take_own()) is not None:
            if core.stopped is None:
                self._dispatch.take(core.member.id, core.member.address, message, now)
