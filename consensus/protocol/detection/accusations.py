"""Evidence: recorded here, checked if it is only a hint, and reported to the members that can act on it.

Reports go to the coordinator and the next two in seniority, repeatedly until the view changes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import islice

from ...member import Member
from ...messages import MAX_DETAIL, Evidence, EvidenceKind, Status
from ...view import View
from ..state.change import FindingKind
from ..state.core import SENIORS, Core
from ..state.effects import Check, Fence, KeepConnections
from ..state.links import cut_off
from ..state.member_table import Sign

_WITNESSES = 8
"""So many seniors receive a report of a broken link: the leader has to receive it, perhaps from one end only."""


class Accusations:
    """This member's evidence against others of its view. Calls ``changed(now)`` when there may be reason to act."""

    def __init__(
        self,
        core: Core,
        changed: Callable[[float], None],
        believes: Callable[[str, str, float], bool],
        apart: Callable[[float], None],
    ) -> None:
        """``believes(accused, source, now)``: whether the report of ``source`` that ``accused`` is silent counts here.

        ``apart(now)``: called when a member of this view speaks of another view.
        """
        self._core = core
        self._believes = believes
        self._apart = apart
        self._changed = changed
        self._due: dict[tuple[str, EvidenceKind], tuple[Evidence, float, float]] = {}

    def tick(self, now: float) -> None:
        """Repeat reports on which nobody has acted yet, as long as they hold."""
        self._judge_links(now)
        for key, (evidence, due, delay) in list(self._due.items()):
            if not self._holds(evidence):
                del self._due[key]
            elif now >= due:
                self._due[key] = (evidence, now + delay, min(2 * delay, 1.0))
                many = _WITNESSES if evidence.kind is EvidenceKind.SEVERED else SENIORS
                for member in self._seniors(evidence.accused, many):
                    self._core.outbox.send(member, evidence)

    def deadline(self) -> float:
        """When ``tick`` is needed next."""
        links = self._core.links.deadline()
        return min(links, *(due for _, due, _ in self._due.values())) if self._due else links

    def adopt(self, view: View, now: float) -> None:
        """Follow a new view; members that died while the change was under way are reported again."""
        self._due.clear()
        for member_id, proof in self._core.evidence.proofs.items():
            self._owe(Evidence(view.view_id, member_id, EvidenceKind.PROOF, proof.detail[:MAX_DETAIL]), now)
        self.tick(now)

    # Own evidence

    def accuse(self, accused: str, kind: EvidenceKind, detail: str, now: float, *, age: float = 0.0) -> None:
        """This member itself accuses another (or, with FROZEN, needs a new epoch). ``age``: of a PROOF."""
        core = self._core
        if core.view is None or core.stopped is not None:
            return
        if kind is EvidenceKind.HINT:
            self._check(accused, now)
        elif self._record(accused, kind, detail, core.member.id, now, age=age):
            self._report(Evidence(core.view.view_id, accused, kind, detail[:MAX_DETAIL]), now)
        self._changed(now)

    def hint(self, suspects: tuple[str, ...], now: float) -> None:
        """This member's data plane failed, and blames ``suspects`` (empty: unknown): check them at once, unless it is one."""
        core = self._core
        if core.member.id in suspects:
            return
        known = [member_id for member_id in suspects if core.table.get(member_id) is not None]
        for member_id in known or [peer.member.id for peer in islice(core.table, core.config.mesh_limit)]:
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

    def _record(
        self,
        accused: str,
        kind: EvidenceKind,
        detail: str,
        source: str,
        now: float,
        *,
        age: float = 0.0,
        no_vote: bool = False,
    ) -> bool:
        """Record evidence; returns whether it is new.

        ``source``: the member that found it. ``age``, ``no_vote``: of a PROOF (see ``EvidenceBook``).
        """
        core = self._core
        book = core.evidence
        if kind is EvidenceKind.FROZEN:
            core.history.found(FindingKind.FROZEN, accused, detail, source, now)
            return book.freeze(now)
        if kind is EvidenceKind.SEVERED:
            return self._sever(accused, detail, source, now)
        peer = core.table.get(accused)
        if peer is None:
            return False
        told = detail if source == core.member.id else f"{detail} (says {source[:6]})"
        if kind is EvidenceKind.PROOF:
            if not book.prove(accused, told, peer.contact, now, age, no_vote=no_vote):
                return False
            if not book.proofs[accused].discounted and peer.member.fact("supervisor") is not None:
                core.outbox.emit(Fence(peer.member, "proven dead: since when?", command=False))
            peer.learn(Sign.PROVEN)
            core.applicants.drop(accused)
            core.outbox.note(logging.INFO, "dead", f"{peer.member}: {told}", accused)
        else:
            target = book.unready if kind is EvidenceKind.UNREADY else book.silent
            if accused in target:
                return False
            target[accused] = now
            core.outbox.note(logging.WARNING, kind.value, f"{peer.member}: {told}", accused)
        core.history.found(FindingKind(kind.value), accused, detail, source, now)
        return True

    def _sever(self, accused: str, detail: str, source: str, now: float) -> bool:
        """``source`` and ``accused`` cannot reach each other; returns whether that is new."""
        core = self._core
        if core.view is None or accused not in core.view or source == accused:
            return False
        fresh = core.links.reported(source, accused, now)
        if fresh:
            core.outbox.note(logging.WARNING, "severed", f"{core.view.member(accused)}: {detail}", accused)
            if source != core.member.id:  # either end may have to go
                core.outbox.note(logging.DEBUG, "severed", f"{core.view.member(source)}: does not reach {accused[:6]}", source)
            core.history.found(FindingKind.SEVERED, accused, detail, source, now)
            core.history.found(FindingKind.SEVERED, source, f"it does not reach {accused[:6]}, though others do", source, now)
        self._judge_links(now)
        return fresh

    def _judge_links(self, now: float) -> None:
        """Decide which members have to go because of the broken links known here by now."""
        core = self._core
        known = core.links.known(now)
        if not known:
            core.history.mended()
        if core.view is None or (not known and not core.evidence.cut_off):
            return
        dead = core.evidence.proofs.keys()
        out = cut_off(core.view, known, dead, core.evidence.discounted)
        core.evidence.cut(out, min(known.values(), default=now))

    def _proven(self, sender: str, message: Evidence, now: float) -> None:
        """Another member, perhaps the accused's own agent, reports a death: no check is needed.

        A member with a liveness connection to the accused closes it, so it will not find the death itself. If the view has not
        changed after ``resend``, it reports the death, too: the sender's reports may have been lost.
        """
        core = self._core
        held = core.successors()
        detail, no_vote = message.detail[:MAX_DETAIL], message.no_vote
        fresh = self._record(message.accused, message.kind, detail, sender, now, no_vote=no_vote)
        if fresh and any(member.id == message.accused for member in held):
            core.outbox.emit(KeepConnections(tuple(member for member in held if member.id not in core.evidence.proofs)))
            self._owe(message, now + core.config.resend)

    def _owe(self, evidence: Evidence, due: float) -> None:
        self._due[evidence.accused, evidence.kind] = (evidence, due, self._core.config.resend)

    def _report(self, evidence: Evidence, now: float) -> None:
        self._owe(evidence, now)
        self.tick(now)

    def _holds(self, evidence: Evidence) -> bool:
        """Whether the evidence still holds: a silent member may have answered after all, a link may work again."""
        match evidence.kind:
            case EvidenceKind.SILENCE:
                return evidence.accused in self._core.evidence.silent
            case EvidenceKind.SEVERED:
                return self._core.links.broken(evidence.accused)
            case _:
                return True

    def _seniors(self, accused: str, many: int) -> list[Member]:
        """The coordinator and the next in seniority, ``many`` in all, without the accused and this member."""
        return [member for member in self._core.seniors(accused, many) if member.id != self._core.member.id]

    # Others' evidence

    def on_evidence(self, sender: str, message: Evidence, now: float) -> None:
        """Another member's evidence. Evidence about another view is ignored: it is judged there, or found again in this one."""
        core = self._core
        if core.view is None or sender not in core.view:
            return
        if message.view_id != core.view.view_id:
            self._apart(now)  # one of the two is behind: it would wait for whom the other one takes for gone
            return
        if message.accused == core.member.id and message.kind not in (EvidenceKind.FROZEN, EvidenceKind.SEVERED):
            return
        if message.kind is EvidenceKind.HINT:
            self._check(message.accused, now)
        elif message.kind is EvidenceKind.PROOF:
            self._proven(sender, message, now)
        elif message.kind is not EvidenceKind.SILENCE or self._believes(message.accused, sender, now):
            self._record(message.accused, message.kind, message.detail[:MAX_DETAIL], sender, now)
        self._changed(now)
