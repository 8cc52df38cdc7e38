"""A view change that does not move: who is waited for, said every few seconds, and the end after ``quorum_timeout``."""

from __future__ import annotations

import logging
from collections.abc import Callable
from math import inf

from ...config import Liveness
from ...errors import LeftError, QuorumLostError
from ...member import Member
from ..state.core import Core
from .installer import Installer
from .proposer import Proposer

BLOCKED_EVERY = 5.0
"""Seconds between two lines that say who is waited for."""

DOUBT_EVERY = 1.0
"""Seconds between two looks at those that are waited for, where not everybody pings everybody."""

DOUBTED = 16
"""So many of them at a time."""


class Blockage:
    """How long this member has waited for the next view. ``frozen()``: whether its data plane stands still for it.

    ``doubt(member_id, now)``: looks after a member that nobody may watch any more. Where each is watched by some, they may all
    die with it; whoever is left then waits for one that it has no reason to suspect.
    """

    def __init__(
        self,
        core: Core,
        proposer: Proposer,
        installer: Installer,
        frozen: Callable[[], bool],
        doubt: Callable[[str, float], None],
    ) -> None:
        self._core = core
        self._proposer = proposer
        self._installer = installer
        self._frozen = frozen
        self._doubt = doubt
        self._next_doubt = inf
        self._since: float | None = None
        self._next_note = inf

    def adopt(self) -> None:
        """Follow a new view: that was a move."""
        self._since, self._next_note, self._next_doubt = None, inf, inf

    def deadline(self) -> float:
        """When ``tick`` is needed next."""
        return min(self._next_note, self._next_doubt)

    def tick(self, now: float) -> None:
        """Say who is waited for; give up after ``quorum_timeout``."""
        core = self._core
        if core.view is None or core.stopped is not None:
            return
        wanted = self._frozen() or self._proposer.attempt is not None or core.evidence.due() is not None
        if not wanted and not self._installer.waits_for():
            self.adopt()
            return
        if self._since is None:
            self._since = now
            self._next_note = now + BLOCKED_EVERY
            self._next_doubt = now + DOUBT_EVERY
        blocked = now - self._since
        if now >= self._next_doubt:
            self._next_doubt = now + DOUBT_EVERY
            if core.crowded or core.config.liveness is Liveness.LEASES:
                self._look_after(now)
        if now >= self._next_note:
            self._next_note = now + BLOCKED_EVERY
            core.outbox.note(logging.WARNING, "blocked", f"{self.text()} ({blocked:.0f} s so far)")
            self._ask_around()
        if core.going and blocked >= core.config.ready_timeout:  # for the others it is a crash from here on
            core.stop(LeftError("left the job on its own wish, though no quorum agreed"))
        elif blocked >= core.config.quorum_timeout:
            core.stop(QuorumLostError(f"{self.text()} (quorum_timeout={core.config.quorum_timeout:g} s is over)"))

    def _look_after(self, now: float) -> None:
        core = self._core
        coordinator = core.coordinator()
        waited_for = self.waits_for() or (() if coordinator is None else (coordinator.id,))
        for member_id in waited_for[:DOUBTED]:
            if member_id != core.member.id and member_id not in core.evidence.proofs:
                self._doubt(member_id, now)

    def _ask_around(self) -> None:
        """Perhaps the others went on without us, and those we know died since: later lifetimes at their addresses can tell."""
        core = self._core
        for member in core.view.members if core.view is not None else ():
            if member.id in core.evidence.proofs:
                core.outbox.send(member, core.pull())

    def waits_for(self) -> tuple[str, ...]:
        """Ids of the members without which there is no next view, as far as it is known here."""
        attempt = self._proposer.attempt
        waits = self._installer.waits_for() if attempt is None else attempt.waiting_for(self._proposer.discounted)
        return waits or self._proposer.missing

    def text(self) -> str:
        """Who is waited for, and the remedy."""
        core, attempt = self._core, self._proposer.attempt
        if core.store_away:
            return f"the next view waits for the store: {core.store_away}"
        if attempt is not None:
            known, waits = attempt.parent.members, attempt.waiting_for(self._proposer.discounted)
        else:
            known, waits = core.view.members if core.view is not None else (), self.waits_for()
        if not waits:  # a voter knows less than who proposed: at least it knows of whom it hears nothing
            mute = [self._named(member) for member in known if not core.table.trusted(member.id)]
            without = f"; it hears nothing of {', '.join(mute)}: bring their hosts back, or kill them there" if mute else ""
            return f"{'frozen, ' if self._frozen() else ''}waiting for {core.coordinator()} to complete the next view{without}"
        names = ", ".join(self._named(member) for member in known if member.id in waits)
        if all(key in core.evidence.proofs for key in waits):
            what = "proven dead too late to rule out that they had decided without this member"
            return f"the next view waits for {names}: {what}; it ends after quorum_timeout, and has to be started anew"
        return f"the next view waits for {names}; kill them where they hang, or bring their hosts back"

    def _named(self, member: Member) -> str:
        """A member, and whether it is dead (but not discountable: it may have voted before it died)."""
        return f"{member} (dead)" if member.id in self._core.evidence.proofs else str(member)
