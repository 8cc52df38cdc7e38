"""The state that the parts of a machine share: who we are, which views we know, what is believed and held against whom."""

from __future__ import annotations

import logging
from itertools import islice
from typing import TYPE_CHECKING

from ..config import Config
from ..errors import StoppedError
from ..member import Address, Member
from ..messages import Chosen, Message, Pull
from ..progress import NOWHERE
from ..view import NO_VIEW_ID, Delta, Reason, View
from .awareness import Awareness
from .dissemination import Dissemination
from .effects import Stopped
from .evidence import EvidenceBook
from .history import History
from .join import Applicants
from .life import LIFE, Life, Turn, turn_of
from .member_table import MemberTable
from .outbox import Outbox
from .standing import STANDING, News

if TYPE_CHECKING:
    from random import Random

__all__ = ["Core"]

SENIORS = 3
"""So many members are told of evidence: the coordinator, and who would follow it."""


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
        self.history = History()
        self.applicants = Applicants(config.max_members)
        self.awareness = Awareness(config.awareness_max)
        self.rumours = Dissemination(config.retransmit_mult)
        self.view: View | None = None
        self.delta: Delta | None = None
        """How ``view`` comes from its parent, where that was held here."""
        self.installed: View | None = None
        self.active: View | None = None
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
        self.life = LIFE.start
        self.standing = STANDING.start
        """Of ``view``."""
        self.stopped: StoppedError | None = None

    @property
    def epoch(self) -> int:
        """Of the newest chosen view; 0 before the first."""
        return 0 if self.view is None else self.view.epoch

    @property
    def view_id(self) -> str:
        """Of the newest chosen view."""
        return NO_VIEW_ID if self.view is None else self.view.view_id

    @property
    def leaving(self) -> bool:
        """Whether it has asked to leave."""
        return self.life is Life.LEAVING

    def advance(self, news: News) -> None:
        """The newest chosen view comes to life, step by step."""
        self.standing = STANDING.after(self.standing, news)

    def turn(self, turn: Turn) -> None:
        """This member's life takes a turn."""
        self.life = LIFE.after(self.life, turn)

    def coordinator(self) -> Member | None:
        """The first member of the view that nothing is held against."""
        if self.view is None:
            return None
        for member in self.view.members:
            if member.id not in self.evidence.proofs and self.table.trusted(member.id):
                return member
        return self.member if self.member.id in self.view else None

    def seniors(self, without: str = "") -> list[Member]:
        """The coordinator and the next two in seniority, those who are proven dead and ``without`` left out."""
        coordinator = self.coordinator()
        if self.view is None or coordinator is None:
            return []
        rest = islice(self.view.members, self.view.index(coordinator.id), None)
        return list(islice((m for m in rest if m.id not in self.evidence.proofs and m.id != without), SENIORS))

    @property
    def unstable(self) -> bool:
        """Whether more members are about to be taken for silent. In a small view that is at the same time everywhere."""
        if not self.crowded:
            return False
        return any(
            peer.suspicion is not None and peer.suspicion.confirmed and peer.member.id not in self.evidence.silent
            for peer in self.table.suspected()
        )

    def coordinates(self) -> bool:
        """Whether that is this member."""
        coordinator = self.coordinator()
        return coordinator is not None and coordinator.id == self.member.id

    def stop(self, error: StoppedError, turn: Turn | None = None) -> None:
        """End this lifetime; only the first reason counts. ``turn``: where ``error`` does not say what ended it."""
        if self.stopped is None:
            self.turn(turn_of(error) if turn is None else turn)
            self.stopped = error
            self.outbox.emit(Stopped(error))

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
        return Chosen(self.view, self.driver)

    def compare(self, sender: str, address: Address, epoch: int, view_id: str, *, may_tell: bool) -> None:
        """Anti-entropy: the digest of a view is its id. Tell laggards and the excluded, ask who is ahead."""
        if self.view is None or (epoch, view_id) == (self.epoch, self.view_id):
            return
        if epoch == 0 and sender not in self.view:  # a joiner; but a founder may have missed the founding
            return
        if epoch > self.epoch:
            self.outbox.send_to(address, self.pull())
        elif epoch < self.epoch and may_tell:
            self.outbox.send_to(address, self.told(view_id))
        elif epoch == self.epoch:
            text = f"{sender} holds another view of epoch {epoch}: {view_id} against {self.view_id}"
            self.outbox.note(logging.CRITICAL, "fork", text)
