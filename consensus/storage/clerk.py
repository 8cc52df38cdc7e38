"""Carries out the protocol's errands at a store, each once, and always comes back with an answer.

The agent runs these coroutines on its loop, the simulator in virtual time: they wait for the store's methods and for nothing
else, and whatever takes too long is the store's to end.
"""

from __future__ import annotations

from ..config import Config
from ..errands import Answer, Away, Beat, Clean, CreateView, Done, Errand, Leases, ReadLeases, ReadViews, Withdraw
from ..errors import AmbiguousWriteError, CodecError, ConfigError, StoreError
from ..keys import KeyRing
from ..member import Member
from .lease_book import LeaseBook
from .store import Store
from .vault import Vault
from .view_register import ViewRegister

__all__ = ["Clerk"]


class Clerk:
    """One member's, at one open store. Several errands may be under way at once."""

    def __init__(self, store: Store, config: Config, member: Member, ring: KeyRing | None = None) -> None:
        """``ring``: seals what is written where the job has a secret."""
        vault = Vault(config, member, ring)
        self._views = ViewRegister(store, vault)
        self._leases = LeaseBook(store, vault, config.lease)

    async def carry_out(self, errand: Errand) -> Answer:
        """What came of it. Never raises a ``StoreError``: ``Away`` has its text, or names a key that holds nothing of ours."""
        try:
            return await self._carry_out(errand)
        except AmbiguousWriteError as error:
            return Away(str(error), ambiguous=True)
        except (StoreError, CodecError, ConfigError) as error:  # ConfigError: an id that no store takes for a key
            return Away(str(error))

    async def _carry_out(self, errand: Errand) -> Answer:
        match errand:
            case CreateView(record):
                return await self._views.create(record)
            case ReadViews(epoch, view_id):
                return await self._views.newest(epoch, view_id)
            case Beat(lease):
                await self._leases.beat(lease)
            case ReadLeases(member_ids):
                return Leases(await self._leases.read(member_ids))
            case Withdraw(member_ids):
                await self._leases.withdraw(member_ids)
            case Clean(floor):
                await self._views.clean(floor)
        return Done()
