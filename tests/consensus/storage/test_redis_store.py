"""The store in Redis, against real servers."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from consensus.errors import AmbiguousWriteError, StoreAwayError, StoreError, StoreRefusedError
from consensus.storage.store import MAX_VALUE, Created, Unreadable
from tests.consensus.fake_core import until
from tests.consensus.storage.passwords import QUOTED, SECRET
from tests.consensus.storage.patience import SOON, Heard, impatient
from tests.consensus.storage.served import Served, ServerPlace, opened, servers
from tests.harness.basics import TIMEOUT
from tests.harness.relay import Relay
from tests.harness.servers import Certificates, RedisServer, running

server, relay, own = servers(RedisServer)


class RedisPlace(ServerPlace):
    def wipe(self) -> None:
        self._server.ask("FLUSHALL")


class TestRedis(Served):
    tells_of_compactions = True

    def place_of(self, server: RedisServer, relay: Relay) -> ServerPlace:
        return RedisPlace(server, relay)


# What others left there


async def test_what_is_no_value_hides_no_other(own: RedisServer) -> None:
    store = await opened(own.url)
    base = "ftlib:{job}:"
    try:
        await store.write("leases/a", b"1")
        own.ask("LPUSH", f"{base}value:leases/b", "x")
        own.ask("SETRANGE", f"{base}value:leases/c", str(MAX_VALUE), "x")
        own.ask("SET", f"{base}value:leases/D!", "x")
        for name in ("leases/b", "leases/c", "leases/D!", b"leases/\xff"):
            own.ask("ZADD", f"{base}names", "0", name)
        list_ = Unreadable(f"{base}value:leases/b is no string: DEL it, no member made it")
        large = Unreadable(f"it has more than {MAX_VALUE} bytes: remove leases/c, no member wrote it")
        assert await store.list("leases/") == {"leases/a": b"1", "leases/b": list_, "leases/c": large}
        assert await store.read("leases/b") == list_ and await store.read("leases/c") == large
        assert await store.create("leases/b", b"") is Created.EXISTS
        await store.write("leases/b", b"2")
        assert await store.read("leases/b") == b"2", "its owner writes it anew"
        own.ask("HSET", f"{base}floors", "views", "high")
        with pytest.raises(StoreRefusedError, match="the floor of views is 'high' and no number"):
            await store.compacted("views")
    finally:
        await store.close()


# Who is let in


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    settings = {"unixsocket": str(tmp_path_factory.mktemp("run") / "socket")}
    with running(RedisServer(tmp_path_factory.mktemp("redis"), password=SECRET, **settings)) as server:
        yield server


async def test_passwords_by_url_or_setting(locked: RedisServer) -> None:
    for url, options in (
        (f"redis://:{QUOTED}@localhost:{locked.port}", {}),
        (f"redis://default:{QUOTED}@localhost:{locked.port}/1", {}),
        (locked.url, {"password": SECRET}),
        (f"redis://:other@localhost:{locked.port}", {"username": "default", "password": SECRET}),
        (f"unix://:{QUOTED}@{locked.settings['unixsocket']}?db=2", {}),
    ):
        store = await opened(url, **options)
        assert await store.create("views/1", b"") in {Created.DONE, Created.EXISTS}
        await store.close()
    assert locked.ask("EXISTS", "ftlib:{job}:names").strip() == "1"
    assert locked.ask("-n", "1", "EXISTS", "ftlib:{job}:names").strip() == "1"
    assert locked.ask("-n", "2", "EXISTS", "ftlib:{job}:names").strip() == "1"


async def test_who_is_not_let_in_learns_why(locked: RedisServer, server: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "")
    locked.ask("ACL", "SETUSER", "reader", "on", ">sesame-1", "~*", "&*", "+@read", "+info")
    locked.ask("ACL", "SETUSER", "blind", "on", ">sesame-1", "~*", "&*", "+@all", "-info")
    locked.ask("CONFIG", "SET", "latency-tracking", "yes")
    port = locked.port
    errors = []
    for url, text in (
        (locked.url, "asks for a password"),
        (f"redis://:wrong-{QUOTED}@localhost:{port}", "the password is wrong"),
        (f"redis://someone:{QUOTED}@localhost:{port}", "the password is wrong"),
        (f"redis://:{QUOTED}@localhost:{server.port}", "no such password"),
        (f"redis://reader:sesame-1@localhost:{port}", "this user may not do that"),
        (f"redis://:{QUOTED}@localhost:{port}/99", "out of range"),
    ):
        with pytest.raises(StoreRefusedError, match=text) as caught:
            await opened(url)
        errors.append(repr(caught.value))
    store = await opened(f"redis://blind:sesame-1@localhost:{port}")
    assert await store.list("views/") is not None
    assert "cannot be checked" in caplog.text
    locked.ask("ACL", "SETUSER", "blind", "resetpass", ">sesame-2")
    locked.ask("CLIENT", "KILL", "USER", "blind")
    with pytest.raises((StoreRefusedError, AmbiguousWriteError)):
        await store.write("a", b"")
    with pytest.raises(StoreRefusedError, match="password is wrong"):
        await store.write("a", b"")
    await store.close()
    said = " ".join([*errors, caplog.text])
    for secret in (SECRET, QUOTED, "sesame", "pass/word"):
        assert secret not in said
    assert all("\n" not in error for error in errors)


async def test_a_server_that_quotes_the_password_is_not_quoted(tmp_path: Path) -> None:
    """Redis does so where AUTH was renamed."""
    settings = {"rename-command": 'AUTH" "'}
    with running(RedisServer(tmp_path / "redis", **settings)) as server:
        with pytest.raises(StoreError) as caught:
            await opened(f"redis://:sesame-1@localhost:{server.port}")
        assert "AUTH" in str(caught.value)
        assert "sesame" not in repr(caught.value)


async def test_tls(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "")
    certificates = Certificates(tmp_path / "tls")
    stranger = Certificates(tmp_path / "stranger")
    with running(RedisServer(tmp_path / "redis", tls=certificates, password="sesame-1")) as server:
        store = await opened(f"{server.url}?ca={certificates.ca}", password="sesame-1")
        assert await store.create("views/1", b"1") is Created.DONE
        await store.close()
        files = {"ca": str(certificates.ca), "cert": str(certificates.cert), "key": str(certificates.key)}
        store = await opened(server.url, password="sesame-1", **files)
        assert await store.read("views/1") == b"1"
        await store.close()
        for url in (server.url, f"{server.url}?ca={stranger.ca}"):
            with pytest.raises(StoreRefusedError, match=r"certificate is not trusted, name its authority by \?ca=FILE"):
                await opened(url, password="sesame-1")
        with pytest.raises(StoreError):
            await opened(f"redis://:sesame-1@localhost:{server.port}", timeout=1.0)
    with running(RedisServer(tmp_path / "plain")) as server, pytest.raises(StoreAwayError, match=r"within 0\.5 s"):
        await opened(f"rediss://localhost:{server.port}", timeout=0.5)  # it waits for the end of a line
    assert "sesame" not in caplog.text


# Servers that cannot be relied on


async def test_a_server_that_may_forget_is_refused_and_one_that_may_lose_warned_of(
    own: RedisServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    own.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    with pytest.raises(StoreRefusedError, match="set maxmemory-policy noeviction"):
        await opened(own.url)
    own.ask("CONFIG", "SET", "maxmemory-policy", "volatile-lru")
    await (await opened(own.url)).close()
    assert not caplog.records
    own.ask("CONFIG", "SET", "appendonly", "no")
    await (await opened(own.url)).close()
    assert "keeps no append-only file" in caplog.text
    with running(RedisServer(tmp_path / "replica", replicaof=f'localhost" "{own.port}')) as replica:
        with pytest.raises(StoreRefusedError, match="is a replica: give the URL of its primary"):
            await opened(replica.url)
        while "connected_slaves:1" not in own.ask("INFO", "replication"):
            await asyncio.sleep(0.02)
        await (await opened(own.url)).close()
        assert caplog.text.count("has replicas") == 1
    cluster = RedisServer(tmp_path / "cluster", cluster_enabled="yes")
    with running(cluster), pytest.raises(StoreRefusedError, match="Redis Cluster, which is not supported"):
        await opened(cluster.url)


async def test_what_a_server_answers_in_trouble_is_away_with_a_remedy(own: RedisServer) -> None:
    store = await opened(own.url)
    assert await store.create("views/1", b"1") is Created.DONE
    own.ask("CONFIG", "SET", "maxmemory", "1")
    for attempt in (store.create("views/2", b""), store.write("a", b""), store.compact("views", 1)):
        with pytest.raises(StoreAwayError, match="raise its maxmemory"):
            await attempt
    assert await store.read("views/1") == b"1"
    own.ask("CONFIG", "SET", "maxmemory", "0")
    own.ask("REPLICAOF", "localhost", "1")
    for attempt in (store.create("views/2", b""), store.write("a", b""), store.delete("views/1")):
        with pytest.raises(StoreAwayError, match="make it the primary again"):
            await attempt
    own.ask("REPLICAOF", "NO", "ONE")
    own.ask("CONFIG", "SET", "min-replicas-to-write", "1")
    with pytest.raises(StoreAwayError, match="min-replicas-to-write"):
        await store.create("views/2", b"")
    own.ask("CONFIG", "SET", "min-replicas-to-write", "0")
    own.ask("SET", "ftlib:{job}:names", "mine")
    with pytest.raises(StoreRefusedError, match="something else uses the keys of this job"):
        await store.list("views/")
    assert await store.create("views/1", b"") is Created.EXISTS
    await store.close()


async def test_scripts_that_the_server_forgot_are_sent_again(server: RedisServer) -> None:
    store = await opened(server.url, "scripts")
    server.ask("SCRIPT", "FLUSH")
    assert await store.create("views/1", b"1") is Created.DONE
    assert await store.list("views/") == {"views/1": b"1"}
    await store.close()


# Killed, stopped, restarted


async def test_stopped_within_a_create_is_ambiguous_and_resolved_by_reading(own: RedisServer) -> None:
    store = await opened(own.url)
    await store.create("views/0", b"")  # a script that the server does not know would not run when it goes on
    own.stop()
    with impatient(store):
        with pytest.raises(AmbiguousWriteError, match=f"did not answer to a write within {SOON:g} s"):
            await store.create("views/1", b"mine")
        with pytest.raises(StoreAwayError, match=f"within {SOON:g} s"):
            await store.read("views/1")
        with pytest.raises(StoreAwayError, match=f"within {SOON:g} s"):  # a fresh connection is greeted by nobody
            await store.create("views/1", b"mine")
    own.go_on()
    async with asyncio.timeout(TIMEOUT):
        while True:
            with suppress(StoreAwayError, AmbiguousWriteError):
                if await store.read("views/1") == b"mine":
                    assert await store.create("views/1", b"mine") is Created.EXISTS
                    break
    await store.close()


async def test_many_operations_at_once_all_end_in_time(own: RedisServer) -> None:
    store = await opened(own.url)
    await asyncio.gather(*(store.write(f"a/{number}", b"%d" % number) for number in range(100)))
    assert len(await store.list("a/")) == 100
    await store.close()
    store = await opened(own.url)
    own.stop()
    started = time.monotonic()
    with impatient(store):
        results = await asyncio.gather(*(store.write("b", b"") for _ in range(40)), return_exceptions=True)
    assert all(isinstance(result, StoreError) for result in results)
    assert time.monotonic() - started < 20 * SOON, "and not one after the other"
    own.go_on()
    await store.close()


async def test_a_cancelled_operation_does_not_give_its_answer_to_the_next(own: RedisServer) -> None:
    store = await opened(own.url)
    await store.write("a", b"1")
    await store.write("b", b"2")
    own.stop()
    reading = asyncio.create_task(store.read("a"))
    await asyncio.sleep(0.05)
    reading.cancel()
    own.go_on()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert [await store.read("b") for _ in range(3)] == [b"2"] * 3
    await store.close()


async def test_a_cancellation_is_never_lost(server: RedisServer) -> None:
    store = await opened(server.url)
    for number in range(200):

        async def forever() -> None:
            while True:
                await store.read("a")

        reading = asyncio.create_task(forever())
        await asyncio.sleep(0.0001 * (number % 10))
        reading.cancel()
        async with asyncio.timeout(TIMEOUT):
            with pytest.raises(asyncio.CancelledError):
                await reading
    await store.close()


# Expiry and watching


async def test_what_expires_is_forgotten_and_what_is_renewed_is_not(server: RedisServer) -> None:
    store = await opened(server.url, "expiry")
    await store.write("members/a", b"", expires=0.1)
    await store.write("members/b", b"", expires=60)
    await store.write("members/c", b"", expires=0.1)
    await store.write("members/c", b"")
    while await store.read("members/a") is not None:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)
    assert list(await store.list("members/")) == ["members/b", "members/c"]
    assert server.ask("ZRANGE", "ftlib:{expiry}:names", "0", "-1").split() == ["members/b", "members/c"]
    assert await store.create("members/a", b"") is Created.DONE
    await store.close()


async def test_a_watch_of_a_server_that_falls_silent_notices(
    own: RedisServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("consensus.storage.redis.redis_wire._QUIET", 0.1)
    store = await opened(own.url, timeout=SOON)
    views = Heard(store, "views/")
    await views.once()
    await views.nothing()  # quiet is not silent
    own.stop()
    await until(lambda: "is not watched for now" in caplog.text)
    own.go_on()
    await views.once()
    await store.close()
    await views.ended()
