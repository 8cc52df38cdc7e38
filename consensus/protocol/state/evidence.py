"""What is held against members of the current view, by strength, and the removals that follow from it.

PROOF: the process is certainly gone. SILENCE: suspicion expired. UNREADY: it never built its group.
SEVERED: it and another one cannot reach each other (see ``links``). LEFT: its own wish.
HINTs are not evidence; they only start a check, and a proposal waits a little for checks under way.

*Discounting* (see ``quorum``): a proven-dead member may be left out of a quorum only if it cannot have voted us out before
it died. It acked a ping that we sent at ``contact``, knowing no newer view than we; whoever acked us votes us out T_excl later
at the earliest; so a death before ``contact + T_excl`` (less clock drift) came first. A proof shows a death before the moment
at which it arrives; one by a supervisor also says for how long the process was gone by then. Judged with the contact there was
when the first proof arrived, and remembered. (In a newer view, which may be without us, it would ack us again: that is no
contact.) A later proof may show an earlier death: what was not discounted before may be then.

Members that the current view admitted need no contact: at most half of a view is new, and its most senior member is not, so no
quorum without us consists of newcomers alone. Whoever else is in it has to be discounted by contact, or to answer. But such an
answer must be younger than the newcomer's proof: else whoever gave it may have voted for the newcomer's own proposal since.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from ...config import Config, Liveness
from ...view import Cause, Removal, View
from .member_table import NEVER


@dataclass(frozen=True, slots=True)
class Proof:
    """One certain death. ``discounted``: whether a quorum may do without it."""

    time: float
    """When the first one arrived."""
    detail: str
    discounted: bool
    contact: float
    """By then."""


class EvidenceBook:
    """Evidence about the members of one view. Proofs survive into the next view, the rest is judged anew."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self.proofs: dict[str, Proof] = {}
        self.silent: dict[str, float] = {}
        self.unready: dict[str, float] = {}
        self.cut_off: dict[str, float] = {}
        """Who has to go because of broken links, and since when one is known; replaced by whoever judges them."""
        self.leaving: dict[str, float] = {}
        self.ended: frozenset[str] = frozenset()
        """Whose programs have come to their ends, as they said: members of the newest view, and of the one before."""
        self.parted: frozenset[str] = frozenset()
        """Who left with the newest view: a coordinator that leaves follows the view that it leads, though it is not in it."""
        self.last_calls: dict[str, int] = {}
        """The call that a leaving member has ended last: the others get to end it too."""
        self.checking: dict[str, float] = {}
        self.frozen_since: float | None = None
        """Since when some member is known to need a new epoch though nobody may have died."""
        self._newcomers: frozenset[str] = frozenset()
        """Whom the current view admitted, as far as its parent is known here."""

    def adopt(self, view: View, parent: View | None) -> None:
        """Follow a new view; ``parent``: the one that was followed before (None for none)."""
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

    def prove(self, member_id: str, detail: str, contact: float, now: float, age: float = 0.0) -> bool:
        """Record a proof of death; False where it is already known.

        ``age``: for so many seconds, by another clock, it was gone by now.
        """
        self.checking.pop(member_id, None)
        known = self.proofs.get(member_id)
        if known is not None:
            contact = known.contact
        least = 1 - self._config.drift
        discounted = contact != NEVER and now - age * least - contact < self._config.exclude_after * least
        if known is None:
            self.proofs[member_id] = Proof(now, detail, discounted, contact)
        elif discounted and not known.discounted:
            self.proofs[member_id] = replace(known, discounted=True)
        return known is None

    def freeze(self, now: float) -> bool:
        """Some member needs a new epoch; False where that is already known."""
        if self.frozen_since is not None:
            return False
        self.frozen_since = now
        return True

    def cut(self, out: Iterable[str], since: float) -> None:
        """Those have to go because of broken links, and nobody else; ``since`` is when one is known."""
        self.cut_off = dict.fromkeys(out, since)

    def retract_silence(self, member_id: str) -> None:
        """It answered after all."""
        self.silent.pop(member_id, None)

    @property
    def discounted(self) -> frozenset[str]:
        """Ids that rule (b) may do without."""
        return frozenset(key for key, proof in self.proofs.items() if proof.discounted or key in self._newcomers)

    @property
    def accused(self) -> frozenset[str]:
        """Ids of all that there is reason to remove, whoever is only cut off by broken links aside."""
        return frozenset((*self.proofs, *self.leaving, *self.unready, *self.silent))

    def late(self, time: float) -> frozenset[str]:
        """Ids discounted as newcomers alone whose proof came after ``time``: votes of then are no help with them."""
        return frozenset(key for key, proof in self.proofs.items() if not proof.discounted and proof.time > time)

    def leave(self, member_id: str, after_call: int | None, now: float, *, ended: bool = False) -> None:
        """It leaves on its own wish; ``after_call``: the call that it has ended last. ``ended``: as its program has ended."""
        self.leaving.setdefault(member_id, now)
        if ended:
            self.ended |= {member_id}
        if after_call is not None:
            self.last_calls[member_id] = after_call

    @property
    def harm(self) -> bool:
        """Whether somebody may never end the call that others are in with it."""
        return bool(self.proofs or self.silent or self.unready or self.cut_off)

    @property
    def last_call(self) -> int | None:
        """The call that everybody can still end, as members only leave; None where it would wait for somebody in vain."""
        if self.harm or self.frozen_since is not None:
            return None
        return max(self.last_calls.values(), default=None)

    def removals(self, view: View) -> tuple[Removal, ...]:
        """Everybody in ``view`` there is reason to remove, in seniority order, by the strongest reason."""
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
        """When the coordinator should propose for what is known (joins apart); None while there is no reason.

        A proof waits a few milliseconds for more of its kind, or until none has come for ``settle_quiet``; silence waits about
        a hundred. Checks under way hold a proposal back, but never longer than ``settle_max`` (Rapid's lesson: ten crashes are
        one view change). ``unstable``: others are about to be taken for silent, too; the proven dead do not wait for that.
        """
        found = self.proofs or self.silent or self.unready or self.cut_off or self.leaving
        if not found and self.frozen_since is None:
            return None  # the usual case, asked after every packet
        config = self._config
        reasons = [(proof.time, config.settle_proof) for proof in self.proofs.values()]
        if self.proofs:
            reasons.append((max(proof.time for proof in self.proofs.values()), config.settle_quiet))
        reasons += [(time, config.silence_settle) for time in (*self.silent.values(), *self.unready.values())]
        # Both ends of a broken link find out within one round: by then it shows who lacks several. With leases that takes
        # longer, as suspicions are lifted in between.
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
