"""Invariants 3 and 10: an active view was chosen by a quorum, is ready at every member, and was built from equal reports."""

from __future__ import annotations

from collections.abc import Mapping

from ...config import Policy
from ...messages import Accepted, Ballot, Evidence, EvidenceKind, FlushReply, Ready
from ...protocol.state.effects import Note
from ...view import NO_VIEW_ID, View
from ..world.host import Host
from ..world.observer import Sees, Thinks
from .facts import NEVER
from .inside import leaving
from .invariant import Facts, Invariant

_ACCUSED = {"dead", EvidenceKind.SILENCE.value, EvidenceKind.UNREADY.value}


class Activation(Invariant):
    """Chosen: whoever first follows a view is the owner of a ballot for it, and has heard the votes of a quorum of the parent.

    The quorum of ``majority`` is (a) more than half of the parent, or half with its most senior member; or (b) everybody whom
    the owner may discount: dead, and in contact with the owner less than T_excl (less drift) before; or dead and admitted by
    the parent itself; or dead, and its last words were that it had not voted. Under ``any`` whoever lives, is not removed by
    the value, is not accused and does not want to leave has voted for it. Where a store decides ``Records`` looks.

    Activated: every member, oneself included, installed the view and said READY.
    """

    number = 3
    title = "chosen by a quorum, ready everywhere"

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._chosen: set[str] = set()
        self._installed: dict[str, set[str]] = {}
        self._ready: dict[str, set[str]] = {}
        self._active: set[str] = set()
        self._accused: dict[str, set[str]] = {}
        """By whom it was accused, until that one followed a new view."""
        self._no_vote: dict[str, int] = {}
        """Who said with its last words that it had voted for no successor of its view, and that view's epoch."""

    def sees(self) -> Sees:
        """See ``Observer``."""
        return {
            Ready: lambda host, _, message: self._say_ready(host, message),
            Evidence: lambda host, _, message: self._accuse(host, message),
        }

    def _accuse(self, host: Host, message: Evidence) -> None:
        if message.no_vote and message.accused == host.id:
            self._no_vote[host.id] = self.record.views[message.view_id].epoch
            if any(parent == message.view_id and host.id in who for (parent, _), who in self.record.cast.items()):
                self.fail(f"{self.log.name(host.id)} denies its vote with its last words")

    def thinks(self) -> Thinks:
        """See ``Observer``."""
        return {Ready: self._say_ready}

    def _say_ready(self, host: Host, message: Ready) -> None:
        self._ready.setdefault(message.view_id, set()).add(host.id)

    def noted(self, host: Host, note: Note) -> None:
        """See ``Observer``."""
        if note.about and note.kind in _ACCUSED and self.world.config.policy is Policy.ANY:
            self._accused.setdefault(host.id, set()).add(note.about)

    def adopted(self, host: Host, view: View) -> None:
        """See ``Observer``."""
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
        record, log = self.record, self.log
        parent = record.parent(view)
        if parent is None:
            self.fail(f"{log.name(host.id)} follows {log.show(view)}, whose parent nobody knows")
        mine = [
            ballot
            for ballot in record.ballots.get(parent.view_id, ())
            if ballot[1] == host.id and record.values[parent.view_id, ballot].apply(parent).view_id == view.view_id
        ]
        if not any(self._is_quorum(parent, ballot) for ballot in mine):
            votes = [f"{ballot} with the votes of {self._voters(parent, ballot)}" for ballot in mine]
            self.fail(
                f"{log.name(host.id)} takes {log.show(view)} for chosen without quorum of {log.show(parent)}; "
                f"its ballots: {'; '.join(votes) or 'none'}"
            )

    def installed(self, host: Host, view: View, reports: Mapping[str, bytes]) -> None:  # noqa: ARG002
        """See ``Observer``."""
        self._installed.setdefault(view.view_id, set()).add(host.id)

    def activated(self, host: Host, view: View) -> None:
        """See ``Observer``."""
        log = self.log
        if host.id not in self.record.ids[view.view_id]:
            self.fail(f"{log.name(host.id)} acts in {log.show(view)} without being a member")
        if view.view_id in self._active:
            return
        self._active.add(view.view_id)
        installed, ready = self._installed.get(view.view_id, set()), self._ready.get(view.view_id, set())
        for what, who in (("installed it", installed), ("said READY", ready)):
            missing = [key for key in view.ids if key not in who]
            if missing:
                self.fail(f"{log.show(view)} is active at {log.name(host.id)} before {log.names(missing)} {what}")

    def _voters(self, parent: View, ballot: Ballot) -> str:
        votes = self.record.counted.get((parent.view_id, ballot), set())
        return self.log.names(key for key in parent.ids if key in votes)

    def _is_quorum(self, parent: View, ballot: Ballot) -> bool:
        record = self.record
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
            self.fail(f"{self.log.show(parent)} has more newcomers than members that stay")
        silent = [key for key in parent.ids if key not in votes]
        return all(self._discountable(ballot[1], key, parent) or (key in new and key in record.died) for key in silent)

    def _leaves(self, member_id: str) -> bool:
        host = self.world.hosts[member_id]
        return host.leaving or leaving(host.machine)

    def _discountable(self, owner: str, member_id: str, parent: View) -> bool:
        if self._no_vote.get(member_id, parent.epoch + 1) <= parent.epoch:
            return True
        record, config = self.record, self.world.config
        died = record.died.get(member_id)
        if died is None:
            return False
        rate = self.world.hosts[owner].clock.rate  # it measures with its own clock, and the proof comes after the death
        return (died - record.contact.get((owner, member_id), NEVER)) * rate < config.exclude_after * (1 - config.drift)


