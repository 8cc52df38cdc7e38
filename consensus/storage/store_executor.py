"""Carries out the protocol's requests at a store, each once, and always returns an answer.

The agent runs these coroutines on its loop, the simulator in virtual time: they await only the store's methods, and the store
ends what takes too long.
"""

from __future__ import annotations

from collections.abc import Callable

from ..config import Config
from ..errors import AmbiguousWriteError, CodecError, ConfigError, StoreError, UnreadableError
from ..logs import CarefulLogger
from ..member import Member
from ..store_requests import Away, Beat, Clean, CreateView, Done, ReadLeases, ReadViews, StoreOp, StoreReply, Unread, Withdraw
from ..wire.keys import KeyRing
from .lease_store import LeaseStore
from .store import Store
from .value_cipher import UnreadableLog, ValueCipher
from .view_log import ViewLog

_LOG = CarefulLogger()


class StoreExecutor:
    """Executes one member's requests at one open store. Several requests may be under way at once."""

    def __init__(
        self,
        store: Store,
        config: Config,
        member: Member,
        ring: KeyRing | None = None,
        say: Callable[[str], None] = _LOG.warning,
    ) -> None:
        """``ring``: seals the values if the job has a secret. ``say``: gets a line for each unreadable value."""
        cipher, unreadable = ValueCipher(config, member, ring), UnreadableLog(store.url, say)
        self._views = ViewLog(store, cipher, unreadable)
        self._leases = LeaseStore(store, cipher, config.lease, unreadable)

    async def carry_out(self, request: StoreOp) -> StoreReply:
        """The reply to ``request``. Never raises a ``StoreError``: ``Away`` has its text."""
        try:
            return await self._carry_out(request)
        except AmbiguousWriteError as error:
            return Away(str(error), ambiguous=True)
        except UnreadableError as error:
            return Unread(str(error))
        except (StoreError, CodecError, ConfigError) as error:  # ConfigError: an id that no store accepts as a key
            return Away(str(error))

    async def _carry_out(self, request: StoreOp) -> StoreReply:
        match request:
            case CreateView(record):
                return await self._views.create(record)
            case ReadViews(epoch, view_id):
                return await self._views.newest(epoch, view_id)
            case Beat(lease):
                await self._leases.beat(lease)
            case ReadLeases(member_ids):
                return await self._leases.read(member_ids)
            case Withdraw(member_ids):
                await self._leases.withdraw(member_ids)
            case Clean(compacted):
                await self._views.clean(compacted)
        return Done()
