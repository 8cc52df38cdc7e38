"""The members' leases in a shared store: each writes its own, and reads those of others.

A lease is a counter. Nothing here is timed, and no clock is written: an observer times on its own how long a counter stays the
same (see ``messages.storage.Lease``). That a store forgets old leases by itself, where it can, is clean-up.
"""

from __future__ import annotations

from ..errors import CodecError
from ..messages import Lease
from .store import Store
from .vault import Vault

__all__ = ["PREFIX", "LeaseBook"]

PREFIX = "leases/"

_FORGOTTEN = 60.0
"""A store may forget a lease that was not renewed for so many seconds..."""
_FORGOTTEN_LEASES = 30
"""...and for so many times its length: long after anybody looks at it."""


class LeaseBook:
    """The leases in one store. Its methods raise ``StoreError``, and CodecError (with the key) for what is no lease."""

    def __init__(self, store: Store, vault: Vault, lease: float) -> None:
        """``lease``: its length in seconds."""
        self._store = store
        self._vault = vault
        self._expires = max(_FORGOTTEN, _FORGOTTEN_LEASES * lease)

    async def beat(self, lease: Lease) -> None:
        """Write it, in place of the one before."""
        key = _key_of(lease.member.id)
        await self._store.write(key, self._vault.wrap(key, lease), expires=self._expires)

    async def read(self, member_ids: tuple[str, ...] | None) -> tuple[Lease, ...]:
        """Those of ``member_ids`` that there are, in that order; of None all, by id."""
        if member_ids is None:
            return tuple(self._lease(key, value) for key, value in (await self._store.list(PREFIX)).items())
        found = []
        for member_id in member_ids:
            value = await self._store.read(_key_of(member_id))
            if value is not None:
                found.append(self._lease(_key_of(member_id), value))
        return tuple(found)

    async def withdraw(self, member_ids: tuple[str, ...]) -> None:
        """Remove theirs."""
        if member_ids:
            await self._store.delete(*map(_key_of, member_ids))

    def _lease(self, key: str, value: bytes) -> Lease:
        lease = self._vault.unwrap(key, value, Lease)
        if _key_of(lease.member.id) != key:
            raise CodecError(f"{key} holds the lease of member {lease.member.id}")
        return lease


def _key_of(member_id: str) -> str:
    return f"{PREFIX}{member_id}"
