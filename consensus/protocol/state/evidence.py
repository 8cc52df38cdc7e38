"""The evidence against members of the current view, by strength, and the removals that follow from it.

PROOF: the process is certainly gone. SILENCE: suspicion expired. UNREADY: the member never built its group.
SEVERED: the member and another one cannot reach each other (see ``links``). LEFT: the member asked to leave.
HINTs are not evidence; they only start a check, and a proposal waits a little for checks under way.

*Discounting* (see ``quorum``): a quorum may do without a proven-dead member only if that member cannot have voted us out before
it died. It acked a ping that we sent at ``contact``, knowing no newer view than we; a member that acked us votes us out T_excl
later at the earliest; so it died before it could if it died before ``contact + T_excl`` (less clock drift). A proof shows a
death before the moment at which the proof arrives; a supervisor's proof also says for how long the process was gone by then.
The decision uses the contact at the arrival of the first proof, and is remembered. (In a newer view, which may be without us,
the member would ack us again: that is no contact.) A later proof may show an earlier death, so a member that was not discounted
before may be then.

A member whose agent outlives its program says with its last words whether it has voted for a successor of the view. One that
has not needs no contact: it has voted nobody out, and never will.

Members that the current view admitted need no contact: at most half of a view is new, and its most senior member is not, so no
quorum without us consists of newcomers alone. Every other member of such a quorum has to be discounted by contact, or to
answer. But such an answer must be younger than the newcomer's proof: otherwise the answering member may have voted for the
newcomer's own proposal since.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from ...config import Config, Liveness
from ...view import Cause, Removal, View
from .member_table import NEVER


@dataclass(frozen=True, slots=True)
class Proof:
    """One certain death. ``discounted``: whether a quorum may do without that member."""

    time: float
    """When the first proof of this death arrived."""
    detail: str
    discounted: bool
    contact: float
    """The contact with the member by then."""


class EvidenceBook:
    """Evidence about the members of one view. Proofs and leaves carry over into the next view, the rest is judged again."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self.proofs: dict[str, Proof] = {}
        self.silent: dict[str, float] = {}
        self.unready: dict[str, float] = {}
        self.cut_off: dict[str, float] = {}
        """The members that have to go because of broken links, and since when a broken link is known; ``cut`` replaces it."""
        self.leaving: dict[str, float] = {}
        self.ended: frozenset[str] = frozenset()
        """The members that announced the end of their programs: of the newest view, and of the one before."""
        self.parted: frozenset[str] = frozenset()
        """The members that left with the newest view: a coordinator that leaves follows the view that it leads without itself.
        """
        self.last_calls: dict[str, int] = {}
        """The last call that each leaving member has ended: the others end that call too."""
        self.checking: dict[str, float] = {}
        self.frozen_since: float | None = None
        """Since when some member is known to need a new epoch, though perhaps no member has died."""
        self._newcomers: frozenset[str] = frozenset()
        """The members that the current view admitted, if its parent is known here."""

    def adopt(self, view: View, parent: View | None) -> None:
        """Follow a new view; ``parent``: the view that was followed before (None for none)."""
        new = frozenset() if parent is None or parent.view_id != view.parent_id else view.since(parent).newcomers
        self._newcomers = new if 2 * len(new) <= len(view) else frozenset()
        self.proofs = {key: proof for key, proof in self.proofs.items() if key in view}
        self.ended = frozenset(key for key in self.ended if key in view or (parent is not None and key in parent))
        self.parted = frozenset(key for key in self.leaving if key not in view)
        self.leaving = {key: since for key, since in self.leaving.items() if key in view}
        self.last_calls = {key: call for key, call in self.last_calls.items() if key in view}
        self.checking = {key: since for key, since in self.checking.items() if key in view}
        self.silent.clear()
        self.unready.clear()
        self.cut_off = {}
        self.frozen_since = None

    def prove(
        self, member_id: str, detail: str, contact: float, now: float, age: float = 0.0, *, no_vote: bool = False
    ) -> bool:
        """Record a proof of death; returns False if the death is already known.

        ``age``: seconds, by another clock, for which the member was gone by now. ``no_vote``: it said that it had not voted.
        """
        self.checking.pop(member_id, None)
        known = self.proofs.get(member_id)
        if known is not None:
            contact = known.contact
        least = 1 - self._config.drift
        in_touch = contact != NEVER and now - age * least - contact < self._config.exclude_after * least
        discounted = no_vote or in_touch
        if known is None:
            self.proofs[member_id] = Proof(now, detail, discounted, contact)
        elif discounted and not known.discounted:
            self.proofs[member_id] = replace(known, discounted=True)
        return known is None

    def freeze(self, now: float) -> bool:
        """Some member needs a new epoch; returns False if that is already known."""
        if self.frozen_since is not None:
            return False
        self.frozen_since = now
        return True

    def cut(self, out: Iterable[str], since: float) -> None:
        """Exactly the members ``out`` have to go because of broken links; ``since``: when a broken link was first known."""
        self.cut_off = dict.fromkeys(out, since)

    def retract_silence(self, member_id: str) -> bool:
        """The member answered after all; whether it had been called silent."""
        return self.silent.pop(member_id, None) is not None

    @property
    def discounted(self) -> frozenset[str]:
        """Ids of the members that rule (b) may do without."""
        return frozenset(key for key, proof in self.proofs.items() if proof.discounted or key in self._newcomers)

    @property
    def accused(self) -> frozenset[str]:
        """Ids of all members that there is reason to remove, except those only cut off by broken links."""
        return frozenset((*self.proofs, *self.leaving, *self.unready, *self.silent))

    def late(self, time: float) -> frozenset[str]:
        """Ids discounted only as newcomers whose proof arrived after ``time``: votes from before do not count beside them."""
        return frozenset(key for key, proof in self.proofs.items() if not proof.discounted and proof.time > time)

    def leave(self, member_id: str, after_call: int | None, now: float, *, ended: bool = False) -> None:
        """The member asked to leave; ``after_call``: the last call that it has ended. ``ended``: because its program ended."""
        self.leaving.setdefault(member_id, now)
        if ended:
            self.ended |= {member_id}
        if after_call is not None:
            self.last_calls[member_id] = after_call

    @property
    def harm(self) -> bool:
        """Whether some member may never end the call that others are in with it."""
        return bool(self.proofs or self.silent or self.unready or self.cut_off)

    @property
    def last_call(self) -> int | None:
        """The call that all members can still end because some only leave; None if it could wait forever for some member."""
        if self.harm or self.frozen_since is not None:
            return None
        return max(self.last_calls.values(), default=None)

    def removals(self, view: View) -> tuple[Removal, ...]:
        """All members of ``view`` that there is reason to remove, in seniority order, each with the strongest reason."""
        found = []
        for member in view.members:
            cause = self.cause(member.id)
            if cause is not None:
                found.append(Removal(member.id, cause))
        return tuple(found)

    def cause(self, member_id: str) -> Cause | None:
        """The strongest reason to remove a member, None if there is none."""
        if member_id in self.proofs:
            return Cause.PROOF
        if member_id in self.leaving:
            return Cause.LEFT
        if member_id in self.unready:
            return Cause.UNREADY
        if member_id in self.silent:
            return Cause.SILENCE
        if member_id in self.cut_off:
            return Cause.SEVERED
        return None

    def due(self, *, unstable: bool = False) -> float | None:
        """When the coordinator should propose because of this evidence (joins apart); None while there is no reason.

        A proof waits a few milliseconds for further proofs, or until none has arrived for ``settle_quiet``; silence waits about
        a hundred. Checks under way hold a proposal back, but never longer than ``settle_max`` (Rapid's lesson: ten crashes are
        one view change). ``unstable``: others are about to be taken for silent, too; proofs do not wait for that.
        """
        found = self.proofs or self.silent or self.unready or self.cut_off or self.leaving
        if not found and self.frozen_since is None:
            return None  # the usual case; this runs after every packet
        config = self._config
        reasons = [(proof.time, config.settle_proof) for proof in self.proofs.values()]
        if self.proofs:
            reasons.append((max(proof.time for proof in self.proofs.values()), config.settle_quiet))
        reasons += [(time, config.silence_settle) for time in (*self.silent.values(), *self.unready.values())]
        # Both ends of a broken link find out within one round: by then it is clear which member has several. With leases that
        # takes longer, because suspicions are lifted in between.
        rounds = 1 if config.liveness is Liveness.PINGS else 3
        reasons += [(time, rounds * config.contact_interval) for time in self.cut_off.values()]
        reasons += [(time, 0.0) for time in self.leaving.values()]
        if self.frozen_since is not None:
            reasons.append((self.frozen_since, 0.0))
        if not reasons:
            return None
        first = min(time + settle for time, settle in reasons)
        if self.checking or (unstable and not self.proofs):
            return max(first, min(time for time, _ in reasons) + config.settle_max)
        return first
