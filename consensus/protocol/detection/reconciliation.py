"""Anti-entropy: a member compares digests with a random other one every few seconds, to find what rumours have missed. In a
large view it then tells those that it has long suspected, too.

A digest stands for the view and all unusual beliefs in it (suspected members, and members that had to refute that). Beliefs are
sent only if two digests differ, at most ``MOST`` in a message: a quiet job of a thousand sends a few bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from math import inf

from ...member import Address
from ...messages import Beliefs, Digest, Status, Update
from ..state.core import Core

EVERY = 5.0
"""Seconds between two digests of one member, on average."""

MOST = 64

REMINDED = 8
"""Suspects that one member reminds at a time, at most."""

Merge = Callable[[tuple[Update, ...], float], None]


class Reconciliation:
    """One member's part in anti-entropy. ``merge(updates, now)`` takes the beliefs of others."""

    def __init__(self, core: Core, merge: Merge, now: float) -> None:
        self._core = core
        self._merge = merge
        self._next = now + EVERY * (0.5 + core.rng.random())

    def tick(self, now: float) -> None:
        """Send a digest to a random member, if one is due."""
        core = self._core
        if now < self._next:
            return
        self._next = now + EVERY * (0.5 + core.rng.random())
        if core.view is not None:
            member = core.view.members[core.rng.randrange(len(core.view))]
            if member.id != core.member.id and core.table.trusted(member.id):
                core.outbox.send(member, Digest(core.epoch, core.view_id, self.digest()))
            if core.crowded:
                self._remind(now)

    def _remind(self, now: float) -> None:
        """Tell members that this one has long suspected of it: they answer with what refutes that.

        The refutation may have been lost, and where this member does not watch them nothing else would bring it: who watches
        may have heard it and died. A digest would not show it, as it has only suspicions that several members share.
        """
        core = self._core
        old = [
            peer
            for peer in core.table.suspected()
            if peer.suspicion is not None and now - peer.suspicion.start > EVERY and peer.member.id not in core.evidence.proofs
        ]
        for peer in core.rng.sample(old, min(REMINDED, len(old))):
            belief = Update(peer.member.id, Status.SUSPECT, peer.incarnation, core.member.id)
            core.outbox.send(peer.member, Beliefs(core.view_id, (belief,), wants_answer=True))

    def deadline(self) -> float:
        """When ``tick`` is needed next."""
        return self._next if len(self._core.table) else inf

    def on_digest(self, address: Address, message: Digest) -> None:
        """A digest arrived (the views were compared already): send our beliefs if they differ."""
        if message.view_id == self._core.view_id and message.digest != self.digest():
            self._core.outbox.send_to(address, Beliefs(message.view_id, self._some(self.beliefs()), wants_answer=True))

    def on_beliefs(self, address: Address, message: Beliefs, now: float) -> None:
        """Another member's beliefs arrived; if it wants an answer, it gets those that it does not know."""
        core = self._core
        if message.view_id != core.view_id:
            return
        told = {update.member_id: (update.incarnation, update.status is Status.SUSPECT) for update in message.updates}
        self._merge(message.updates, now)
        news = [
            each for each in self.beliefs() if told.get(each.member_id) != (each.incarnation, each.status is Status.SUSPECT)
        ]
        if message.wants_answer and news:
            core.outbox.send_to(address, Beliefs(core.view_id, self._some(news), wants_answer=False))

    def digest(self) -> bytes:
        """The digest of ``beliefs``; empty if there are none."""
        held = self.beliefs()
        text = "|".join(f"{each.member_id} {each.status.value} {each.incarnation}" for each in held)
        return hashlib.blake2b(text.encode(), digest_size=8).digest() if held else b""

    def beliefs(self) -> list[Update]:
        """The unusual beliefs, by member id. Of suspicions only those that more than one member shares."""
        core = self._core
        found = []
        if core.table.incarnation:
            found.append(Update(core.member.id, Status.ALIVE, core.table.incarnation, core.member.id))
        for peer in core.table.asked_for:
            if peer.suspicion is not None and len(peer.suspicion.accusers) > 1:
                found.append(Update(peer.member.id, Status.SUSPECT, peer.incarnation, peer.suspicion.accusers[0]))
            elif peer.incarnation and peer.status is not Status.DEAD:
                found.append(Update(peer.member.id, Status.ALIVE, peer.incarnation, peer.member.id))
        return sorted(found, key=lambda update: update.member_id)

    def _some(self, updates: list[Update]) -> tuple[Update, ...]:
        return tuple(updates if len(updates) <= MOST else self._core.rng.sample(updates, MOST))
