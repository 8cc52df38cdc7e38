"""The state that the parts of a machine share: this member, the views it knows, its beliefs and evidence about others."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING

from ...border import Stopped
from ...config import Config, Liveness
from ...errors import ExcludedError, LeftError, StoppedError
from ...member import Address, Member
from ...messages import Chosen, Message, Pull, Refused, Status
from ...progress import NOWHERE, Progress
from ...store_requests import Withdraw
from ...view import NO_VIEW_ID, Delta, Reason, View
from .dissemination import Dissemination
from .effects import Ask, Outbox
from .evidence import EvidenceBook
from .history import History
from .join import Applicants
from .life import LIFE, Life, Turn, turn_of
from .lifeguard import Awareness
from .links import Links
from .member_table import MemberTable
from .standing import STANDING, StandingEvent

if TYPE_CHECKING:
    from random import Random

SENIORS = 3
"""So many members receive evidence, and know who waits to join: the coordinator and those that would follow it."""

TRAIL = 64
"""The most view ids that are remembered."""

TOLD_TRAIL = 16
"""The most of these ids that are sent with a whole view."""


class Core:
    """Shared by ``detection``, ``view_change`` and ``admission``; owned by the machine, touched by its thread alone.

    ``view`` is the newest view known to be chosen, ``installed`` the newest with all reports, ``active`` the newest in
    which every member was ready.
    """

    def __init__(self, config: Config, member: Member, rng: Random) -> None:
        self.config = config
        self.member = member
        self.rng = rng
        self.outbox = Outbox(member)
        self.table = MemberTable(member.id)
        self.crowded = False
        """Whether the view is too large for everybody to ping everybody."""
        self.evidence = EvidenceBook(config)
        self.links = Links(member.id, config.link_timeout)
        self.history = History()
        self.applicants = Applicants(config.max_members)
        self.awareness = Awareness(config.awareness_max)
        self.rumours = Dissemination(config.retransmit_mult)
        self.view: View | None = None
        self.delta: Delta | None = None
        """The difference from the parent to ``view``, if this member held the parent."""
        self.installed: View | None = None
        self.active: View | None = None
        self.trail: dict[int, str] = {}
        """The ids of the newest views of this member's chain, by epoch: those that it followed, and before them those that it
        received when it joined."""
        self._since = 0
        """The epoch of the first view that this member followed."""
        self.reasons: dict[str, Reason] = {}
        """Why members of older views are not in the installed one (replaced, never changed: other threads read it)."""
        self.driver = ""
        """Id of the member that installs ``view``, as far as we know."""
        self.acked: dict[str, float] = {}
        """When we last acked a ping of each member: the beginning of the lease that this ack grants it."""
        self.shunned: set[str] = set()
        """The members that we do not ack any more in this epoch, because we were asked to exclude them (see ``acceptor``)."""
        self.progress = NOWHERE
        """The latest reported progress of the data plane."""
        self.committed_to_leave = False
        """Whether others may have read a trailer that says that this member leaves. It may be True before the data plane has
        ended that call, and stays True whatever becomes of the call.
        """
        self.gone: frozenset[str] = frozenset()
        """The members whose death led to ``view``. Nobody can have followed what they chose for its epoch before (invariant 4).
        """
        self.life = LIFE.start
        self.standing = STANDING.start
        """The standing of ``view``."""
        self.store_away = ""
        """Why the shared store does not answer, empty while it does."""
        self.stopped: StoppedError | None = None

    @property
    def epoch(self) -> int:
        """The epoch of the newest chosen view; 0 before the first."""
        return 0 if self.view is None else self.view.epoch

    @property
    def view_id(self) -> str:
        """The id of the newest chosen view."""
        return NO_VIEW_ID if self.view is None else self.view.view_id

    def follow(self, view: View, trail: tuple[str, ...] = (), *, driver: str = "") -> None:
        """``view`` is the newest chosen view; ``trail``: the ids of the views before it, as the sender knows them.

        ``driver``: id of the member that installs it, as far as we know.
        """
        if self.view is None:
            self._since = view.epoch
        else:
            self.advance(StandingEvent.NEWER)
        self.delta = Delta.between(self.view, view)
        self.view, self.driver, self.standing = view, driver, STANDING.start
        told = zip(range(view.epoch - 1, 0, -1), trail, strict=False)
        self.trail = dict(sorted({**dict(told), **self.trail, view.epoch: view.view_id}.items())[-TRAIL:])

    def judge_anew(self, view: View, now: float) -> None:
        """Derive ``crowded``, ``gone`` and ``acked`` again from ``view``, the newest one, and from the table."""
        self.crowded = len(self.table) >= self.config.mesh_limit
        self.gone = frozenset(key for key in self.evidence.proofs if key not in view)
        stale = now - 2 * self.config.exclude_after
        self.acked = {key: time for key, time in self.acked.items() if key in view or time > stale}

    def install(self, removed: Iterable[Reason]) -> None:
        """The newest view has all reports; ``removed``: the members that are not in it any more, and why."""
        self.advance(StandingEvent.INSTALL)
        before = {} if self.installed is self.active else self.reasons  # nobody has acted on these reasons yet
        self.installed = self.view
        self.reasons = before | {reason.member_id: reason for reason in removed}

    def activate(self) -> None:
        """Every member of the installed view is ready."""
        self.advance(StandingEvent.ACTIVATE)
        self.active = self.installed

    def shun(self, shunned: set[str]) -> None:
        """Ack none of ``shunned`` in this epoch; more members may be added to the set later."""
        self.shunned = shunned

    def note_store(self, away: str) -> None:
        """``away``: why the shared store does not answer; empty while it does."""
        self.store_away = away

    def proceed(self, progress: Progress) -> None:
        """``progress`` is the latest progress of the data plane."""
        self.progress = progress
        self.committed_to_leave |= progress.leaving

    def followed(self, epoch: int, view_id: str) -> bool:
        """Whether this member is or was in that view: a member that holds it may still vote on a view without this one."""
        return epoch >= self._since and self.trail.get(epoch) == view_id

    @property
    def ancestors(self) -> tuple[str, ...]:
        """The ids of the views before the newest one, newest first, without a gap."""
        found: list[str] = []
        while len(found) < TOLD_TRAIL and (view_id := self.trail.get(self.epoch - 1 - len(found))) is not None:
            found.append(view_id)
        return tuple(found)

    def descends(self, view: View, trail: tuple[str, ...]) -> bool:
        """Whether a newer ``view`` of this cluster descends from the active one, as far as ``trail`` shows.

        If two lists were chosen for one epoch, and all members that voted for both are dead, a member can act in one of them
        and later receive what the dead had chosen after the other: that view can never be active without this member.
        """
        if self.active is None or view.view_id == self.active.view_id:
            return True
        back = view.epoch - self.active.epoch - 1
        before = (view.parent_id, *trail[1:])
        return back < 0 or back >= len(before) or before[back] == self.active.view_id

    @property
    def leaving(self) -> bool:
        """Whether this member has asked to leave."""
        return self.life is Life.LEAVING

    @property
    def going(self) -> bool:
        """Whether this member wants to leave and others may know it; or whether it has left by the view that it leads."""
        evidence, own_id = self.evidence, self.member.id
        told = self.leaving or self.committed_to_leave or own_id in evidence.leaving
        return told or own_id in evidence.parted

    def advance(self, news: StandingEvent) -> None:
        """Move the newest chosen view one step on."""
        self.standing = STANDING.after(self.standing, news)

    def turn(self, turn: Turn) -> None:
        """Change this member's life."""
        self.life = LIFE.after(self.life, turn)

    def coordinator(self) -> Member | None:
        """The most senior member of the view with no evidence or suspicion against it, and that reaches a quorum."""
        if self.view is None:
            return None
        able = (member for member in self.view.members if self._able(member))
        first = next(able, None)
        if first is not None and self._bereft(
            first, self.view
        ):  # it is about to be removed; a whole cohort's member does better
            first = next((member for member in able if not self._bereft(member, self.view)), first)
        return first or (self.member if self.member.id in self.view else None)

    def _able(self, member: Member) -> bool:
        book = self.evidence
        out = member.id in book.proofs or member.id in book.unready or member.id in book.cut_off
        return not out and self.table.trusted(member.id)

    def _bereft(self, member: Member, view: View) -> bool:
        """Whether another member of its cohort is about to be removed."""
        others = [each for each in view.cohort(member.id) if each.id != member.id]
        return any(self.evidence.cause(each.id) is not None or not self._able(each) for each in others)

    def seniors(self, without: str = "", many: int = SENIORS) -> list[Member]:
        """The coordinator and the next in seniority, ``many`` in all; without members proven dead, and without ``without``."""
        coordinator = self.coordinator()
        if self.view is None or coordinator is None:
            return []
        rest = islice(self.view.members, self.view.index(coordinator.id), None)
        return list(islice((m for m in rest if m.id not in self.evidence.proofs and m.id != without), many))

    def successors(self) -> tuple[Member, ...]:
        """The next members of the view: this member holds a connection to each."""
        view = self.view
        if view is None or self.member.id not in view:
            return ()
        start, many = view.index(self.member.id), min(self.config.tethers, len(view) - 1)
        return tuple(view.members[(start + 1 + place) % len(view)] for place in range(many))

    def some(self, number: int, without: str = "") -> list[Member]:
        """At most ``number`` random members that are neither suspected nor dead."""
        if not self.crowded:
            able = [p.member for p in self.table if p.status is Status.ALIVE and p.member.id != without]
            return self.rng.sample(able, min(number, len(able)))
        if self.view is None:
            return []
        chosen: dict[str, Member] = {}
        for _ in range(4 * number):  # nearly all members are able: do not build a list of a thousand
            member = self.view.members[self.rng.randrange(len(self.view))]
            if member.id not in (self.member.id, without) and self.table.trusted(member.id):
                chosen[member.id] = member
            if len(chosen) == number:
                break
        return list(chosen.values())

    def stands_by(self) -> bool:
        """Whether this member is the coordinator or one of the next two, which have to know what the coordinator knows."""
        return any(member.id == self.member.id for member in self.seniors())

    @property
    def unstable(self) -> bool:
        """Whether more members are about to be taken for silent. In a small view all members see that at the same time."""
        if not self.crowded:
            return False
        return any(
            peer.suspicion is not None and peer.suspicion.confirmed and peer.member.id not in self.evidence.silent
            for peer in self.table.suspected()
        )

    @property
    def room(self) -> int:
        """The number of further members that the newest view may have by this member's settings."""
        return self.config.room - (0 if self.view is None else len(self.view))

    def present(self, now: float) -> frozenset[str]:
        """Ids of the members of the view that may be expected to answer.

        A member that does not ack this one may have been asked to vote it out (see ``acceptor``), and yet send other messages.
        """
        silent, since = self.evidence.silent, now - self.config.exclude_after
        gone = {key for key in silent if (peer := self.table.get(key)) is not None and peer.last_received < since}
        ids = () if self.view is None else self.view.ids
        return frozenset(key for key in ids if key not in gone and key not in self.evidence.proofs)

    def coordinates(self) -> bool:
        """Whether this member is the coordinator."""
        coordinator = self.coordinator()
        return coordinator is not None and coordinator.id == self.member.id

    def stop(self, error: StoppedError, turn: Turn | None = None) -> None:
        """End this lifetime; only the first reason counts. ``turn``: if ``error`` does not say what ended it."""
        if self.stopped is None:
            self.turn(turn_of(error) if turn is None else turn)
            self.stopped = error
            if self.config.liveness is Liveness.LEASES:
                self.outbox.emit(Ask(Withdraw((self.member.id,))))
            self.outbox.emit(Stopped(error))

    def close(self) -> None:
        """Leave as the last member: nobody is left to admit joiners. If its program has ended, it sends them that."""
        if self.member.id in self.evidence.ended:
            text = f"the job has ended: {self.member}, its last member, has come to the end of its program"
            for applicant in self.applicants:
                self.outbox.send_to(applicant.member.address, Refused(text, ended=True))
        self.stop(LeftError("left the job on its own wish"))

    def out(self, view: View) -> None:
        """The others went on in ``view``, without this member: it left or was excluded. Or it is in that view, and may not
        follow it, as it has voted for another one.
        """
        if self.going:
            self.stop(LeftError("left the job on its own wish"))
            return
        text = f"the other members went on without this one in {view}"
        if self.member.id in view:
            text = f"this member had voted for a list without itself, and the others went on in another one, {view}"
        self.stop(ExcludedError(f"{text}; start anew to join again", view))

    def reply(self, sender: str, address: Address, message: Message) -> None:
        """Answer the sender of a message, which may be this member itself."""
        if sender == self.member.id:
            self.outbox.send(self.member, message)
        else:
            self.outbox.send_to(address, message)

    def resolve(self, whole: View | None, delta: Delta | None) -> View | None:
        """The view of a message; None if it is inconsistent, or if this member does not hold the delta's parent."""
        if whole is not None:
            return whole if whole.consistent() else None
        if delta is None or self.view is None:
            return None
        return self.view if self.view.view_id == delta.view_id else delta.apply(self.view)

    def pull(self) -> Pull:
        """The request for the views chosen since ours."""
        return Pull(self.epoch, self.view_id)

    def told(self, known: str | None = None) -> Chosen:
        """The newest view as a message to a member whose view is ``known`` (None: the parent)."""
        if self.delta is not None and known in (None, self.delta.parent_id):
            return Chosen(None, self.driver, self.delta)
        return Chosen(self.view, self.driver, None, self.ancestors)
