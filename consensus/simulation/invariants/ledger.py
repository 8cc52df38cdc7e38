"""What the shared store has decided so far: every record of a view that was validly created, kept here for ever."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ...errors import CodecError
from ...messages import ViewRecord
from ..shelf import Act, Deed
from .witness import Witness

if TYPE_CHECKING:
    from ..host import Host
    from .jury import Jury

__all__ = ["FLOOR", "PREFIX", "Entry", "Ledger"]

PREFIX = "views/"
FLOOR = "views"
"""The keys of records, and the name of their floor: what the design says, not what the code under test says."""


class Entry(NamedTuple):
    """One creation. ``by``: the process whose request it was."""

    key: str
    record: ViewRecord
    by: str
    time: float
    wipes: int
    """How often the store had been wiped before."""


class Ledger(Witness):
    """Updated before any invariant is asked. Reads what is in the store, not what anybody believes to be there."""

    def __init__(self, jury: Jury) -> None:
        super().__init__(jury)
        self.decided: dict[str, Entry] = {}
        """By ``view_id``: created, at or above the floor, and not taken back since."""
        self.standing: dict[str, Entry] = {}
        """What is in the store now, by key; records below the floor, too."""
        self.newest: Entry | None = None
        """Of the valid ones since the store was wiped last."""
        self.wipes = 0
        self.floor = 0

    def stored(self, host: Host | None, deed: Deed) -> None:
        """See ``Witness``."""
        if deed.act is Act.WIPE:
            self.wipes += 1
            self.floor, self.newest = 0, None
            self.standing.clear()
        elif deed.act is Act.RAISE and deed.key == FLOOR:
            self.floor = deed.number
        elif deed.act in (Act.DELETE, Act.TAKE_BACK):
            self._removed(deed)
        elif deed.act is Act.CREATE and deed.key.startswith(PREFIX) and host is not None:
            self._created(host, deed)

    def _created(self, host: Host, deed: Deed) -> None:
        record = self.read(deed.value)
        if record is None:
            return
        entry = self.standing[deed.key] = Entry(deed.key, record, host.id, self.now, self.wipes)
        if record.view.epoch >= self.floor:
            self.decided.setdefault(record.view.view_id, entry)
            if self.newest is None or record.view.epoch > self.newest.record.view.epoch:
                self.newest = entry

    def _removed(self, deed: Deed) -> None:
        entry = self.standing.pop(deed.key, None)
        if entry is not None and entry.record.view.epoch >= self.floor:
            self.decided.pop(entry.record.view.view_id, None)
            if entry is self.newest:
                self.newest = max(self.standing.values(), key=lambda other: other.record.view.epoch, default=None)

    def read(self, value: bytes) -> ViewRecord | None:
        """What a value says, None where it is no record."""
        try:
            message = self.world.network.codec.decode(value).message
        except CodecError:
            return None
        return message if isinstance(message, ViewRecord) else None
