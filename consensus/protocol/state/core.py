"""The state that the parts of a machine share: who we are, which views we know, what is believed and held against whom."""

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
"""So many members are told of evidence, and know who waits to join: the coordinator, and who would follow it."""

TRAIL = 64
"""So many view ids are remembered."""

TOLD_TRAIL = 16
"""So many of them go with a whole view."""


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
        """How ``view`` comes from its parent, where that was held here."""
        self.installed: View | None = None
        self.active: View | None = None
        self.trail: dict[int, str] = {}
        """The ids of the newest views of this member's chain, by epoch: those that it followed, and before them those that it
        was told of when it joined."""
        self._since = 0
        """The epoch of the first view that it followed."""
        self.reasons: dict[str, Reason] = {}
        """Why members of older views are not in the installed one (replaced, never changed: other threads read it)."""
        self.driver = ""
        """Who installs ``view``, as far as we know."""
        self.acked: dict[str, float] = {}
        """When we last acked a ping of each member: the other side of the lease."""
        self.shunned: set[str] = set()
        """Whom we do not ack any more in this epoch, having been asked to exclude them (see ``acceptor``)."""
        self.progress = NOWHERE
        """Where the data plane is, as it was told last."""
        self.committed_to_leave = False
        """Whether a trailer that says that this member leaves may have been read by others; it need not know yet that its call
        has ended. For good, whatever becomes of that call.
        """
        self.gone: frozenset[str] = frozenset()
        """Whose death led to ``view``. What they chose for its epoch before that nobody can have followed (invariant 4)."""
        self.life = LIFE.start
        self.standing = STANDING.start
        """Of ``view``."""
        self.store_away = ""
        """Why the shared store does not answer, empty while it does."""
        self.stopped: StoppedError | None = None

    @property
    def epoch(self) -> int:
        """Of the newest chosen view; 0 before the first."""
        return 0 if self.view is None else self.view.epoch

    @property
    def view_id(self) -> str:
        """Of the newest chosen view."""
        return NO_VIEW_ID if self.view is None else self.view.view_id

    def follow(self, view: View, trail: tuple[str, ...] = (), *, driver: str = "") -> None:
        """``view`` is the newest chosen one; ``trail``: the views before it, as whoever told of it knows them.

        ``driver``: who installs it, as far as we know.
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
        """What follows from who is in ``view``, the newest one, and in the table by now."""
        self.crowded = len(self.table) >= self.config.mesh_limit
        self.gone = frozenset(key for key in self.evidence.proofs if key not in view)
        stale = now - 2 * self.config.exclude_after
        self.acked = {key: time for key, time in self.acked.items() if key in view or time > stale}

    def install(self, removed: Iterable[Reason]) -> None:
        """The newest view has all reports; ``removed``: who is not in it any more, and why."""
        self.advance(StandingEvent.INSTALL)
        before = {} if self.installed is self.active else self.reasons  # nobody has acted on these yet
        self.installed = self.view
        self.reasons = before | {reason.member_id: reason for reason in removed}

    def activate(self) -> None:
        """Every member of the installed view is ready."""
        self.advance(StandingEvent.ACTIVATE)
        self.active = self.installed

    def shun(self, shunned: set[str]) -> None:
        """Ack none of ``shunned`` in this epoch, whoever else may be added to it."""
        self.shunned = shunned

    def note_store(self, away: str) -> None:
        """Why the shared store does not answer; empty where it does."""
        self.store_away = away

    def proceed(self, progress: Progress) -> None:
        """The data plane is there now."""
        self.progress = progress
        self.committed_to_leave |= progress.leaving

    def followed(self, epoch: int, view_id: str) -> bool:
        """Whether this member is or was in that view: whoever holds it may still vote on what becomes of this member."""
        return epoch >= self._since and self.trail.get(epoch) == view_id

    @property
    def ancestors(self) -> tuple[str, ...]:
        """The ids of the views before the newest one, newest first, without a gap."""
        found: list[str] = []
        while len(found) < TOLD_TRAIL and (view_id := self.trail.get(self.epoch - 1 - len(found))) is not None:
            found.append(view_id)
        return tuple(found)

    def descends(self, view: View, trail: tuple[str, ...]) -> bool:
        """Whether a newer ``view`` of this cluster comes from the active one, as far as can be told.

        Where two lists were chosen for one epoch, and all who voted for both are dead, a member can act in one of them, and be
        told later of what those dead had chosen after the other: that can never be active without it.
        """
        if self.active is None or view.view_id == self.active.view_id:
            return True
        back = view.epoch - self.active.epoch - 1
        before = (view.parent_id, *trail[1:])
        return back < 0 or back >= len(before) or before[back] == self.active.view_id

    @property
    def leaving(self) -> bool:
        """Whether it has asked to leave."""
        return self.life is Life.LEAVING

    @property
    def going(self) -> bool:
        """Whether it wants to leave, as others may have been told; or has left by the view that it leads."""
        evidence, own_id = self.evidence, self.member.id
        told = self.leaving or self.committed_to_leave or own_id in evidence.leaving
        return told or own_id in evidence.parted

    def advance(self, news: StandingEvent) -> None:
        """The newest chosen view comes to life, step by step."""
        self.standing = STANDING.after(self.standing, news)

    def turn(self, turn: Turn) -> None:
        """This member's life takes a turn."""
        self.life = LIFE.after(self.life, turn)

    def coordinator(self) -> Member | None:
        """The first member of the view that nothing is held against, and that reaches a quorum."""
        if self.view is None:
            return None
        for member in self.view.members:
            book = self.evidence
            out = member.id in book.proofs or member.id in book.unready or member.id in book.cut_off
            if not out and self.table.trusted(member.id):
                return member
        return self.member if self.member.id in self.view else None

    def seniors(self, without: str = "", many: int = SENIORS) -> list[Member]:
        """The coordinator and the next in seniority, ``many`` in all; those proven dead and ``without`` are left out."""
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
        """So many members at random that nothing is held against."""
        if not self.crowded:
            able = [p.member for p in self.table if p.status is Status.ALIVE and p.member.id != without]
            return self.rng.sample(able, min(number, len(able)))
        if self.view is None:
            return []
        chosen: dict[str, Member] = {}
        for _ in range(4 * number):  # nearly everybody is able: no list of a thousand for that
            member = self.view.members[self.rng.randrange(len(self.view))]
            if member.id not in (self.member.id, without) and self.table.trusted(member.id):
                chosen[member.id] = member
            if len(chosen) == number:
                break
        return list(chosen.values())

    def stands_by(self) -> bool:
        """Whether this member is the coordinator or one of the next two: whoever has to know what a coordinator must."""
        return any(member.id == self.member.id for member in self.seniors())

    @property
    def unstable(self) -> bool:
        """Whether more members are about to be taken for silent. In a small view that is at the same time everywhere."""
        if not self.crowded:
            return False
        return any(
            peer.suspicion is not None and peer.suspicion.confirmed and peer.member.id not in self.evidence.silent
            for peer in self.table.suspected()
        )

    @property
    def room(self) -> int:
        """How many more members the newest view may have by the own settings."""
        return self.config.room - (0 if self.view is None else len(self.view))

    def present(self, now: float) -> frozenset[str]:
        """Ids of the members of the view that may be expected to answer.

        Who does not ack this member may have been asked to vote it out (see ``acceptor``), and be heard of all the same.
        """
        silent, since = self.evidence.silent, now - self.config.exclude_after
        gone = {key for key in silent if (peer := self.table.get(key)) is not None and peer.heard < since}
        ids = () if self.view is None else self.view.ids
        return frozenset(key for key in ids if key not in gone and key not in self.evidence.proofs)

    def coordinates(self) -> bool:
        """Whether that is this member."""
        coordinator = self.coordinator()
        return coordinator is not None and coordinator.id == self.member.id

    def stop(self, error: StoppedError, turn: Turn | None = None) -> None:
        """End this lifetime; only the first reason counts. ``turn``: where ``error`` does not say what ended it."""
        if self.stopped is None:
            self.turn(turn_of(error) if turn is None else turn)
            self.stopped = error
            if self.config.liveness is Liveness.LEASES:
                self.outbox.emit(Ask(Withdraw((self.member.id,))))
            self.outbox.emit(Stopped(error))

    def close(self) -> None:
        """Go as the last member, on its own wish: nobody is left to let anybody in. Where its program has ended, it says so."""
        if self.member.id in self.evidence.ended:
            text = f"the job has ended: {self.member}, its last member, has come to the end of its program"
            for applicant in self.applicants:
                self.outbox.send_to(applicant.member.address, Refused(text, ended=True))
        self.stop(LeftError("left the job on its own wish"))

    def out(self, view: View) -> None:
        """The others went on without this member in ``view``: as it wished, or not."""
        if self.going:
            self.stop(LeftError("left the job on its own wish"))
        else:
            self.stop(ExcludedError(f"the other members went on without this one in {view}; start anew to join again", view))

    def reply(self, sender: str, address: Address, message: Message) -> None:
        """Answer whoever sent something, oneself included."""
        if sender == self.member.id:
            self.outbox.send(self.member, message)
        else:
            self.outbox.send_to(address, message)

    def resolve(self, whole: View | None, delta: Delta | None) -> View | None:
        """The view that a message is about; None where it makes no sense, or a parent is meant that is not held here."""
        if whole is not None:
            return whole if whole.consistent() else None
        if delta is None or self.view is None:
            return None
        return self.view if self.view.view_id == delta.view_id else delta.apply(self.view)

    def pull(self) -> Pull:
        """The question what was chosen since our view."""
        return Pull(self.epoch, self.view_id)

    def told(self, known: str | None = None) -> Chosen:
        """The newest view, for a member whose view is ``known`` (None: the parent)."""
        if self.delta is not None and known in (None, self.delta.parent_id):
            return Chosen(None, self.driver, self.delta)
        return Chosen(self.view, self.driver, None, self.ancestors)
