"""The records of a job's views: who creates ``views/{epoch}`` has decided that epoch, and nobody decides it twice.

A record, once created, stays until a ``floor`` above it was raised; the newest is never below the floor. Three things make
more of that than a plain create would:

* *Only a child of what stands is created.* A creator first finds the record of its parent in its place. A member that slept
  while others went on finds a newer one, or the floor.
* *Created below the floor is not created* (``Store.create``): or a member that slept between looking and creating could make
  ``views/6`` once more, after the others have reached 20 and removed 6. Whoever reads a record reads the floor after it, so one
  that stands below the floor for a moment is believed by nobody. And the floor is raised before anything is removed. So what a
  listing misses because it was removed meanwhile is below the floor that is read after it.
* *What was wiped is not gone on with.* A store that lost its records lets an epoch be decided once more. A creator looks for
  the parent's record again after creating: if that is not there and not below the floor either, the store was wiped in between,
  and it takes its own record back. So nobody takes the newest record for a decision before the one before it was found, too
  (unless that is below the floor): the creator might have died before it could take it back.

* *What cannot be read is not known, and never absent.* A record may be sealed with a secret, or made by a release, that its
  reader does not have: it may be a decision all the same, that others act on. So its name stays taken: nothing is created
  there or beside it, and nobody removes it. A reader is told of the newest that it can read; that is safe, as whatever it
  does next has to be created in the very place that is taken. Where not even that can be read which it asks for, or which
  is at the floor, it is told so (``UnreadableError``). Bytes that were opened once stay opened: a secret that was dropped
  since had sealed them.

Nobody is told of a decision that the register did not confirm, and what is unclear is told to be so (``AmbiguousWriteError``).
Nothing else is kept between two calls: another try, by anybody, begins from what stands.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ..errors import AmbiguousWriteError, StoreAwayError, StoreError, StoreRefusedError, UnreadableError
from ..messages import ViewRecord
from ..store_requests import Recorded, Wiped
from .store import Created, Store, Unreadable, Value
from .value_cipher import UnreadableLog, ValueCipher

PREFIX = "views/"
FLOOR = "views"
"""The name of the floor."""

_NUMBER = re.compile(r"views/([0-9]{12})")
_LOOKS = 4
"""Listings, at most, for one answer, where others clean up meanwhile."""


def key_of(epoch: int) -> str:
    """Where the record of ``epoch`` stands."""
    return f"{PREFIX}{epoch:012d}"


_REMEMBERED = 4
"""Records, at most, that stay opened: the newest, and their parents."""


class ViewLog:
    """The records in one store. Its methods raise ``StoreError``, and ``UnreadableError`` for what is no record."""

    def __init__(self, store: Store, cipher: ValueCipher, unreadable: UnreadableLog) -> None:
        """Reads and writes nothing yet."""
        self._store = store
        self._cipher = cipher
        self._unreadable = unreadable
        self._opened: dict[int, tuple[bytes, ViewRecord]] = {}
        """By epoch: what was read or made here last, as bytes and opened."""

    async def create(self, record: ViewRecord) -> Recorded | Wiped:
        """Decide ``record.view.epoch``, unless somebody else has: ``Recorded(record)``, or the newest record that stands.

        ``Wiped``: the parent's record is gone. ``AmbiguousWriteError``: it may be created, or may still be; ask again.
        """
        view, key = record.view, key_of(record.view.epoch)
        parent = await self._parent_of(record)
        if not isinstance(parent, str):
            return await self._instead(record, parent)
        value = self._cipher.wrap(key, record)
        try:
            created = await self._store.create(key, value, number=view.epoch, floor=FLOOR)
        except AmbiguousWriteError as error:
            if not await self._stands(key):
                raise AmbiguousWriteError(str(error)) from None
            created = Created.EXISTS
        except StoreRefusedError:
            found = await self.newest(view.epoch - 1, parent)
            if isinstance(found, Wiped):  # that is why
                return found
            raise
        if created is Created.DONE:
            self._remember(view.epoch, value, record)
            return await self._confirmed(record, parent)
        return await self._instead(record, await self.newest(view.epoch - 1, parent))

    async def newest(self, epoch: int = 0, view_id: str = "") -> Recorded | Wiped:
        """The newest record. ``epoch``, ``view_id``: what the asker follows (0, "": nothing yet), which must still stand."""
        floor = -1
        for _ in range(_LOOKS):
            listed = await self._store.list(PREFIX)
            numbers = _numbers(listed)
            record = self._newest_readable(listed, numbers)
            number = 0 if record is None else record.view.epoch
            before = floor
            try:
                floor = await self._store.floor(FLOOR)
            except StoreRefusedError as error:
                if epoch and not numbers:
                    return Wiped(f"the record of view {epoch} is gone from the store: {error}")
                raise
            lowest = max(1, floor)  # of what counts: there is nothing above it unless something stands there
            if number < lowest and lowest in numbers:
                self._record(lowest, listed[key_of(lowest)])
            if number >= floor:
                return self._judge(record, listed, floor, epoch, view_id)
            if floor == before:  # of what the floor says to be there, nothing was there from then on
                return Wiped(f"the store's records from {key_of(floor)} on are gone: it was wiped")
        raise StoreAwayError(f"the store {self._store.url}: its records change faster than they can be listed")

    async def clean(self, floor: int) -> None:
        """Remove the records below ``floor``, which may not be above the newest."""
        floor = await self._store.raise_floor(FLOOR, floor)
        old = [key_of(number) for number in _numbers(await self._store.list(PREFIX)) if number < floor]
        if old:
            await self._store.delete(*old)

    def _newest_readable(self, listed: Mapping[str, Value], numbers: list[int]) -> ViewRecord | None:
        for number in reversed(numbers):
            try:
                return self._record(number, listed[key_of(number)])
            except UnreadableError as error:
                taken = f"no view {number} can be recorded while it stands there"
                remedy = "give this worker the secret and the release of those who wrote it; remove it only if no worker did"
                self._unreadable.name(key_of(number), f"{error}; {taken}: {remedy}")
        return None

    def _judge(
        self, record: ViewRecord | None, listed: Mapping[str, Value], floor: int, epoch: int, view_id: str
    ) -> Recorded | Wiped:
        """From a listing whose newest readable ``record`` is not below the ``floor`` that was read after it."""
        number = 0 if record is None else record.view.epoch
        if number < epoch and key_of(epoch) in listed:
            self._record(epoch, listed[key_of(epoch)])
        if record is None:
            return Wiped(f"the record of view {epoch} is gone from the store: it was wiped") if epoch else Recorded(None)
        if number < epoch or (number == epoch and record.view.view_id != view_id):
            there = f"and {key_of(number)} is what there is now"
            return Wiped(f"the record of view {epoch} ({view_id[:6]}) is gone from the store, {there}: it was wiped")
        if number > max(1, epoch) and number - 1 >= floor and not self._after(record, listed, epoch, view_id):
            return Wiped(f"{key_of(number)} stands in the store without the record before it: it was wiped")
        return Recorded(record)

    def _after(self, record: ViewRecord, listed: Mapping[str, Value], epoch: int, view_id: str) -> bool:
        """Whether the record before it stands, as far as that can be read; a founding record names none."""
        before, parent_id = record.view.epoch - 1, record.view.parent_id
        value = listed.get(key_of(before))
        if value is None:
            return False
        try:
            known = self._record(before, value).view.view_id
        except UnreadableError:
            known = view_id if before == epoch else parent_id  # whoever created its successor has read it
        return parent_id in ("", known)

    # A record of our own

    async def _parent_of(self, record: ViewRecord) -> str | Recorded | Wiped:
        """The id of the view before it, whose record stands ("": there is none, and need not be); else what stands instead."""
        epoch, parent_id = record.view.epoch, record.view.parent_id
        if parent_id:
            value = await self._store.read(key_of(epoch - 1))
            if value is not None and self._record(epoch - 1, value).view.view_id == parent_id:
                return parent_id
            return await self.newest(epoch - 1, parent_id)
        found = await self.newest()
        if isinstance(found, Wiped):
            return found
        last = found.record
        if last is None:
            gone = f"the record of view {epoch - 1}, which a new founding was to follow, is gone from the store: it was wiped"
            return "" if epoch == 1 else Wiped(gone)
        return last.view.view_id if last.view.epoch == epoch - 1 else found

    async def _instead(self, record: ViewRecord, found: Recorded | Wiped) -> Recorded | Wiped:
        """What stands where ``record`` was not created just now. That may be what an earlier try of it has left."""
        if isinstance(found, Wiped):
            await self._believe(record)
            await self._take_back(record)
            return found
        last = found.record
        newer = last is not None and last.view.epoch >= record.view.epoch
        if not newer:
            await self._check_readable(record.view.epoch)
        if record.view.parent_id and not newer:
            key = key_of(record.view.epoch)
            raise StoreAwayError(f"the store {self._store.url}: {key} was there and is gone, or is no value: ask again")
        return found if last is None or not _same(last, record) else await self._confirmed(last, record.view.parent_id)

    async def _confirmed(self, record: ViewRecord, parent: str) -> Recorded | Wiped:
        """``record`` stands, and is ours. It counts if the one before it (``parent``; "": whichever) still does."""
        before = record.view.epoch - 1
        if before == 0:
            return Recorded(record)
        try:
            value = await self._store.read(key_of(before))
            if value is not None and parent in ("", self._record(before, value).view.view_id):
                return Recorded(record)
            if value is None and await self._floor_of_what_is_left() > before:
                return await self.newest(record.view.epoch, record.view.view_id)
        except (StoreError, UnreadableError) as error:
            raise AmbiguousWriteError(f"{key_of(before + 1)} was created and not confirmed: {error}") from None
        await self._take_back(record)
        return Wiped(f"the record of view {before} was gone from the store when its successor was created: it was wiped")

    async def _floor_of_what_is_left(self) -> int:
        """The floor, 0 where the place that it was kept in is gone."""
        try:
            return await self._store.floor(FLOOR)
        except StoreRefusedError:
            if await self._store.list(PREFIX):
                raise
            return 0

    async def _believe(self, record: ViewRecord) -> None:
        """That the parent's record is gone. An old listing may say so (see ``files.probe``), and others may follow ours."""
        epoch, parent_id = record.view.epoch, record.view.parent_id
        value = await self._store.read(key_of(epoch - 1)) if parent_id else None
        if value is not None and self._record(epoch - 1, value).view.view_id == parent_id:
            raise StoreAwayError(f"the store {self._store.url}: {key_of(epoch - 1)} is there, but is not listed: ask again")

    async def _take_back(self, record: ViewRecord) -> None:
        """Remove our own record, if it stands. Nobody else creates another while it does."""
        key = key_of(record.view.epoch)
        try:
            value = await self._store.read(key)
            if value is not None and _same(self._record(record.view.epoch, value), record):
                await self._store.delete(key)
        except UnreadableError:
            return  # it is not ours
        except StoreError as error:
            raise AmbiguousWriteError(f"{key} must be taken back, as the store was wiped, and could not be: {error}") from None

    async def _stands(self, key: str) -> bool:
        """Whether anything is known to stand there."""
        try:
            return await self._store.read(key) is not None
        except StoreError:
            return False

    async def _check_readable(self, epoch: int) -> None:
        """Raises ``UnreadableError`` where nobody here can tell what was decided for ``epoch``."""
        value = await self._store.read(key_of(epoch))
        if value is not None:
            self._record(epoch, value)

    def _record(self, number: int, value: Value) -> ViewRecord:
        """The record in ``value``, read at ``number``."""
        key = key_of(number)
        known = self._opened.get(number)
        if known is not None and known[0] == value:
            return known[1]
        record = self._cipher.unwrap(key, value, ViewRecord)
        if record.view.epoch != number:
            raise UnreadableError(f"{key} holds the record of view {record.view.epoch}")
        assert not isinstance(value, Unreadable)
        self._remember(number, value, record)
        return record

    def _remember(self, number: int, value: bytes, record: ViewRecord) -> None:
        self._opened[number] = (value, record)
        for old in sorted(self._opened)[:-_REMEMBERED]:
            del self._opened[old]


def _same(one: ViewRecord, other: ViewRecord) -> bool:
    """Whether both are the same member's for the same view."""
    return (one.view.view_id, one.driver) == (other.view.view_id, other.driver)


def _numbers(listed: Mapping[str, Value]) -> list[int]:
    """The epochs of the records, rising. What has no number for a name is no record, and passed over."""
    return sorted(int(match[1]) for key in listed if (match := _NUMBER.fullmatch(key)))
