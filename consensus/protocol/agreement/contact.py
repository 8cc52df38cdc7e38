"""Meeting members of other chains of views: those that were left behind, and rival sides (see ``side``).

A member that learns of a stranger with another view introduces itself: newest view, coordinator, claim. So a member that the
others left behind learns that it is out, even if no member that it knew lives any more. The coordinator also looks, less and
less often, for members that were removed without proof, since two sides of a healed partition do not ping each other any more.

If two sides meet, each coordinator compares the two claims, and the lower side stops. That needs no answer: a coordinator's
claim for its side never falls. So if side 1 stops because side 2 claimed more, side 2 does not stop because of an earlier claim
of side 1; nor do three sides in a circle. States are never merged. Under ``any`` that ends a fork; under ``majority`` it
happens only to clusters of one job that were founded apart.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from math import inf

from ...config import Policy
from ...errors import FoundedApartError, OvertakenError, StoppedError
from ...member import Address, Member
from ...messages import Claim, EvidenceKind, Introduction, JoinReply, Overtaken, Pull
from ...view import View
from ..detection.accusations import Accusations
from ..detection.detection import Detection
from ..state.core import Core
from ..state.side import Relation, claim, related
from .installer import Installer
from .register import Register

INTRODUCE_EVERY = 0.2
"""Seconds between two introductions to one address."""

TOLD = 256
"""The most addresses remembered for that."""

LOST = 64
"""The most members removed without proof that are looked for: the latest ones."""

LOOK_AT_MOST = 4.0
"""Seconds between two pings of a lost member grow up to this."""

LOOK_FOR = 3600.0
"""After so many seconds a lost member is not looked for any more: another process may have its address."""

TELLS = 4
"""How many times a coordinator announces to its side that the side stops, ``resend`` apart, before it stops itself."""

_ASTRAY = "it went on in another view"


@dataclass(slots=True)
class _Lost:
    member: Member
    until: float
    pause: float
    due: float


@dataclass(slots=True)
class _GivingIn:
    """The side stops: the announcement to its members, and how many times it is still to be sent."""

    error: StoppedError
    met: Introduction
    message: Overtaken
    left: int
    due: float


class Contact:
    """One member's contacts with members outside of its view."""

    def __init__(
        self, core: Core, detection: Detection, accusations: Accusations, installer: Installer, register: Register
    ) -> None:
        self._core = core
        self._detection = detection
        self._accuse = accusations.accuse
        self._installer = installer
        self._look = register.look
        self._told: dict[Address, float] = {}
        self._lost: dict[str, _Lost] = {}
        self._claimed: Claim | None = None
        self._giving_in: _GivingIn | None = None

    @property
    def lost(self) -> tuple[Member, ...]:
        """Members that were removed without proof, and may live on elsewhere."""
        return tuple(lost.member for lost in self._lost.values())

    # Time

    def tick(self, now: float) -> None:
        """Look for lost members; end this side if it gives in."""
        core = self._core
        if self._giving_in is not None and now >= self._giving_in.due:
            self._give_in(self._giving_in, now)
        if self._lost and core.coordinates():
            for lost in list(self._lost.values()):
                if now >= lost.until:
                    self.gone(lost.member.id)
                elif now >= lost.due:
                    lost.pause = min(2 * lost.pause, LOOK_AT_MOST)
                    lost.due = now + lost.pause
                    self._detection.ping_applicant(lost.member, now)

    def deadline(self) -> float:
        """When ``tick`` is needed next."""
        first = inf if self._giving_in is None else self._giving_in.due
        if self._lost and self._core.coordinates():
            first = min(first, *(lost.due for lost in self._lost.values()))
        return first

    def adopt(self, view: View, parent: View | None, now: float) -> None:
        """Follow a new view; call before the evidence of its parent is forgotten."""
        for member_id in [key for key in self._lost if key in view]:
            del self._lost[member_id]
        evidence = self._core.evidence
        gone = () if parent is None else view.since(parent).departed
        parted = [each for each in gone if each.id not in evidence.proofs and each.id not in evidence.leaving][:LOST]
        for member in parted:
            while len(self._lost) >= LOST:
                del self._lost[next(iter(self._lost))]
            self._lost[member.id] = _Lost(member, now + LOOK_FOR, INTRODUCE_EVERY, now + INTRODUCE_EVERY)
        if parted:
            self._claimed = None  # an earlier claim included these members, which may now be the other side

    def gone(self, member_id: str) -> None:
        """Stop looking for a lost member: it is certainly dead, or ``LOOK_FOR`` is over."""
        self._lost.pop(member_id, None)

    # Who we are

    def introduce(self, address: Address, now: float) -> None:
        """Introduce this member to the process at ``address``, at most every ``INTRODUCE_EVERY``."""
        core, coordinator = self._core, self._core.coordinator()
        if core.view is None or coordinator is None or not self._installer.may_tell or self._giving_in is not None:
            return
        if self._due(address, now):
            acts = core.active is core.view
            core.outbox.send_to(address, Introduction(core.view, coordinator, self._claim(core.view), acts))

    def _due(self, address: Address, now: float) -> bool:
        if now - self._told.get(address, -inf) < INTRODUCE_EVERY:
            return False
        self._told.pop(address, None)
        while len(self._told) >= TOLD:
            del self._told[next(iter(self._told))]
        self._told[address] = now
        return True

    def _claim(self, view: View) -> Claim:
        """The claim of this side: never lower than its earlier claims."""
        made = claim(view, self._core.progress.finished)
        if self._claimed is None or made.above(self._claimed):
            self._claimed = made
        return self._claimed

    # Whom we meet

    def compare(self, sender: str, address: Address, epoch: int, view_id: str, now: float) -> None:
        """Anti-entropy: the digest of a view is its id. Inform members behind and strangers, ask members ahead."""
        core = self._core
        view = core.view
        if view is None or view_id == view.view_id or (epoch == 0 and sender not in view):
            return
        if epoch > view.epoch:
            core.outbox.send_to(address, core.pull())
        elif sender not in view:
            self.introduce(address, now)
        elif self._astray(epoch, view_id):  # a member of ours holds a view that we never had
            self.introduce(address, now)
            if core.config.policy is Policy.ANY:
                self._accuse(sender, EvidenceKind.UNREADY, _ASTRAY, now)
        elif self._installer.may_tell:
            core.outbox.send_to(address, core.told(view_id))

    def met(self, sender: str, address: Address, now: float) -> None:
        """Whoever reports here, and is in another view than this member, learns of this one: it may be out."""
        view = self._core.view
        if view is not None and sender not in view:
            self.introduce(address, now)

    def pulled(self, sender: str, address: Address, message: Pull, now: float) -> None:
        """A member behind asks what was chosen since; a joiner gets its INSTALL again, with the whole view."""
        core = self._core
        if core.view is None or message.epoch >= core.view.epoch:
            return
        if sender in core.view or sender == core.member.id:
            joins = None if message.epoch else self._installer.whole(sender)
            core.reply(sender, address, core.told(message.view_id) if joins is None else joins)
        else:
            self.introduce(address, now)

    def pointed(self, view: View | None, coordinator: Member | None, now: float) -> None:
        """A beacon, a late answer to a request of our own, or a joiner's hint: ``coordinator`` acts in ``view``."""
        core = self._core
        if core.view is None or view is None or coordinator is None or coordinator.id == core.member.id:
            return
        if core.member.id in view and view.cluster == core.view.cluster:
            if view.epoch > core.view.epoch:
                core.outbox.send(coordinator, core.pull())
        elif view.view_id != core.view.view_id:
            self.introduce(coordinator.address, now)

    def on_introduction(self, sender: str, met: Introduction, now: float) -> None:
        """Another member holds another view. A view that dead members had chosen is no fork: it ends with them."""
        core, view = self._core, met.view
        if core.view is None or core.stopped is not None or sender in core.gone:
            return
        relation = related(core.config.policy, core.member.id, core.view, view)
        if relation is Relation.AHEAD:
            self._left_behind(view, met.claim, now)
        elif relation is Relation.RIVAL and core.config.policy is Policy.STORAGE:
            self._look()  # the store says which of them goes on
        elif relation is Relation.RIVAL:
            self._contest(met, core.view, now)
        elif core.config.policy is not Policy.ANY and met.acts and self._astray(view.epoch, view.view_id):
            self._acts_elsewhere(view)
        elif relation is Relation.TWIN:
            if core.config.policy is not Policy.ANY:
                self.introduce(met.coordinator.address, now)
        else:
            self.pointed(view, met.coordinator, now)

    def _astray(self, epoch: int, view_id: str) -> bool:
        """Whether this member knows another view in that epoch of its own chain."""
        return self._core.trail.get(epoch, view_id) != view_id

    def _acts_elsewhere(self, view: View) -> None:
        """``view`` is active, though our chain has another view of that epoch: all members that voted for both are dead.

        The members that act in ``view`` follow no view of our chain. So our view can never be active if it includes any of
        them.
        """
        core, mine = self._core, self._core.view
        assert mine is not None
        if core.active is not None and core.active.epoch >= view.epoch:
            core.outbox.note(logging.CRITICAL, "fork", f"two views act in epoch {view.epoch}: {view} against {core.active}")
        elif core.member.id not in view and any(member_id in view for member_id in mine.ids):
            core.out(view)

    def bring_together(self, one: JoinReply, other: JoinReply, now: float) -> None:
        """This joiner has found two sides: inform each coordinator of the other side."""
        for told, known in ((one, other), (other, one)):
            if told.coordinator is not None and self._due(told.coordinator.address, now):
                self._core.outbox.send(told.coordinator, known)

    def _left_behind(self, view: View, theirs: Claim | None, now: float) -> None:
        """Members of our view went on without us. Under ``any`` the larger part does not give way to the smaller."""
        core = self._core
        mine = core.view
        assert mine is not None
        if core.config.policy is Policy.ANY:
            rest = [member.id for member in mine.members if member.id not in view and core.table.trusted(member.id)]
            steps = core.progress.finished
            if (steps, len(rest)) > ((steps, len(view)) if theirs is None else (theirs.steps, theirs.size)):
                for member_id in mine.ids:
                    if member_id in view:
                        self._accuse(member_id, EvidenceKind.UNREADY, _ASTRAY, now)
                return
        core.out(view)

    def left_out(self, view: View, now: float) -> None:
        """``view`` was chosen, and this member is not in it, or the view is of another chain."""
        core = self._core
        if core.view is not None:
            if related(core.config.policy, core.member.id, core.view, view) is Relation.AHEAD:
                self._left_behind(view, None, now)
            elif view.cluster != core.view.cluster:
                for member in view.members[:2]:
                    self.introduce(member.address, now)

    # Two sides

    def _contest(self, met: Introduction, mine: View, now: float) -> None:
        """One of the two sides stops: the same one, at whichever side the claims are compared."""
        core, coordinator = self._core, self._core.coordinator()
        if coordinator is None or self._giving_in is not None:
            return
        if coordinator.id != core.member.id:
            if self._due(coordinator.address, now):
                core.outbox.send(coordinator, met)
        elif not met.claim.above(self._claim(mine)):
            self.introduce(met.coordinator.address, now)
        else:
            self._giving_in = _GivingIn(self._defeat(mine, met.view), met, Overtaken(mine.view_id, met.view), TELLS, now)
            self._give_in(self._giving_in, now)

    def _give_in(self, giving_in: _GivingIn, now: float) -> None:
        core = self._core
        if giving_in.left <= 0:
            core.stop(giving_in.error)
            return
        giving_in.left -= 1
        giving_in.due = now + core.config.resend
        for member in () if core.view is None else core.view.members:
            if member.id != core.member.id:
                core.outbox.send(member, giving_in.message)
        for lost in self._lost.values():  # perhaps a third side, which the winner does not know
            core.outbox.send(lost.member, giving_in.met)

    def on_overtaken(self, sender: str, message: Overtaken) -> None:
        """Our coordinator announces that our side stops."""
        core = self._core
        mine = core.view
        if mine is None or sender not in mine or message.view_id not in (mine.view_id, mine.parent_id):
            return
        if related(core.config.policy, core.member.id, mine, message.view) is Relation.RIVAL:
            core.stop(self._defeat(mine, message.view))

    def _defeat(self, mine: View, other: View) -> StoppedError:
        if mine.cluster == other.cluster:
            text = f"the job was cut in two (policy any), and {other} goes on: what {mine} did since then is lost"
            return OvertakenError(f"{text}; start anew to join again", other)
        told = [f"{view}, at {', '.join(f'{each.host}:{each.port}' for each in view.members[:4])}" for view in (mine, other)]
        if self._core.config.policy is Policy.ANY:
            return OvertakenError(f"two clusters of the job met (policy any): {told[0]}; and {told[1]}, which goes on", other)
        return FoundedApartError(
            f"two clusters of job {self._core.config.job!r} were founded apart: {told[0]}; and {told[1]}, which goes on. "
            "Give all members the same introducers, and an initial_size above half of their number; then start this one anew",
            other,
        )
