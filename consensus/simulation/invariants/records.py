"""The rules of the store behind invariants 3 and 4 under policy ``storage``, as its contents show them.

The record of an epoch, created exclusively, is the decision. A broken rule forks only in rare histories; here the first record,
or the first member, that breaks it is a violation at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...config import Liveness
from ...errands import Answer, Errand, Wiped
from ...view import NO_VIEW_ID, View
from ..shelf import Act, Deed
from .invariant import Invariant
from .ledger import FLOOR, PREFIX, Entry

if TYPE_CHECKING:
    from ..host import Host
    from .jury import Jury

__all__ = ["Records"]


class Records(Invariant):
    """* An epoch is decided once: no second record at or above the floor, unless the store was wiped or the first one was taken
      back before anybody followed it.
    * A record is created by its driver, a member of its parent, and the parent is what was decided for the epoch before. A
      founding record follows the newest record there is, of whose members nobody lives any more, as far as anybody can tell: no
      firewall has said so falsely, and (leases) nobody of them was well and in touch with the founder.
    * The floor is raised first, and removed is only what is below it: a record at or above it disappears only if whoever
      created it takes it back, and nobody follows it then.
    * The newest record is never below the floor.
    * Whoever follows a view, or freezes for one, does so after its record was created: a store that is away decides nothing.
    * Nobody takes a store for wiped that was not.
    """

    number = 4
    title = "the rules of the store"

    def __init__(self, jury: Jury) -> None:
        super().__init__(jury)
        self._first: dict[tuple[int, int], Entry] = {}
        self._followed: dict[str, str] = {}
        """View id -> who followed it first."""

    def stored(self, host: Host | None, deed: Deed) -> None:
        """See ``Witness``."""
        ledger = self.jury.ledger
        if deed.act is Act.CREATE and deed.key.startswith(PREFIX):
            entry = ledger.standing.get(deed.key)
            if entry is None:
                self.fail(f"{deed.key} is created and is no record")
            elif not deed.below:
                self._created(entry)
        elif deed.act is Act.RAISE and deed.key == FLOOR:
            newest = 0 if ledger.newest is None else ledger.newest.record.view.epoch
            if deed.number > newest:
                self.fail(f"{self._who(host)} raises the floor to {deed.number}, above the newest record {newest}")
        elif deed.act in (Act.DELETE, Act.TAKE_BACK) and deed.key.startswith(PREFIX):
            self._removed(host, deed)

    def _created(self, entry: Entry) -> None:
        story, view = self.jury.story, entry.record.view
        first = self._first.setdefault((entry.wipes, view.epoch), entry)
        if first is not entry:
            self.fail(f"epoch {view.epoch} is decided twice: {self._shown(first)}, then {self._shown(entry)}")
        if entry.record.driver != entry.by:
            self.fail(f"{story.name(entry.by)} creates a record that {story.name(entry.record.driver)} is to drive")
        if entry.key != f"{PREFIX}{view.epoch:012d}":
            self.fail(f"{entry.key} holds {story.show(view)}")
        if view.parent_id == NO_VIEW_ID:
            self._founds(entry)
        else:
            self._follows(entry)

    def _follows(self, entry: Entry) -> None:
        story, view, ledger = self.jury.story, entry.record.view, self.jury.ledger
        parent = ledger.decided.get(view.parent_id)
        if parent is None or parent.record.view.epoch != view.epoch - 1:
            self.fail(f"{self._shown(entry)}, whose parent no record has decided")
        elif entry.by not in parent.record.view:
            self.fail(f"{self._shown(entry)} without being a member of {story.show(parent.record.view)}")
        elif parent.wipes != entry.wipes and parent.key not in ledger.standing:
            self._doubt(entry)

    def _doubt(self, entry: Entry) -> None:
        """A wipe came in between: its creator has to see that, and to take the record back."""
        patience = 4 * self.world.config.storage_timeout

        def look() -> None:
            host, ledger = self.world.hosts[entry.by], self.jury.ledger
            if host.running and ledger.standing.get(entry.key) is entry and self.jury.ground.calm_since < self.now - patience:
                self.fail(f"{self._shown(entry)} in a store that was wiped, and keeps it")

        self.jury.at(self.now + patience, look)

    def _founds(self, entry: Entry) -> None:
        story, view, ledger = self.jury.story, entry.record.view, self.jury.ledger
        before = [other for other in ledger.standing.values() if other.record.view.epoch < view.epoch and other is not entry]
        newest = max(before, key=lambda other: other.record.view.epoch, default=None)
        epoch = 0 if newest is None else newest.record.view.epoch
        if view.epoch != epoch + 1:
            self.fail(f"{self._shown(entry)} anew after epoch {epoch}")
        living = [] if newest is None else [key for key in newest.record.view.ids if self._lives(key, entry.by)]
        if living and newest is not None:
            self.fail(f"{self._shown(entry)} anew though {story.names(living)} of {story.show(newest.record.view)} live")

    def _removed(self, host: Host | None, deed: Deed) -> None:
        story, ledger = self.jury.story, self.jury.ledger
        for entry in [entry for entry in self._first.values() if entry.key == deed.key and entry.wipes == ledger.wipes]:
            view = entry.record.view
            if view.epoch < ledger.floor:
                return
            if host is None or host.id != entry.by:
                self.fail(f"{self._who(host)} removes the record of {story.show(view)}, with the floor at {ledger.floor}")
            if view.view_id in self._followed:
                follower = story.name(self._followed[view.view_id])
                self.fail(f"{self._who(host)} takes back {story.show(view)}, which {follower} follows")
            del self._first[entry.wipes, view.epoch]

    def adopted(self, host: Host, view: View) -> None:
        """See ``Witness``."""
        if self.world.errands is None:
            return
        story, ledger = self.jury.story, self.jury.ledger
        self._followed.setdefault(view.view_id, host.id)
        if view.view_id not in ledger.decided:
            stands = [entry for entry in ledger.standing.values() if entry.record.view.view_id == view.view_id]
            why = "whose record is below the floor" if stands else "which no record has decided"
            self.fail(f"{story.name(host.id)} follows {story.show(view)}, {why}")

    def answered(self, host: Host, errand: Errand, answer: Answer) -> None:  # noqa: ARG002
        """See ``Witness``."""
        if isinstance(answer, Wiped) and not self.jury.ledger.wipes:
            self.fail(f"{self.jury.story.name(host.id)} takes the store for wiped, which it was not: {answer.detail}")

    def froze(self, host: Host, epoch: int) -> None:
        """See ``Witness``."""
        if self.world.errands is not None and not self._decided(epoch):
            self.fail(f"{self.jury.story.name(host.id)} freezes for epoch {epoch}, of which there is no record")

    def _decided(self, epoch: int) -> bool:
        return any(entry.record.view.epoch == epoch for entry in self.jury.ledger.decided.values())

    def _lives(self, member_id: str, founder: str) -> bool:
        host, ground = self.world.hosts.get(member_id), self.jury.ground
        if host is None or not host.alive or host.stopped is not None or member_id in ground.forged:
            return False
        config = self.world.config
        return config.liveness is Liveness.PINGS or ground.well_for(member_id, founder) > 4 * config.lease

    def _who(self, host: Host | None) -> str:
        return "the script" if host is None else self.jury.story.name(host.id)

    def _shown(self, entry: Entry) -> str:
        return f"{self.jury.story.name(entry.by)} records {self.jury.story.show(entry.record.view)}"
