"""The members' leases in a shared store: each member writes its own, and reads those of others.

A lease is a counter. Nothing here is timed, and no clock is written: an observer times on its own clock how long a counter
stays the same (see ``messages.storage.Lease``). A store may forget old leases by itself; that is only clean-up.

An unreadable value in the place of a lease hides no other lease. It is logged once, and is no sign of life; the reply only says
that it is there, and whether it changes (see ``protocol.admission.survey``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from ..errors import UnreadableError
from ..messages import Lease
from ..store_requests import LeaseList, UnreadLease
from .store import PASSING, Store, Unreadable, Value
from .value_cipher import UnreadableLog, ValueCipher

PREFIX = PASSING

_FORGOTTEN = 60.0
"""A store may forget a lease that was not renewed for so many seconds..."""
_FORGOTTEN_LEASES = 30
"""...and for so many times its length: long after any member looks at it."""


class LeaseStore:
    """The leases in one store. Its methods raise ``StoreError``."""

    def __init__(self, store: Store, cipher: ValueCipher, lease: float, unreadable: UnreadableLog) -> None:
        """``lease``: its length in seconds."""
        self._store = store
        self._cipher = cipher
        self._unreadable = unreadable
        self._expires = max(_FORGOTTEN, _FORGOTTEN_LEASES * lease)

    async def beat(self, lease: Lease) -> None:
        """Write ``lease``, in place of the previous one."""
        key = _key_of(lease.member.id)
        await self._store.write(key, self._cipher.wrap(key, lease), expires=self._expires)

    async def read(self, member_ids: tuple[str, ...] | None) -> LeaseList:
        """The existing leases of ``member_ids``, in that order; None: all leases, by id."""
        if member_ids is None:
            return self._opened(await self._store.list(PREFIX))
        found = {}
        for key in map(_key_of, member_ids):
            value = await self._store.read(key)
            if value is not None:
                found[key] = value
        return self._opened(found)

    async def withdraw(self, member_ids: tuple[str, ...]) -> None:
        """Remove the leases of ``member_ids``."""
        if member_ids:
            await self._store.delete(*map(_key_of, member_ids))

    def _opened(self, found: Mapping[str, Value]) -> LeaseList:
        leases, unread = [], []
        for key, value in found.items():
            try:
                leases.append(self._lease(key, value))
            except UnreadableError as error:
                remedy = f"start all workers of the job with one secret and one release, or remove {key}"
                self._unreadable.name(key, f"{error}; it is passed over: {remedy}")
                unread.append(UnreadLease(key.removeprefix(PREFIX), _fingerprint(value)))
        return LeaseList(tuple(leases), tuple(unread))

    def _lease(self, key: str, value: Value) -> Lease:
        lease = self._cipher.unwrap(key, value, Lease)
        if _key_of(lease.member.id) != key:
            raise UnreadableError(f"{key} holds the lease of member {lease.member.id}")
        return lease


def _fingerprint(value: Value) -> str:
    """Changes whenever ``value`` does."""
    return "" if isinstance(value, Unreadable) else hashlib.blake2b(value, digest_size=8).hexdigest()


def _key_of(member_id: str) -> str:
    return f"{PREFIX}{member_id}"
