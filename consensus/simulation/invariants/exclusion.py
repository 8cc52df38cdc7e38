"""Invariant 5: exclusion only on evidence, and never of somebody who is well."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...config import Policy
from ...messages import Accepted, FlushReply, Ready
from ...view import NO_VIEW_ID, Cause, Proposal, Removal, View
from ..world.host import Host
from ..world.observer import Sees, Thinks
from .facts import NEVER, Proposed
from .inside import leaving
from .invariant import SLACK, Facts, Invariant


class Exclusion(Invariant):
    """Judged when a view is first followed, by what was true when its value was proposed first.

    * PROOF: the process was dead (or a firewall had forged that).
    * LEFT: it wanted to leave.
    * SILENCE: its proposer had no ack of it for T_excl (up to ``mesh_limit`` members, where all ping all).
    * UNREADY: the parent view had been chosen for ``ready_timeout``.
    * COHORT: another member of its cohort is removed for another reason.
    * SEVERED: not of a member that has been well, as its proposer has, for ``link_timeout`` and ``patience``.
    * SILENCE and UNREADY: not a *false* exclusion. That is one of a member X by a proposer P who both have been well (see
      ``Health``) for ``patience``: within that time X has acked P's pings again, or its word has spread, and whatever was held
      against it before is taken back. (UNREADY: X must also have done its part, that is, have said READY, or have reported
      where nobody installs.) So in a history without faults there are none, and in one with faults no third member's troubles
      cost a healthy one its place.
    """

    number = 5
    title = "exclusion on evidence only"

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._met: dict[str, float] = {}
        self._done: dict[str, set[str]] = {}
        self._reported: dict[tuple[str, int], float] = {}
        self._installed: set[str] = set()

    @property
    def patience(self) -> float:
        """Seconds after which an old fault excuses nothing."""
        return 2 * self.world.config.exclude_after

    def sees(self) -> Sees:
        """See ``Observer``."""
        return {
            Ready: lambda host, _, message: self._ready(host, message),
            Accepted: lambda host, _, message: self._report(host, message),
            FlushReply: lambda host, _, message: self._report(host, message),
        }

    def thinks(self) -> Thinks:
        """See ``Observer``."""
        return {Ready: self._ready, Accepted: self._report, FlushReply: self._report}

    def _ready(self, host: Host, message: Ready) -> None:
        self._done.setdefault(message.view_id, set()).add(host.id)

    def _report(self, host: Host, message: Accepted | FlushReply) -> None:
        self._reported.setdefault((host.id, message.epoch), self.now)

    def installed(self, host: Host, view: View, reports: Mapping[str, bytes]) -> None:  # noqa: ARG002
        """See ``Observer``."""
        self._installed.add(view.view_id)

    def adopted(self, host: Host, view: View) -> None:
        """See ``Observer``."""
        if view.view_id in self._met:
            return
        self._met[view.view_id] = self.now
        record = self.record
        parent = record.parent(view)
        if parent is None or view.parent_id == NO_VIEW_ID:
            return
        value = self._value(host, parent, view)
        if value is None:
            return  # ``Activation`` has more to say about that
        for removal in value.removed:
            self._judge(removal, value.removed, parent, record.proposed[value])

    def _value(self, host: Host, parent: View, view: View) -> Proposal | None:
        record = self.record
        if (decision := self.store_log.decided.get(view.view_id)) is not None:
            return decision.record.proposal if decision.record.proposal in record.proposed else None
        for ballot in sorted(record.ballots.get(parent.view_id, ()), reverse=True):
            value = record.values[parent.view_id, ballot]
            if ballot[1] == host.id and value.apply(parent).view_id == view.view_id:
                return value
        return None

    def _judge(  # noqa: C901, PLR0912 - one case a cause
        self, removal: Removal, others: Sequence[Removal], parent: View, first: Proposed
    ) -> None:
        record, config, out = self.record, self.world.config, removal.member_id
        match removal.cause:
            case Cause.PROOF:
                if record.died.get(out, first.time + 1) > first.time and out not in self.health.forged:
                    self._false(removal, parent, first, "it lived")
            case Cause.LEFT:
                host = self.world.hosts[out]
                if host.alive and host.stopped is None and not host.leaving and not leaving(host.machine):
                    self._false(removal, parent, first, "it never asked to leave")
            case Cause.COHORT:
                name = parent.member(out).cohort
                reasons = [each.member_id for each in others if each.cause is not Cause.COHORT]
                if all(parent.member(each).cohort != name for each in reasons):
                    self._false(removal, parent, first, "its cohort had lost nobody")
            case Cause.SILENCE:
                since = first.time - first.received[out]
                if len(parent) <= config.mesh_limit and since < config.exclude_after * (1 - config.drift) - SLACK:
                    self._false(removal, parent, first, f"its ack had reached the proposer {since:.3f} s before")
                if first.well[out] > self.patience:
                    self._false(removal, parent, first, f"both had been well for {first.well[out]:.3f} s")
            case Cause.SEVERED:
                if first.well[out] > config.link_timeout + self.patience:
                    self._false(removal, parent, first, f"both had been well for {first.well[out]:.3f} s")
            case Cause.UNREADY:
                waited = first.time - self._met.get(parent.view_id, NEVER)
                if config.policy is Policy.ANY and self._astray(out, parent, first.by):
                    return
                if waited < config.ready_timeout * (1 - config.drift) - SLACK:
                    self._false(removal, parent, first, f"that view had been chosen {waited:.3f} s before")
                if first.well[out] > config.ready_timeout and self._did_its_part(out, parent, first.time):
                    self._false(removal, parent, first, f"both had been well for {first.well[out]:.3f} s")

    def _astray(self, member_id: str, parent: View, proposer: str) -> bool:
        """Under ``any``: whether it holds a view that is not ``parent`` (nor leads there): it never will be ready in it. Or
        ``proposer`` has reason to think so, as others chose a later one with it, and without ``proposer``.
        """
        held = self.world.hosts[member_id].machine.view
        if held is not None and held.view_id not in (parent.view_id, parent.parent_id):
            return True
        later = (view for view in self.record.views.values() if view.epoch > parent.epoch)
        return any(member_id in view and proposer not in view for view in later)

    def _did_its_part(self, member_id: str, parent: View, time: float) -> bool:
        if parent.view_id in self._installed:
            return member_id in self._done.get(parent.view_id, ())
        return self._reported.get((member_id, parent.epoch), time) < time - self.patience

    def _false(self, removal: Removal, parent: View, first: Proposed, why: str) -> None:
        log = self.log
        self.fail(
            f"{log.name(removal.member_id)} is excluded from {log.show(parent)} for {removal.cause.value}, "
            f"proposed by {log.name(first.by)} at {first.time:.4f} s, but {why}"
        )
