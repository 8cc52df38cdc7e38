"""When to have a suspect killed, so that its death is proven before T_excl is over (see ``runtime/agent/fencing.py``)."""

from __future__ import annotations

from math import inf

from ...view import View
from ..state.change import FindingKind
from ..state.core import Core
from ..state.effects import Fence
from ..state.member_table import Peer
from ..state.quorum import is_most

FENCE_EVERY = 0.25
"""Seconds between two requests for one member."""


class Fences:
    """One member's fence requests. ``since``: when the silence of a peer began; ``suspects``: the number of suspects."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._fenced: dict[str, float] = {}

    def adopt(self, view: View) -> None:
        """Follow a new view."""
        self._fenced = {key: time for key, time in self._fenced.items() if key in view}

    def due(self, peer: Peer, since: float, suspects: int) -> float:
        """When to have ``peer`` killed; inf if that is impossible, or not this member's task."""
        core = self._core
        supervised = peer.member.fact("supervisor") is not None
        if not supervised and not self._commands():
            return inf
        share = core.config.fence_after
        if not supervised and not self._with_most(suspects):
            share = (share + 1) / 2  # if two sides fence each other, the larger one comes first
        return max(since + share * core.config.exclude_after, self._fenced.get(peer.member.id, -inf) + FENCE_EVERY)

    def fence(self, peer: Peer, since: float, now: float) -> None:
        """Have ``peer`` killed."""
        core = self._core
        self._fenced[peer.member.id] = now
        reason = f"silent for {now - since:.1f} s"
        core.history.found(FindingKind.FENCE, peer.member.id, reason, core.member.id, now)
        core.outbox.emit(Fence(peer.member, reason, self._commands()))

    def _commands(self) -> bool:
        """Whether this member runs ``fence_command``: the coordinator and the next two do."""
        return bool(self._core.config.fence_command) and self._core.stands_by()

    def _with_most(self, suspects: int) -> bool:
        """Whether the members neither suspected nor dead are a quorum by number: cheap, since this runs for every suspect."""
        core = self._core
        if core.view is None:
            return False
        present = len(core.view) - suspects - len(core.evidence.proofs)
        return is_most(core.view, present, senior=core.table.trusted(core.view.members[0].id))
