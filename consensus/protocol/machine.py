"""The membership protocol of one member, sans-IO: messages and time in, effects out.

No socket, no clock, no thread and no randomness of its own. A driver calls ``receive`` and ``tick`` with the current time,
carries out what ``drain`` returns, and calls again no later than ``next_deadline``. The same code runs on real sockets and
in a simulation with thousands of members.

A packet's way: ``machine`` -> ``dispatch`` -> ``detection`` (``probe``, ``suspicion``, ``member_table``) -> ``evidence`` ->
``view_change`` (``accusations``, ``proposer``, ``attempt``, ``quorum``, ``voter``, ``acceptor``, ``flush``, ``installer``) ->
``outbox``. What comes from outside of the view goes to ``admission`` and ``contact``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ..config import Config
from ..errands import Answer, Errand
from ..errors import ExcludedError, StoppedError
from ..member import Address, Member, format_address
from ..messages import Evidence, EvidenceKind, Message, Status
from ..progress import Progress
from ..view import Reason, View
from .admission import Admission
from .change import Moment
from .contact import Contact
from .core import Core
from .detection import Detection
from .dispatch import Dispatch
from .effects import Effect, Quit, Stalled
from .founding import Founding
from .join import Search
from .life import Turn
from .reconciliation import Reconciliation
from .view_change import ViewChange

if TYPE_CHECKING:
    from random import Random

__all__ = ["Machine"]


class Machine:
    """One member. ``founder``: whether it may make the first view; ``introducers``: whom to join through."""

    def __init__(
        self,
        config: Config,
        member: Member,
        rng: Random,
        *,
        founder: bool,
        introducers: tuple[Address, ...],
        voted: bool = False,
        barred: str = "",
    ) -> None:
        """``voted``: members vote who founds (see ``founding``); ``barred``: why whoever is first must not."""
        self._core = Core(config, member, rng)
        self._founder = founder
        self._voted = voted
        self._barred = barred
        self._introducers = introducers
        self._change = ViewChange(self._core)
        self._detection: Detection
        self._reconciliation: Reconciliation
        self._contact: Contact
        self._admission: Admission
        self._dispatch: Dispatch
        self._awaited: float | None = None
        """When ``tick`` was promised at the latest."""
        self._latest = 0.0
        """When anything happened last."""

    def start(self, now: float) -> None:
        """Begin to look for the cluster. Call once, before anything else."""
        core = self._core
        self._detection = Detection(core, self._change.accusations.accuse, now)
        self._change.detection = self._detection
        self._reconciliation = Reconciliation(core, self._detection.merge_told, now)
        self._contact = self._change.contact = Contact(core, self._detection, self._change)
        search = Search(core.config, core.member, self._introducers, self._founder, now, self._barred)
        founding = Founding(core.member, now) if self._voted else None
        self._admission = Admission(core, self._detection, self._change, self._contact, search, now, founding)
        parts = self._detection, self._reconciliation, self._change, self._contact, self._admission
        self._dispatch = Dispatch(core, *parts)
        self.tick(now)

    # In

    def receive(self, sender: str, address: Address, message: Message, now: float) -> None:
        """A message from ``sender``, whose mail goes to ``address``. Nonsense changes nothing and raises nothing."""
        if self._core.stopped is None and sender != self._core.member.id:
            self._notice_lateness(now)
            self._core.table.heard(sender, now)
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

    def evidence(self, accused: str, kind: EvidenceKind, detail: str, now: float) -> None:
        """This member's own evidence against another one."""
        self._change.accusations.accuse(accused, kind, detail, now)
        self._settle(now)

    def answered(self, errand: Errand, answer: Answer, now: float) -> None:
        """What came of ``Ask``."""
        if self._core.stopped is None:
            self._change.register.answered(errand, answer, now)
            self._detection.answered(errand, answer, now)
            self._admission.answered(errand, answer, now)
            self._settle(now)

    def stirred(self, now: float) -> None:
        """Something in the store may have changed: look soon."""
        self._change.register.stirred(now)
        self._admission.stirred(now)
        self._settle(now)

    def checked(self, member_id: str, alive: bool | None, detail: str, now: float, *, listens: bool = False) -> None:
        """The result of a ``Check`` or of a closed tether: False proves death, None is undecided.

        ``listens``: a connection was accepted there, as a stopped process does, too.
        """
        if alive:
            self._detection.answered_check(member_id, now)
        self._change.accusations.checked(member_id, alive, detail, now)
        self._admission.checked(member_id, alive, now, listens=listens)
        self._settle(now)

    def hint(self, suspects: tuple[str, ...], now: float) -> None:
        """The data plane failed here and froze itself; ``suspects`` are checked at once (empty: everybody)."""
        self._change.frozen(now)
        self._change.accusations.hint(suspects, now)
        self._detection.hinted(now)
        self._settle(now)

    def flushed(self, epoch: int, report: bytes, now: float) -> None:
        """Answer to ``Freeze``."""
        self._core.history.mark(Moment.FLUSHED, epoch, now)
        self._change.voter.flushed(epoch, report)
        self._settle(now)

    def ready(self, view_id: str, now: float) -> None:
        """Answer to ``Installed``."""
        self._change.ready(view_id, now)
        self._settle(now)

    def boundary(self, call: int, leavers: tuple[str, ...], now: float) -> None:
        """Answer to ``Wish``, or what another member's trailer asked for: frozen after ``call``."""
        self._change.boundary(call, leavers, now)
        self._settle(now)

    def frozen(self, now: float) -> None:
        """The data plane froze itself: it is owed a new epoch."""
        self._change.frozen(now)
        self._settle(now)

    def seek_admission(self, now: float) -> None:
        """A joiner is ready to take part."""
        self._admission.seek_admission(now)
        self.tick(now)

    def add_introducers(self, addresses: tuple[Address, ...], now: float) -> None:
        """More members to join through."""
        self._admission.add_introducers(addresses, now)
        self.tick(now)

    def attend(self, address: Address, listening: bool) -> None:
        """Whether somebody who may be of this job listens at an introducer's ``address``."""
        self._admission.attend(address, listening)

    def heed_introducers(self, addresses: tuple[Address, ...], founder: bool, barred: str, now: float) -> None:
        """The names of the introducers stand for ``addresses`` now; ``founder``: whether this member is first."""
        self._admission.heed_introducers(addresses, founder, barred, now)
        self.tick(now)

    def leave(self, after_call: int | None, now: float) -> None:
        """Leave on our own wish."""
        self._admission.leave(after_call, now)
        self._settle(now)

    def end(self, after_call: int | None, now: float) -> None:
        """Leave since the program has come to its end: whoever waits to be let in is told, should nobody be left."""
        self._admission.leave(after_call, now, ended=True)
        self._settle(now)

    def set_progress(self, progress: Progress) -> None:
        """Where the data plane is: what rides on pings and acks from now on."""
        self._core.progress = progress

    def die(self, detail: str, error: StoppedError) -> None:
        """This member's process is over, or as good as over: say so to all, as proof, and never act again.

        Its word is proof because nothing follows it: no vote, no ack, and soon no open socket.
        """
        core = self._core
        if core.stopped is not None:
            return
        if core.view is not None:
            farewell = Evidence(core.view.view_id, core.member.id, EvidenceKind.PROOF, detail[:200])
            for member in core.view.members:
                if member.id != core.member.id:
                    core.outbox.send(member, farewell)
        core.stop(error, Turn.DIED)
        core.outbox.emit(Quit())
        core.outbox.close()

    # Out

    def drain(self) -> list[Effect]:
        """What to do now, in this order."""
        return self._core.outbox.drain()

    def next_deadline(self) -> float | None:
        """When ``tick`` is needed at the latest; None once stopped."""
        if self._core.stopped is not None:
            return None
        deadline = min(self._admission.deadline(), self._detection.renewal)
        if self._core.view is not None:
            parts = (self._detection, self._reconciliation, self._change, self._contact)
            deadline = min(deadline, *(part.deadline() for part in parts))
        self._awaited = max(deadline, self._latest)  # what was due before it could be known is not late
        return deadline

    # State to look at

    def witness(self, seen: Callable[[Message], None]) -> None:
        """Show what this member sends to itself to ``seen``, just before it is handled: no network carries it."""
        self._core.outbox.witness = seen

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
        """The newest view of which we have everybody's report."""
        return self._core.installed

    @property
    def active_view(self) -> View | None:
        """The newest view in which every member was ready."""
        return self._core.active

    @property
    def known_view(self) -> View | None:
        """The own view, or for a joiner the cluster's as it was told."""
        return self._core.view if self._core.view is not None else self._admission.search.cluster

    @property
    def reasons(self) -> Mapping[str, Reason]:
        """Why members of the view before the installed one are not in it; replaced at each install, never changed."""
        return self._core.reasons

    @property
    def driver(self) -> str:
        """Id of the member that installs the newest chosen view, as far as it is known."""
        return self._core.driver

    @property
    def changing(self) -> bool:
        """Whether a view change is under way."""
        return self._change.changing

    @property
    def applicants_waiting(self) -> bool:
        """Whether somebody wants to be admitted (known at the coordinator and the next two)."""
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
        return tuple(peer.member.id for peer in self._core.table if peer.status is Status.SUSPECT)

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
            "status": peer.status.value if peer else "alive",
            "incarnation": peer.incarnation if peer else self._core.table.incarnation,
            "evidence": cause.value if cause else None,
        }

    # Inside

    def _notice_lateness(self, now: float) -> None:
        """Whoever is woken late was not there to hear the others (Lifeguard: suspect yourself first)."""
        late = 0.0 if self._awaited is None else now - self._awaited
        if late > self._core.config.ping_timeout and self._core.view is not None:
            self._awaited = None  # once
            self._detection.overslept(late, now)
            # Usual on a busy host, and harmless; half the way to being excluded is worth a word.
            level = logging.WARNING if late >= self._core.config.exclude_after / 2 else logging.DEBUG
            self._core.outbox.note(level, "late", f"this agent was held up for {late:.2f} s: nobody is blamed for that time")

    def _judge_stall(self, now: float) -> None:
        """The others have waited for this member's data plane too long: it hangs, and steps aside."""
        core = self._core
        since = self._detection.stall.since()
        if since is None or now - since < core.config.stall_timeout:
            return
        call, waited = core.progress.finished + 1, now - since
        core.outbox.emit(Stalled(call, waited))
        text = f"it had not entered call {call} for {waited:.1f} s while the others waited in it (stall_timeout)"
        self.die(f"stalled: {text}", ExcludedError(f"this worker stalled: {text}"))

    def _settle(self, now: float) -> None:
        """After every input: deliver what this member sent to itself."""
        core, self._latest = self._core, now
        while (message := core.outbox.take_own()) is not None:
            if core.stopped is None:
                self._dispatch.take(core.member.id, core.member.address, message, now)
