"""The rules of the store behind invariants 3 and 4 under policy ``storage``, as its contents show them.

The record of an epoch, created exclusively, is the decision. A broken rule forks only in rare histories; here the first record,
or the first member, that breaks it is a violation at once.
"""

from __future__ import annotations

from ...config import Liveness, Policy
from ...store_requests import StoreOp, StoreReply, Wiped
from ...view import NO_VIEW_ID, View
from ..world.host import Host
from ..world.in_memory_store import Change, ChangeKind
from .facts import PREFIX, SERIES, Decision
from .invariant import Facts, Invariant


class Records(Invariant):
    """* An epoch is decided once: no second record at or above the compacted revision, unless the store was wiped or the first
      one was taken back before anybody followed it.
    * A record is created by its driver, a member of its parent, and the parent is what was decided for the epoch before. A
      founding record follows the newest record there is, of whose members nobody lives any more, as far as anybody can tell: no
      firewall has said so falsely, and (leases) nobody of them was well and in touch with the founder.
    * Compacting comes before removing, and only what is below the compacted revision is removed: a record at or above it
      disappears only if whoever created it takes it back, and nobody follows it then.
    * The newest record is never below the compacted revision.
    * Whoever follows a view, or freezes for one, does so after its record was created: a store that is away decides nothing.
    * Nobody takes a store for wiped that was not.
    """

    number = 4
    title = "the rules of the store"

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._first: dict[tuple[int, int], Decision] = {}
        self._followed: dict[str, str] = {}
        """View id -> who followed it first."""

    def stored(self, host: Host | None, change: Change) -> None:
        """See ``Observer``."""
        store_log = self.store_log
        if change.kind is ChangeKind.CREATE and change.key.startswith(PREFIX):
            decision = store_log.standing.get(change.key)
            if decision is None:
                self.fail(f"{change.key} is created and is no record")
            elif not change.below:
                self._created(decision)
        elif change.kind is ChangeKind.COMPACT and change.key == SERIES:
            newest = 0 if store_log.newest is None else store_log.newest.record.view.epoch
            if change.number > newest:
                self.fail(f"{self._who(host)} compacts up to {change.number}, above the newest record {newest}")
        elif change.kind in (ChangeKind.DELETE, ChangeKind.TAKE_BACK) and change.key.startswith(PREFIX):
            self._removed(host, change)

    def _created(self, decision: Decision) -> None:
        log, view = self.log, decision.record.view
        first = self._first.setdefault((decision.wipes, view.epoch), decision)
        if first is not decision:
            self.fail(f"epoch {view.epoch} is decided twice: {self._shown(first)}, then {self._shown(decision)}")
        if decision.record.driver != decision.by:
            self.fail(f"{log.name(decision.by)} creates a record that {log.name(decision.record.driver)} is to drive")
        if decision.key != f"{PREFIX}{view.epoch:012d}":
            self.fail(f"{decision.key} holds {log.show(view)}")
        if view.parent_id == NO_VIEW_ID:
            self._founds(decision)
        else:
            self._follows(decision)

    def _follows(self, decision: Decision) -> None:
        log, view, store_log = self.log, decision.record.view, self.store_log
        parent = store_log.decided.get(view.parent_id)
        if parent is None or parent.record.view.epoch != view.epoch - 1:
            self.fail(f"{self._shown(decision)}, whose parent no record has decided")
        elif decision.by not in parent.record.view:
            self.fail(f"{self._shown(decision)} without being a member of {log.show(parent.record.view)}")
        elif parent.wipes != decision.wipes and parent.key not in store_log.standing:
            self._doubt(decision)

    def _doubt(self, decision: Decision) -> None:
        """A wipe came in between: its creator has to see that, and to take the record back."""
        patience = 4 * self.world.config.storage_timeout

        def look() -> None:
            host, store_log = self.world.hosts[decision.by], self.store_log
            if (
                host.running
                and store_log.standing.get(decision.key) is decision
                and self.health.calm_since < self.now - patience
            ):
                self.fail(f"{self._shown(decision)} in a store that was wiped, and keeps it")

        self.agenda.at(self.now + patience, look)

    def _founds(self, decision: Decision) -> None:
        log, view, store_log = self.log, decision.record.view, self.store_log
        before = [
            other for other in store_log.standing.values() if other.record.view.epoch < view.epoch and other is not decision
        ]
        newest = max(before, key=lambda other: other.record.view.epoch, default=None)
        epoch = 0 if newest is None else newest.record.view.epoch
        if view.epoch != epoch + 1:
            self.fail(f"{self._shown(decision)} anew after epoch {epoch}")
        living = [] if newest is None else [key for key in newest.record.view.ids if self._lives(key, decision.by)]
        if living and newest is not None:
            self.fail(f"{self._shown(decision)} anew though {log.names(living)} of {log.show(newest.record.view)} live")

    def _removed(self, host: Host | None, change: Change) -> None:
        log, store_log = self.log, self.store_log
        for decision in [
            decision for decision in self._first.values() if decision.key == change.key and decision.wipes == store_log.wipes
        ]:
            view = decision.record.view
            if view.epoch < store_log.compacted:
                return
            if host is None or host.id != decision.by:
                self.fail(f"{self._who(host)} removes the record of {log.show(view)}, compacted at {store_log.compacted}")
            if view.view_id in self._followed:
                follower = log.name(self._followed[view.view_id])
                self.fail(f"{self._who(host)} takes back {log.show(view)}, which {follower} follows")
            del self._first[decision.wipes, view.epoch]

    def adopted(self, host: Host, view: View) -> None:
        """See ``Observer``."""
        if self.world.config.policy is not Policy.STORAGE:
            return
        log, store_log = self.log, self.store_log
        self._followed.setdefault(view.view_id, host.id)
        if view.view_id not in store_log.decided:
            stands = [decision for decision in store_log.standing.values() if decision.record.view.view_id == view.view_id]
            why = "whose record is below the compacted revision" if stands else "which no record has decided"
            self.fail(f"{log.name(host.id)} follows {log.show(view)}, {why}")

    def answered(self, host: Host, request: StoreOp, answer: StoreReply) -> None:  # noqa: ARG002
        """See ``Observer``."""
        if isinstance(answer, Wiped) and not self.store_log.wipes:
            self.fail(f"{self.log.name(host.id)} takes the store for wiped, which it was not: {answer.detail}")

    def froze(self, host: Host, epoch: int) -> None:
        """See ``Observer``."""
        if self.world.config.policy is Policy.STORAGE and not self._decided(epoch):
            self.fail(f"{self.log.name(host.id)} freezes for epoch {epoch}, of which there is no record")

    def _decided(self, epoch: int) -> bool:
        return any(decision.record.view.epoch == epoch for decision in self.store_log.decided.values())

    def _lives(self, member_id: str, founder: str) -> bool:
        host, health = self.world.hosts.get(member_id), self.health
        if host is None or not host.alive or host.stopped is not None or member_id in health.forged:
            return False
        config = self.world.config
        return config.liveness is Liveness.PINGS or health.well_for(member_id, founder) > 4 * config.lease

    def _who(self, host: Host | None) -> str:
        return "the script" if host is None else self.log.name(host.id)

    def _shown(self, decision: Decision) -> str:
        return f"{self.log.name(decision.by)} records {self.log.show(decision.record.view)}"
