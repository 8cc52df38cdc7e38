"""Stores in a Redis server of the test's own."""

from __future__ import annotations

from contextlib import AbstractContextManager

from consensus.storage.redis.redis_store import RedisStore
from consensus.storage.store import Store
from tests.consensus.storage.place import Place
from tests.relay import Relay
from tests.servers import RedisServer

__all__ = ["RedisPlace", "opened"]


class RedisPlace(Place):
    def __init__(self, server: RedisServer, relay: Relay) -> None:
        self.url = f"redis://localhost:{relay.port}"
        self._server = server
        self._relay = relay

    def wipe(self) -> None:
        self._server.ask("FLUSHALL")

    def losing_answers(self, store: Store) -> AbstractContextManager[None]:
        return self._relay.losing_answers()


async def opened(url: str, job: str = "job", **options: object) -> RedisStore:
    store = RedisStore(url, job, **{"timeout": 5.0, **options})
    try:
        await store.open()
    except BaseException:
        await store.close()
        raise
    return store
