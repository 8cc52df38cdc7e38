"""The records of a job's views: the member that creates ``views/{epoch}`` decides that epoch, and nobody decides it twice.

A record, once created, stays until the log is compacted above it; the newest record is never below the compacted revision. Four
rules go beyond a plain create:

* *A record is created only as the child of a record that stands.* A creator first finds the record of its parent in its place.
  A member that slept while others went on finds a newer record, or that its own place is compacted.
* *No record is created below the compacted revision* (``Store.create``): otherwise a member that slept between looking and
  creating could make ``views/6`` once more, after the others have reached 20 and removed 6. A reader of a record reads the
  compacted revision after it, so no reader believes a record that stands below it for a moment. And the log is compacted before
  anything is removed. So a record that a listing misses because it was removed meanwhile is below the compacted revision that
  is read after the listing.
* *A member does not go on with a wiped store.* A store that lost its records lets an epoch be decided once more. After
  creating, a creator looks for the parent's record again: if that is missing and not below the compacted revision either, the
  store was wiped in between, and the creator takes its own record back. The creator might die before that; so a reader takes
  the newest record for a decision only if it also found the record before it (unless that is below the compacted revision).
  Where the listing has not got that one, it is read: a listing of a directory may have the younger one alone of two that are
  created meanwhile.
* *A record that cannot be read is unknown, and never absent.* It may be sealed with a secret, or made by a release, that its
  reader does not have; it may be a decision all the same, on which others act. So its name stays taken: nothing is created
  there or beside it, and nobody removes it. A reader gets the newest record that it can read; that is safe, as its next record
  would have to be created in the very place that is taken. If it cannot even read the record that it asks for, or the one at
  the compacted revision, it gets ``UnreadableError``. Bytes that were opened once stay opened: their secret may have been
  dropped since.

No caller learns of a decision that the store did not confirm; an unclear one raises ``AmbiguousWriteError``. Nothing else is
kept between two calls: another try, by any member, begins from the records that stand.
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
SERIES = "views"
"""What the records are a series of: see ``Store.compact``."""

_NUMBER = re.compile(r"views/([0-9]{12})")
_LOOKS = 4
"""The most listings for one answer while others clean up."""


def key_of(epoch: int) -> str:
    """The key of the record of ``epoch``."""
    return f"{PREFIX}{epoch:012d}"


_REMEMBERED = 4
"""The most records that stay opened: the newest, and their parents."""


class ViewLog:
    """The records in one store. Its methods raise ``StoreError``, and ``UnreadableError`` for a value that is no record."""

    def __init__(self, store: Store, cipher: ValueCipher, unreadable: UnreadableLog) -> None:
        """Reads and writes nothing yet."""
        self._store = store
        self._cipher = cipher
        self._unreadable = unreadable
        self._opened: dict[int, tuple[bytes, ViewRecord]] = {}
        """The records read or made here last, by epoch: as bytes and opened."""

    async def create(self, record: ViewRecord) -> Recorded | Wiped:
        """Decide ``record.view.epoch`` unless another member has: ``Recorded(record)``, or the newest record that stands.

        ``Wiped``: the parent's record is gone. Raises ``AmbiguousWriteError`` if ``record`` may have been created, or may still
        be; ask again. ``UnreadableError``: something that is no value is in its place.
        """
        answer = await self._try(record) or await self._try(record)
        if answer is None:
            key = key_of(record.view.epoch)
            raise UnreadableError(f"{key} is taken, but by no value: remove it (in a directory: the subdirectory of that name)")
        return answer

    async def _try(self, record: ViewRecord) -> Recorded | Wiped | None:
        """One try of ``create``. None: its name is taken, and no value is there (or not any more: its creator took it back)."""
        view, key = record.view, key_of(record.view.epoch)
        parent = await self._parent_of(record)
        if not isinstance(parent, str):
            return await self._instead(record, parent)
        value = self._cipher.wrap(key, record)
        try:
            created = await self._store.create(key, value, number=view.epoch, series=SERIES)
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
        found = await self.newest(view.epoch - 1, parent)
        return await self._instead(record, found, taken=created is Created.EXISTS)

    async def newest(self, epoch: int = 0, view_id: str = "") -> Recorded | Wiped:
        """The newest record. ``epoch``, ``view_id``: of the view that the asker follows (0, "": none yet), whose record must
        still stand.
        """
        compacted = -1
        for _ in range(_LOOKS):
            listed = await self._store.list(PREFIX)
            numbers = _numbers(listed)
            record = self._newest_readable(listed, numbers)
            number = 0 if record is None else record.view.epoch
            before = compacted
            try:
                compacted = await self._store.compacted(SERIES)
            except StoreRefusedError as error:
                if epoch and not numbers:
                    return Wiped(f"the record of view {epoch} is gone from the store: {error}")
                raise
            lowest = max(1, compacted)  # lowest epoch that counts: no record is above it unless one stands at it
            if number < lowest and lowest in numbers:
                self._record(lowest, listed[key_of(lowest)])
            if number >= compacted:
                before_it = key_of(number - 1)
                if number > max(1, epoch, compacted) and before_it not in listed:
                    value = await self._store.read(before_it)
                    if value is None and await self._store.compacted(SERIES) != compacted:
                        continue  # removed by now
                    listed = {**listed, **({} if value is None else {before_it: value})}
                return self._judge(record, listed, compacted, epoch, view_id)
            if compacted == before:  # it did not move, and yet no record stands at or above it
                return Wiped(f"the store's records from {key_of(compacted)} on are gone: it was wiped")
        raise StoreAwayError(f"the store {self._store.url}: its records change faster than they can be listed")

    async def clean(self, compacted: int) -> None:
        """Remove the records below ``compacted``, which may not be above the newest."""
        compacted = await self._store.compact(SERIES, compacted)
        old = [key_of(number) for number in _numbers(await self._store.list(PREFIX)) if number < compacted]
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
        self, record: ViewRecord | None, listed: Mapping[str, Value], compacted: int, epoch: int, view_id: str
    ) -> Recorded | Wiped:
        """The answer from a listing whose newest readable ``record`` is not below ``compacted``, read after it."""
        number = 0 if record is None else record.view.epoch
        if number < epoch and key_of(epoch) in listed:
            self._record(epoch, listed[key_of(epoch)])
        if record is None:
            return Wiped(f"the record of view {epoch} is gone from the store: it was wiped") if epoch else Recorded(None)
        if number < epoch or (number == epoch and record.view.view_id != view_id):
            there = f"and {key_of(number)} is what there is now"
            return Wiped(f"the record of view {epoch} ({view_id[:6]}) is gone from the store, {there}: it was wiped")
        if number > max(1, epoch) and number - 1 >= compacted and not self._after(record, listed, epoch, view_id):
            return Wiped(f"{key_of(number)} stands in the store without the record before it: it was wiped")
        return Recorded(record)

    def _after(self, record: ViewRecord, listed: Mapping[str, Value], epoch: int, view_id: str) -> bool:
        """Whether the record before ``record`` stands, as far as it can be read; a founding record names no parent."""
        before, parent_id = record.view.epoch - 1, record.view.parent_id
        value = listed.get(key_of(before))
        if value is None:
            return False
        try:
            known = self._record(before, value).view.view_id
        except UnreadableError:
            known = view_id if before == epoch else parent_id  # the creator of its successor has read it
        return parent_id in ("", known)

    # A record of our own

    async def _parent_of(self, record: ViewRecord) -> str | Recorded | Wiped:
        """The id of the view before ``record``, if that one's record stands ("": none is needed); else what stands instead."""
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

    async def _instead(self, record: ViewRecord, found: Recorded | Wiped, *, taken: bool = False) -> Recorded | Wiped | None:
        """The answer if ``record`` was not created by this try; ``found`` may be the record of an earlier try. ``taken``: the
        store said that its name is. None: see ``_try``.
        """
        if isinstance(found, Wiped):
            await self._believe(record)
            await self._take_back(record)
            return found
        last = found.record
        newer = last is not None and last.view.epoch >= record.view.epoch
        if not newer and not await self._check_readable(record.view.epoch) and taken:
            return None
        if record.view.parent_id and not newer:
            key = key_of(record.view.epoch)
            raise StoreAwayError(f"the store {self._store.url}: {key} was there and is gone, or is not listed yet: ask again")
        return found if last is None or not _same(last, record) else await self._confirmed(last, record.view.parent_id)

    async def _confirmed(self, record: ViewRecord, parent: str) -> Recorded | Wiped:
        """``record`` stands, and is ours. It counts if the record before it (of ``parent``; "": of any view) still stands."""
        before = record.view.epoch - 1
        if before == 0:
            return Recorded(record)
        try:
            value = await self._store.read(key_of(before))
            if value is not None and parent in ("", self._record(before, value).view.view_id):
                return Recorded(record)
            if value is None and await self._compacted_of_what_is_left() > before:
                return await self.newest(record.view.epoch, record.view.view_id)
        except (StoreError, UnreadableError) as error:
            raise AmbiguousWriteError(f"{key_of(before + 1)} was created and not confirmed: {error}") from None
        await self._take_back(record)
        return Wiped(f"the record of view {before} was gone from the store when its successor was created: it was wiped")

    async def _compacted_of_what_is_left(self) -> int:
        """The compacted revision, 0 if its place in the store is gone."""
        try:
            return await self._store.compacted(SERIES)
        except StoreRefusedError:
            if await self._store.list(PREFIX):
                raise
            return 0

    async def _believe(self, record: ViewRecord) -> None:
        """Check that the parent's record is really gone: an old listing may say so wrongly (see ``files.probe``), and others
        may follow our record. Raises StoreAwayError if it is there.
        """
        epoch, parent_id = record.view.epoch, record.view.parent_id
        value = await self._store.read(key_of(epoch - 1)) if parent_id else None
        if value is not None and self._record(epoch - 1, value).view.view_id == parent_id:
            raise StoreAwayError(f"the store {self._store.url}: {key_of(epoch - 1)} is there, but is not listed: ask again")

    async def _take_back(self, record: ViewRecord) -> None:
        """Remove our own record, if it stands. While it stands, no other member creates one in its place."""
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
        """Whether ``key`` is known to have a value."""
        try:
            return await self._store.read(key) is not None
        except StoreError:
            return False

    async def _check_readable(self, epoch: int) -> bool:
        """Whether ``epoch`` has a record. Raises ``UnreadableError`` if this member cannot read it."""
        value = await self._store.read(key_of(epoch))
        if value is not None:
            self._record(epoch, value)
        return value is not None

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
    """Whether both records are of the same driver for the same view."""
    return (one.view.view_id, one.driver) == (other.view.view_id, other.driver)


def _numbers(listed: Mapping[str, Value]) -> list[int]:
    """The epochs of the records, rising. A key without a number is no record, and is ignored."""
    return sorted(int(match[1]) for key in listed if (match := _NUMBER.fullmatch(key)))
