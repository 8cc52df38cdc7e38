"""Invariant 3: activated means chosen by a quorum of the parent, and ready at every member."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ...config import Policy
from ...messages import Ballot, EvidenceKind, Ready
from ...protocol.effects import Note
from ...view import NO_VIEW_ID, View
from .inside import leaving
from .invariant import Invariant
from .record import NEVER
from .witness import Sees, Thinks

if TYPE_CHECKING:
    from ..host import Host
    from .jury import Jury

__all__ = ["Activation"]


_ACCUSED = {"dead", EvidenceKind.SILENCE.value, EvidenceKind.UNREADY.value}


class Activation(Invariant):
    """Chosen: whoever first follows a view is the owner of a ballot for it, and has heard the votes of a quorum of the parent.

    The quorum of ``majority`` is (a) more than half of the parent, or half with its most senior member; or (b) everybody whom
    the owner may discount: dead, and in contact with the owner less than T_excl (less drift) before; or dead and admitted by
    the parent itself. Under ``any`` whoever lives, is not removed by the value, is not accused and does not want to leave has
    voted for it. Where a store decides ``Records`` looks.

    Activated: every member, oneself included, installed the view and said READY.
    """

    number = 3
    title = "chosen by a quorum, ready everywhere"

    def __init__(self, jury: Jury) -> None:
        super().__init__(jury)
        self._chosen: set[str] = set()
        self._installed: dict[str, set[str]] = {}
        self._ready: dict[str, set[str]] = {}
        self._active: set[str] = set()
        self._accused: dict[str, set[str]] = {}
        """By whom it was accused, until that one followed a new view."""

    def sees(self) -> Sees:
        """See ``Witness``."""
        return {Ready: lambda host, _, message: self._say_ready(host, message)}

    def thinks(self) -> Thinks:
        """See ``Witness``."""
        return {Ready: self._say_ready}

    def _say_ready(self, host: Host, message: Ready) -> None:
        self._ready.setdefault(message.view_id, set()).add(host.id)

    def noted(self, host: Host, note: Note) -> None:
        """See ``Witness``."""
        if note.about and note.kind in _ACCUSED and self.world.config.policy is Policy.ANY:
            self._accused.setdefault(host.id, set()).add(note.about)

    def adopted(self, host: Host, view: View) -> None:
        """See ``Witness``."""
        self._judge(host, view)
        self._accused.pop(host.id, None)

    def _judge(self, host: Host, view: View) -> None:
        if view.view_id in self._chosen:
            return
        self._chosen.add(view.view_id)
        if view.parent_id == NO_VIEW_ID:
            return
        if self.world.config.policy is Policy.STORAGE:
            return  # its record says so: see ``Records``
        record, story = self.jury.record, self.jury.story
        parent = record.parent(view)
        if parent is None:
            self.fail(f"{story.name(host.id)} follows {story.show(view)}, whose parent nobody knows")
        mine = [
            ballot
            for ballot in record.ballots.get(parent.view_id, ())
            if ballot[1] == host.id and record.values[parent.view_id, ballot].apply(parent).view_id == view.view_id
        ]
        if not any(self._is_quorum(parent, ballot) for ballot in mine):
            votes = [f"{ballot} with the votes of {self._voters(parent, ballot)}" for ballot in mine]
            self.fail(
                f"{story.name(host.id)} takes {story.show(view)} for chosen without quorum of {story.show(parent)}; "
                f"its ballots: {'; '.join(votes) or 'none'}"
            )

    def installed(self, host: Host, view: View, reports: Mapping[str, bytes]) -> None:  # noqa: ARG002
        """See ``Witness``."""
        self._installed.setdefault(view.view_id, set()).add(host.id)

    def activated(self, host: Host, view: View) -> None:
        """See ``Witness``."""
        story = self.jury.story
        if host.id not in self.jury.record.ids[view.view_id]:
            self.fail(f"{story.name(host.id)} acts in {story.show(view)} without being a member")
        if view.view_id in self._active:
            return
        self._active.add(view.view_id)
        installed, ready = self._installed.get(view.view_id, set()), self._ready.get(view.view_id, set())
        for what, who in (("installed it", installed), ("said READY", ready)):
            missing = [key for key in view.ids if key not in who]
            if missing:
                self.fail(f"{story.show(view)} is active at {story.name(host.id)} before {story.names(missing)} {what}")

    def _voters(self, parent: View, ballot: Ballot) -> str:
        votes = self.jury.record.counted.get((parent.view_id, ballot), set())
        return self.jury.story.names(key for key in parent.ids if key in votes)

    def _is_quorum(self, parent: View, ballot: Ballot) -> bool:
        record = self.jury.record
        votes = record.counted.get((parent.view_id, ballot), set())
        if self.world.config.policy is Policy.ANY:
            out = {removal.member_id for removal in record.values[parent.view_id, ballot].removed}
            excused = out.union(record.died, self._accused.get(ballot[1], ()))
            return all(key in votes or key in excused or self._leaves(key) for key in parent.ids)
        inside = sum(1 for key in parent.ids if key in votes)
        if 2 * inside > len(parent) or (2 * inside == len(parent) and parent.members[0].id in votes):
            return True
        new = record.newcomers(parent)
        if 2 * len(new) > len(parent):
            self.fail(f"{self.jury.story.show(parent)} has more newcomers than members that stay")
        silent = [key for key in parent.ids if key not in votes]
        return all(self._discountable(ballot[1], key) or (key in new and key in record.died) for key in silent)

    def _leaves(self, member_id: str) -> bool:
        host = self.world.hosts[member_id]
        return host.leaving or leaving(host.machine)

    def _discountable(self, owner: str, member_id: str) -> bool:
        record, config = self.jury.record, self.world.config
        died = record.died.get(member_id)
        if died is None:
            return False
        rate = self.world.hosts[owner].clock.rate  # it measures with its own clock, and the proof comes after the death
        return (died - record.contact.get((owner, member_id), NEVER)) * rate < config.exclude_after * (1 - config.drift)
