"""A view change that does not move: logs every few seconds which members it waits for, and ends after ``quorum_timeout``."""

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
"""Seconds between two log lines that name the members waited for."""

DOUBT_EVERY = 1.0
"""Seconds between two checks of the members waited for, if not all ping all."""

DOUBTED = 16
"""The most members checked at a time."""


class Blockage:
    """How long this member has waited for the next view. ``frozen()``: whether its data plane stands still for that.

    ``doubt(member_id, now)``: checks a member that perhaps nobody watches any more. If only a few watch each member, they may
    all die with it; the others would then wait for a member that they have no reason to suspect.
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
        """Follow a new view: the change has moved."""
        self._since, self._next_note, self._next_doubt = None, inf, inf

    def deadline(self) -> float:
        """When ``tick`` is needed next."""
        return min(self._next_note, self._next_doubt)

    def tick(self, now: float) -> None:
        """Log which members the change waits for; give up after ``quorum_timeout``."""
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
        if core.going and blocked >= core.config.ready_timeout:  # to the others this is a crash
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
        """Ask at the addresses of the dead: perhaps the others went on without us, and later lifetimes there know the view."""
        core = self._core
        for member in core.view.members if core.view is not None else ():
            if member.id in core.evidence.proofs:
                core.outbox.send(member, core.pull())

    def waits_for(self) -> tuple[str, ...]:
        """Ids of the members without which there is no next view, as far as this member knows."""
        attempt = self._proposer.attempt
        waits = self._installer.waits_for() if attempt is None else attempt.waiting_for(self._proposer.discounted)
        return waits or self._proposer.missing

    def text(self) -> str:
        """The members waited for, and the remedy, for the log."""
        core, attempt = self._core, self._proposer.attempt
        if core.store_away:
            return f"the next view waits for the store: {core.store_away}"
        if attempt is not None:
            known, waits = attempt.parent.members, attempt.waiting_for(self._proposer.discounted)
        else:
            known, waits = core.view.members if core.view is not None else (), self.waits_for()
        if not waits:  # a voter knows less than the proposer: it only knows which members are silent
            mute = [self._named(member) for member in known if not core.table.trusted(member.id)]
            without = f"; it hears nothing of {', '.join(mute)}: bring their hosts back, or kill them there" if mute else ""
            return f"{'frozen, ' if self._frozen() else ''}waiting for {core.coordinator()} to complete the next view{without}"
        names = ", ".join(self._named(member) for member in known if member.id in waits)
        if all(key in core.evidence.proofs for key in waits):
            what = "proven dead too late to rule out that they had decided without this member"
            return f"the next view waits for {names}: {what}; it ends after quorum_timeout, and has to be started anew"
        return f"the next view waits for {names}; kill them where they hang, or bring their hosts back"

    def _named(self, member: Member) -> str:
        """A member, marked if it is dead (but not discounted: it may have voted before it died)."""
        return f"{member} (dead)" if member.id in self._core.evidence.proofs else str(member)