class Flush(Invariant):
    """Everybody who installs a view gets the same reports, one of each member that was in its parent, and of nobody else.

    A member gives one report an epoch, whatever ballot or driver asks, and it is that one which is installed. (That the same
    reports lead to the same target operation and digest is the data plane's to check.)
    """

    number = 10
    title = "the same reports everywhere"

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._given: dict[tuple[str, int], bytes] = {}
        self._installed: dict[str, tuple[str, Mapping[str, bytes]]] = {}

    def sees(self) -> Sees:
        """See ``Observer``."""
        return {
            Accepted: lambda host, _, message: self._give(host, message),
            FlushReply: lambda host, _, m: self._give(host, m),
        }

    def thinks(self) -> Thinks:
        """See ``Observer``."""
        return {Accepted: self._give, FlushReply: self._give}

    def _give(self, host: Host, message: Accepted | FlushReply) -> None:
        first = self._given.setdefault((host.id, message.epoch), message.report)
        if first != message.report:
            name = self.log.name(host.id)
            self.fail(f"{name} reports {message.report[:60]!r} for epoch {message.epoch} after {first[:60]!r}")

    def installed(self, host: Host, view: View, reports: Mapping[str, bytes]) -> None:
        """See ``Observer``."""
        log = self.log
        known = self._installed.get(view.view_id)
        if known is not None:
            if known[1] is not reports and known[1] != reports:
                self.fail(f"{log.name(host.id)} installs {log.show(view)} with other reports than {log.name(known[0])}")
            return
        self._installed[view.view_id] = (host.id, reports)
        before = self.record.ids.get(view.parent_id, frozenset())
        continuing = [key for key in view.ids if key in before]
        if sorted(reports) != sorted(continuing):
            text = f"reports of {log.names(reports)}, continuing are {log.names(continuing)}"
            self.fail(f"{log.name(host.id)} installs {log.show(view)}: {text}")
        for writer, report in reports.items():
            if self._given.get((writer, view.epoch)) != report:
                self.fail(f"{log.show(view)} comes with a report of {log.name(writer)} that it never gave")
