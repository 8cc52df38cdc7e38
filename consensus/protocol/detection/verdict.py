"""When a suspect's silence becomes evidence: from what time it counts, and which members may judge it.

Never before T_excl (``exclude_after``) after the last sign of life: voters whose acks are younger would have to refuse anyway.
In a small view all ping all and judge by that. In a large view only members whose own pings failed judge, once they are enough.
With leases each member judges by its own pings alone, which begin once a lease was not renewed, or another member suspects.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

from ...config import Policy
from ...member import Member
from ...messages import EvidenceKind, Status, Update
from ...view import View
from ..state.core import Core
from ..state.lifeguard import ENOUGH, Suspicion
from ..state.member_table import Peer
from .fences import Fences
from .leases import Leases
from .watch import Watch, watchers

Accuse = Callable[[str, EvidenceKind, str, float], None]


class Verdicts:
    """One member's judgement of its suspects. ``leases``: None without leases; ``accuse`` receives the evidence."""

    def __init__(self, core: Core, leases: Leases | None, accuse: Accuse) -> None:
        self._core = core
        self._leases = leases
        self._accuse = accuse
        self._fences = Fences(core)

    def adopt(self, view: View) -> None:
        """Follow a new view."""
        self._fences.adopt(view)

    def expire(self, peer: Peer, suspects: int, now: float) -> None:
        """Do what is due about a suspect: have it killed, or accuse it of silence. ``suspects``: the number of suspects."""
        if peer.suspicion is None:
            return
        if now >= self.fence_time(peer, suspects):
            self._fences.fence(peer, self.silent_since(peer), now)
        if now >= self.time(peer):
            silent = now - self.silent_since(peer)
            detail = f"no answer for {silent:.2f} s, suspected by {len(peer.suspicion.accusers)}"
            self._accuse(peer.member.id, EvidenceKind.SILENCE, detail, now)

    def silent_since(self, peer: Peer) -> float:
        """The time of its last sign of life, or the later time from which this member would have seen a sign.

        With leases the latter is the time at which this member began to read the suspect's lease. If it does not read that
        lease, and in a large view, it is the first ping that the suspect did not answer.
        """
        unanswered = None if peer.suspicion is None else peer.suspicion.unanswered
        if self._leases is not None and (watched := self._leases.watched_since(peer.member.id)) != inf:
            return max(peer.last_sign, watched)
        if unanswered is None or (self._leases is None and not self._core.crowded):
            return peer.last_sign
        return max(peer.last_sign, unanswered)

    def time(self, peer: Peer) -> float:
        """When the silence of ``peer`` becomes evidence; inf while this member may not judge it, or if it already is."""
        suspicion = peer.suspicion
        if suspicion is None or not self.judges(peer) or peer.member.id in self._core.evidence.silent:
            return inf
        return max(suspicion.deadline, self.silent_since(peer) + self._core.config.exclude_after)

    def judges(self, peer: Peer) -> bool:
        """Whether this member may draw conclusions about a suspect."""
        suspicion = peer.suspicion
        if suspicion is None:
            return False
        crowded = self._core.crowded
        pinged = suspicion.unanswered is not None or not (crowded or self._leases is not None)
        return pinged and (not crowded or suspicion.confirmed or self._few_are_left)

    @property
    def _few_are_left(self) -> bool:
        """Whether too few members are left to confirm a suspicion: the last of many go on without that, unless the policy asks
        for a quorum of them.
        """
        core = self._core
        if core.config.policy is Policy.MAJORITY:
            return False
        gone = {peer.member.id for peer in core.table.suspected()} | core.evidence.proofs.keys()
        return len(core.table) - len(gone) + 1 < ENOUGH

    def unconfirmed(self, now: float) -> list[Peer]:
        """The suspects of this member that for long too few others have suspected: who watches them may be dead, too, as may
        members that this one does not watch.

        None under ``majority``: then this member could not go on without them anyway.
        """
        if self._core.config.policy is Policy.MAJORITY:
            return []
        return [peer for peer in self._core.table.suspected() if self._waits(peer.suspicion, now)]

    def confirm(self, asked: Sequence[str]) -> tuple[Update, ...]:
        """What to answer a member that suspects ``asked``: whom this one has pinged in vain, too. It may have said so before,
        and not been heard.

        Nothing under ``majority``, where nobody asks again.
        """
        if self._core.config.policy is Policy.MAJORITY:
            return ()
        own_id = self._core.member.id
        return tuple(
            Update(peer.member.id, Status.SUSPECT, peer.incarnation, own_id)
            for peer in self._core.table.suspected()
            if peer.member.id in asked and peer.suspicion is not None and peer.suspicion.unanswered is not None
        )

    def _waits(self, suspicion: Suspicion | None, now: float) -> bool:
        if suspicion is None or suspicion.unanswered is None or suspicion.confirmed:
            return False
        return now - suspicion.unanswered > self._core.config.exclude_after

    def concerns(self, member_id: str, watch: Watch) -> bool:
        """Whether this member is one of those that probe a suspect at once. With leases there is no ``watch``."""
        core = self._core
        if self._leases is not None and (
            not core.crowded or (core.view is not None and core.member.id in watchers(member_id, core.view))
        ):
            return True
        return member_id in watch or any(each.id == core.member.id for each in core.seniors(member_id))

    def concerned(self, update: Update) -> list[Member]:
        """The members that a suspicion or its refutation concerns in a large view: the accused, its watchers, the accuser, and
        the seniors.
        """
        core = self._core
        assert core.view is not None
        keys = (update.member_id, *watchers(update.member_id, core.view), update.by)
        found = {key: core.view.member(key) for key in keys if key in core.view}
        found |= {member.id: member for member in core.seniors(update.member_id)}
        return [member for member in found.values() if member.id != core.member.id]

    def fence_time(self, peer: Peer, suspects: int) -> float:
        """When to have a suspect killed (see ``fences``)."""
        return self._fences.due(peer, self.silent_since(peer), suspects) if self.judges(peer) else inf

    def shortest(self) -> float:
        """The least seconds of a suspicion; less with leases: a member that is pinged because of its lease has been silent for
        a while.
        """
        return self._core.config.exclude_after / (2 if self._leases is None else 4)
