"""Evidence on its way: recorded here, checked where it is only a hint, and reported to those who can act on it.

Reports go to the coordinator and the next two in seniority, again and again until the view changes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from math import inf

from ..member import Member
from ..messages import Evidence, EvidenceKind, Status
from ..view import View
from .change import Kind
from .core import Core
from .effects import Check
from .member_table import Sign

__all__ = ["Accusations"]


class Accusations:
    """What this member holds against others of its view. ``changed(now)`` is called when there may be reason to act."""

    def __init__(self, core: Core, changed: Callable[[float], None], believes: Callable[[str, str, float], bool]) -> None:
        """``believes(accused, source, now)``: whether another member's word that somebody is silent counts here."""
        self._core = core
        self._believes = believes
        self._changed = changed
        self._due: dict[tuple[str, EvidenceKind], tuple[Evidence, float, float]] = {}

    def tick(self, now: float) -> None:
        """Repeat reports that nobody has acted on yet."""
        for key, (evidence, due, delay) in list(self._due.items()):
            if evidence.kind is EvidenceKind.SILENCE and evidence.accused not in self._core.evidence.silent:
                del self._due[key]  # it answered after all
            elif now >= due:
                self._due[key] = (evidence, now + delay, min(2 * delay, 1.0))
                for member in self._seniors(evidence.accused):
                    self._core.outbox.send(member, evidence)

    def deadline(self) -> float:
        """When ``tick`` is needed next."""
        return min((due for _, due, _ in self._due.values()), default=inf)

    def adopt(self, view: View, now: float) -> None:
        """Follow a new view; those who died while the change was under way are reported again."""
        self._due.clear()
        for member_id, proof in self._core.evidence.proofs.items():
            self._report(Evidence(view.view_id, member_id, EvidenceKind.PROOF, proof.detail[:200]), now)

    # Own evidence

    def accuse(self, accused: str, kind: EvidenceKind, detail: str, now: float) -> None:
        """This member itself has something against another (or, FROZEN, needs a new epoch)."""
        core = self._core
        if core.view is None or core.stopped is not None:
            return
        if kind is EvidenceKind.HINT:
            self._check(accused, now)
        elif self._record(accused, kind, detail, core.member.id, now):
            self._report(Evidence(core.view.view_id, accused, kind, detail[:200]), now)
        self._changed(now)

    def hint(self, suspects: tuple[str, ...], now: float) -> None:
        """The data plane failed here, and blames ``suspects`` (empty: unknown): check them at once."""
        core = self._core
        known = [member_id for member_id in suspects if core.table.get(member_id) is not None]
        for member_id in known or [peer.member.id for peer in core.table][: core.config.mesh_limit]:
            self._check(member_id, now)

    def checked(self, member_id: str, alive: bool | None, detail: str, now: float) -> None:
        """The result of a check: False proves death, None is undecided."""
        self._core.evidence.checking.pop(member_id, None)
        if alive is False:
            self.accuse(member_id, EvidenceKind.PROOF, detail, now)
        self._changed(now)

    def _check(self, member_id: str, now: float) -> None:
        peer = self._core.table.get(member_id)
        if peer is not None and peer.status is not Status.DEAD and member_id not in self._core.evidence.checking:
            self._core.evidence.checking[member_id] = now
            self._core.outbox.emit(Check(peer.member))

    def _record(self, accused: str, kind: EvidenceKind, detail: str, source: str, now: float) -> bool:
        """Whether it is news. ``source``: the member whose finding it is."""
        core = self._core
        book = core.evidence
        if kind is EvidenceKind.FROZEN:
            core.history.found(Kind.FROZEN, accused, detail, source, now)
            fresh = book.frozen_since is None
            book.frozen_since = now if book.frozen_since is None else book.frozen_since
            return fresh
        peer = core.table.get(accused)
        if peer is None:
            return False
        told = detail if source == core.member.id else f"{detail} (says {source[:6]})"
        if kind is EvidenceKind.PROOF:
            if not book.prove(accused, told, peer.contact, now):
                return False
            peer.learn(Sign.PROVEN)
            core.applicants.drop(accused)
            core.outbox.note(logging.INFO, "dead", f"{peer.member}: {told}")
        else:
            target = book.unready if kind is EvidenceKind.UNREADY else book.silent
            if accused in target:
                return False
            target[accused] = now
            core.outbox.note(logging.WARNING, kind.value, f"{peer.member}: {told}")
        core.history.found(Kind(kind.value), accused, detail, source, now)
        return True

    def _report(self, evidence: Evidence, now: float) -> None:
        self._due[evidence.accused, evidence.kind] = (evidence, now, self._core.config.resend)
        self.tick(now)

    def _seniors(self, accused: str) -> list[Member]:
        """The coordinator and the next two in seniority, without the accused and ourselves."""
        return [member for member in self._core.seniors(accused) if member.id != self._core.member.id]

    # Others' evidence

    def on_evidence(self, sender: str, message: Evidence, now: float) -> None:
        """Somebody else's evidence. Of another view: judged there, or found again in this one."""
        core = self._core
        if core.view is None or sender not in core.view or message.view_id != core.view.view_id:
            return
        if message.accused == core.member.id and message.kind is not EvidenceKind.FROZEN:
            return
        if message.kind is EvidenceKind.HINT:
            self._check(message.accused, now)
        elif message.kind is not EvidenceKind.SILENCE or self._believes(message.accused, sender, now):
            self._record(message.accused, message.kind, message.detail[:200], sender, now)
        self._changed(now)
