"""What every store in a server must do besides (see ``conformance``), and the servers of its tests."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from consensus.errors import StoreAwayError
from consensus.storage.locate import store_at
from consensus.storage.store import Created, Store
from tests.harness.relay import Relay
from tests.harness.servers import Server, running

from .conformance import Conformance
from .patience import Heard
from .place import Place


def servers(kind: type[Any]) -> tuple[Any, Any, Any]:
    """The fixtures ``server`` and ``relay``, of a module, and ``own``: a server that a test may hurt."""

    @pytest.fixture(scope="module")
    def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
        with running(kind(tmp_path_factory.mktemp("server"))) as started:
            yield started

    @pytest.fixture(scope="module")
    def relay(server: Any) -> Iterator[Relay]:
        with Relay(server.port) as started:
            yield started

    @pytest.fixture
    def own(tmp_path: Path) -> Iterator[Server]:
        with running(kind(tmp_path / "server")) as started:
            yield started

    return server, relay, own


async def opened(url: str, job: str = "job", **options: Any) -> Any:
    """A handle of that kind of store."""
    store = store_at(url, job, **{"timeout": 30.0, **options})
    try:
        await store.open()
    except BaseException:
        await store.close()
        raise
    return store


class ServerPlace(Place):
    def __init__(self, server: Any, relay: Relay) -> None:
        self.url = f"{server.url.partition(':')[0]}://localhost:{relay.port}"
        self._server = server
        self._relay = relay

    def losing_answers(self, store: Store) -> AbstractContextManager[None]:
        return self._relay.losing_answers()


class Served(Conformance):
    """The tests."""

    tells_of_compactions = False
    """Whether a watch of values tells of their compaction, too."""

    @abstractmethod
    def place_of(self, server: Any, relay: Relay) -> ServerPlace:
        """One of its kind."""

    @pytest.fixture
    def place(self, server: Any, relay: Relay) -> Place:
        place = self.place_of(server, relay)
        place.wipe()
        return place

    async def test_killed_and_restarted(self, own: Any) -> None:
        store = await opened(own.url)
        await store.create("views/1", b"1")
        await store.compact("views", 1)
        own.kill()
        for attempt in (store.read("views/1"), store.create("views/2", b""), store.list("views/")):
            with pytest.raises(StoreAwayError):
                await attempt
        own.start()
        assert await store.read("views/1") == b"1"
        assert await store.compacted("views") == 1
        assert await store.create("views/2", b"2", number=2, series="views") is Created.DONE
        await store.close()

    async def test_a_watch_tells_of_changes_but_not_of_heartbeats(self, server: Any) -> None:
        store, other = await opened(server.url, "watched"), await opened(server.url, "watched")
        stranger = await opened(server.url, "another")
        views, members = Heard(store, "views/"), Heard(store, "members/")
        await views.once()  # it hears from now on
        await members.once()
        await other.create("views/1", b"")
        await views.once()
        await other.delete("views/1")
        await views.once()
        if self.tells_of_compactions:
            await other.compact("views", 5)
            await views.once()
        await other.write("views/x", b"x" * (1 << 20))
        await views.once()
        await other.write("views/x", b"")
        await views.once()
        await members.nothing()
        await other.write("members/a", b"", expires=60)
        await members.once()
        await other.write("members/a", b"", expires=60)
        await stranger.create("views/1", b"")
        await stranger.write("members/b", b"")
        await views.nothing()
        await members.nothing()
        for each in (store, other, stranger):
            await each.close()
        await views.ended()
        await members.ended()

    async def test_a_watch_survives_a_restart(self, own: Any, caplog: pytest.LogCaptureFixture) -> None:
        store, other = await opened(own.url), await opened(own.url)
        views = Heard(store, "views/")
        await views.once()
        own.kill()
        await asyncio.sleep(0.5)
        own.start()
        await views.once()  # because something may have been missed
        await other.create("views/1", b"")
        await views.once()
        assert caplog.text.count("is not watched for now") == 1
        await store.close()
        await other.close()
        await views.ended()
