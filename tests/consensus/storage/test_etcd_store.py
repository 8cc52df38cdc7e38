"""The store in etcd, against real servers."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from consensus.errors import AmbiguousWriteError, StoreAwayError, StoreError, StoreRefusedError
from consensus.storage.etcd.etcd_store import EtcdStore
from consensus.storage.store import MAX_VALUE, Created, Store, Unreadable
from tests.consensus.fake_core import until
from tests.consensus.storage.passwords import QUOTED, SECRET
from tests.consensus.storage.patience import SOON, Heard, created, first_told, impatient, once_read, until_away
from tests.consensus.storage.served import Served, ServerPlace, opened, servers
from tests.harness.basics import TIMEOUT
from tests.harness.relay import Relay
from tests.harness.servers import Certificates, EtcdServer, etcd_cluster, running

server, relay, own = servers(EtcdServer)


def ask(server: EtcdServer, path: str, token: str = "", **body: Any) -> dict[str, Any]:
    """What its gateway answers to the operator."""
    headers = {"Authorization": token} if token else {}
    request = urllib.request.Request(f"http://localhost:{server.port}/v3/{path}", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
        answer: dict[str, Any] = json.load(response)
        return answer


def coded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


class EtcdPlace(ServerPlace):
    def wipe(self) -> None:
        ask(self._server, "kv/deleterange", key=coded("\0"), range_end=coded("\0"))


class TestEtcd(Served):
    def place_of(self, server: EtcdServer, relay: Relay) -> ServerPlace:
        return EtcdPlace(server, relay)


# What others left there


async def test_what_is_no_value_hides_no_other(own: EtcdServer) -> None:
    store = await opened(own.url)
    base = "/ftlib/job/"
    try:
        await store.write("leases/a", b"1")
        for name, value in (("leases/b", "x" * (MAX_VALUE + 1)), ("leases/D!", "x"), ("leases/\ud7ff", "x")):
            ask(own, "kv/put", key=coded(f"{base}values/{name}"), value=coded(value))
        large = Unreadable(f"it has more than {MAX_VALUE} bytes: remove leases/b, no member wrote it")
        assert await store.list("leases/") == {"leases/a": b"1", "leases/b": large}
        assert await store.read("leases/b") == large
        assert await store.create("leases/b", b"") is Created.EXISTS
        ask(own, "kv/put", key=coded(f"{base}floors/views"), value=coded("high"))
        with pytest.raises(StoreRefusedError, match="the floor of views is 'high' and no number"):
            await store.compacted("views")
    finally:
        await store.close()


# Who is let in


@pytest.fixture
def locked(own: EtcdServer) -> EtcdServer:
    """root and writer have the password SECRET; reader may only read."""
    for user in ("root", "writer", "reader"):
        ask(own, "auth/user/add", name=user, password=SECRET)
    span = {"key": coded("/ftlib/"), "range_end": coded("/ftlib0")}
    for role, kind in (("root", ""), ("writes", "READWRITE"), ("reads", "READ")):
        ask(own, "auth/role/add", name=role)
        if kind:
            ask(own, "auth/role/grant", name=role, perm={"permType": kind, **span})
    for user, role in (("root", "root"), ("writer", "writes"), ("reader", "reads")):
        ask(own, "auth/user/grant", user=user, role=role)
    ask(own, "auth/enable")
    return own


async def test_passwords(locked: EtcdServer, server: EtcdServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "")
    port = locked.port
    errors = []
    for url, text in (
        (locked.url, "asks for a user"),
        (f"etcd://writer:wrong-{QUOTED}@localhost:{port}", "the password is wrong"),
        (f"etcd://nobody:{QUOTED}@localhost:{port}", "the password is wrong"),
        (f"etcd://reader:{QUOTED}@localhost:{port}", "grant its role readwrite on the prefix /ftlib/"),
        (f"etcd://writer:{QUOTED}@localhost:{server.port}", "it has no users"),
    ):
        with pytest.raises(StoreRefusedError, match=text) as caught:
            await opened(url)
        errors.append(repr(caught.value))
    store = await opened(f"etcd://writer:{QUOTED}@localhost:{port}")
    other = await opened(locked.url, username="writer", password=SECRET)
    views = Heard(store, "views/")
    await views.once()
    assert await other.create("views/1", b"1", number=1, series="views") is Created.DONE
    await views.once()
    await other.write("members/a", b"", expires=60)
    assert await store.list("members/") == {"members/a": b""}
    assert await store.compact("views", 2) == 2
    await other.delete("views/1")

    locked.restart()  # and with it all tokens are gone
    await views.once()
    assert await store.create("views/2", b"2", number=2, series="views") is Created.DONE
    token = ask(locked, "auth/authenticate", name="root", password=SECRET)["token"]
    ask(locked, "auth/role/add", token, name="more")  # tokens are older than the rights now
    assert await store.read("views/2") == b"2"
    ask(locked, "auth/user/changepw", token, name="writer", password="another")
    with pytest.raises(StoreRefusedError, match="the password is wrong") as caught:
        await store.write("a", b"")
    errors.append(repr(caught.value))
    await store.close()
    await other.close()
    said = " ".join([*errors, caplog.text])
    for secret in (SECRET, QUOTED, "pass/word", coded(SECRET)):
        assert secret not in said
    assert all("\n" not in error for error in errors)


async def test_tls(tmp_path: Path, own: EtcdServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "")
    certificates, stranger = Certificates(tmp_path / "tls"), Certificates(tmp_path / "stranger")
    misnamed = Certificates(tmp_path / "misnamed", ("elsewhere.example",))
    with running(EtcdServer(tmp_path / "tls-etcd", tls=certificates)) as server:
        files = {"ca": str(certificates.ca), "cert": str(certificates.cert), "key": str(certificates.key)}
        store = await opened(server.url, **files)
        assert await store.create("views/1", b"1") is Created.DONE
        views = Heard(store, "views/")
        await views.once()
        await store.close()
        for url in (server.url, f"{server.url}?ca={stranger.ca}"):
            with pytest.raises(StoreRefusedError, match=r"certificate is not trusted, name its authority by \?ca=FILE"):
                await opened(url)
        with pytest.raises(StoreError):
            await opened(f"etcd://localhost:{server.port}", timeout=1.0)
        with pytest.raises(StoreRefusedError, match=r"give .*cert=FILE&key=FILE"):
            await opened(f"{server.url}?ca={certificates.ca}")
    elsewhere = EtcdServer(tmp_path / "misnamed-etcd", tls=misnamed)
    with running(elsewhere), pytest.raises(StoreRefusedError, match="as the certificate names it"):
        await opened(elsewhere.url, ca=str(misnamed.ca), cert=str(misnamed.cert), key=str(misnamed.key))
    with pytest.raises(StoreAwayError):
        await opened(f"etcds://localhost:{own.port}")


# Killed, stopped, restarted


async def test_stopped_within_a_create_is_ambiguous_and_resolved_by_reading(own: EtcdServer) -> None:
    store = await opened(own.url)
    own.stop()
    with impatient(store):
        with pytest.raises(AmbiguousWriteError, match=f"did not answer to a write within {SOON:g} s"):
            await store.create("views/1", b"mine")
        with pytest.raises(StoreAwayError, match=f"within {SOON:g} s"):
            await store.read("views/1")
    own.go_on()
    seen = await once_read(store, "views/1")
    outcome = await store.create("views/1", b"mine")
    # Read as missing, it may still come: the server has the first write, and does it at some time after it goes on.
    assert outcome is Created.EXISTS or seen is None
    assert await store.read("views/1") == b"mine"
    await store.close()


async def test_a_full_server_is_away_with_a_remedy(tmp_path: Path) -> None:
    with running(EtcdServer(tmp_path / "etcd", quota=1 << 19)) as server:
        store = await opened(server.url)
        await store.create("views/1", b"1")
        with pytest.raises(StoreAwayError, match="raise its quota, then etcdctl alarm disarm"):
            await _fill(store)
        assert await store.read("views/1") == b"1"
        await store.close()


async def _fill(store: Store) -> None:
    for number in range(2, 100):
        await store.create(f"views/{number}", b"x" * (1 << 17))


async def test_of_several_servers_one_is_enough(own: EtcdServer, server: EtcdServer, tmp_path: Path) -> None:
    """The first is dead, the second silent; the third is asked, and asked first from then on."""
    dead = EtcdServer(tmp_path / "dead")
    with running(dead):
        pass
    own.stop()
    store = EtcdStore(f"etcd://localhost:{dead.port},localhost:{own.port},localhost:{server.port}", "several", timeout=15.0)
    await store.open()
    assert await store.create("views/1", b"1") is Created.DONE, "sent to the silent one it would be ambiguous"
    assert await store.read("views/1") == b"1"
    assert await first_told(store, "views/")
    await store.close()

    own.go_on()
    ask(own, "kv/range", key=coded("a"))  # it serves again: else the other would be asked first from then on
    store = EtcdStore(f"etcd://localhost:{own.port},localhost:{server.port}", "silent", timeout=TIMEOUT)
    await store.open()
    own.stop()
    with impatient(store), pytest.raises(AmbiguousWriteError):  # sent to one, it is sent to no other
        await store.create("views/1", b"1")
    assert await store.create("views/2", b"2") is Created.DONE
    await store.close()


async def test_a_cluster_that_loses_members_one_by_one(tmp_path: Path) -> None:
    """With two of three it goes on, with one it is away, at once and not after a timeout; and what was decided stays."""
    with etcd_cluster(tmp_path, 3) as servers:
        url = "etcd://" + ",".join(f"localhost:{server.port}" for server in servers)
        store = await opened(url, timeout=TIMEOUT)
        views = Heard(store, "views/")
        await views.once()
        assert await created(store, "views/1", b"1")
        servers[0].kill()
        assert await created(store, "views/2", b"2")
        servers[1].kill()
        with pytest.raises(StoreAwayError, match="have no quorum"):
            await until_away(store)
        started = time.monotonic()
        with pytest.raises(StoreAwayError):
            await store.create("views/3", b"3")
        assert time.monotonic() - started < TIMEOUT / 2
        servers[1].start()
        assert await created(store, "views/4", b"4")
        found = await store.list("views/")
        assert [found[f"views/{number}"] for number in (1, 2, 4)] == [b"1", b"2", b"4"]
        await views.once()
        await store.close()
        await views.ended()


# Expiry and watching


async def test_what_expires_is_forgotten_and_hangs_on_one_lease(own: EtcdServer) -> None:
    store = await opened(own.url)
    before = store.operations
    for number in range(10):
        await store.write("members/a", b"%d" % number, expires=60)
    assert store.operations - before == 11
    assert len(ask(own, "lease/leases")["leases"]) == 1
    await store.write("members/a", b"", expires=90)  # longer than the lease was made for
    await store.write("members/a", b"", expires=90)
    assert len(ask(own, "lease/leases")["leases"]) == 2
    await store.close()

    store = await opened(own.url)
    await store.write("members/b", b"", expires=6.0)
    lease = _lease_of(own, "members/b")
    started = time.monotonic()
    while time.monotonic() - started < 8.0:  # renewed, it outlives its first lease
        await store.write("members/b", b"", expires=6.0)
        await asyncio.sleep(0.05)
    assert _lease_of(own, "members/b") == lease
    while await store.read("members/b") is not None:
        await asyncio.sleep(0.05)
    await store.write("members/b", b"again", expires=60)  # its lease has gone
    assert await store.read("members/b") == b"again"
    assert list(await store.list("members/")) == ["members/a", "members/b"]
    await store.close()


def _lease_of(server: EtcdServer, key: str) -> str:
    lease: str = ask(server, "kv/range", key=coded(f"/ftlib/job/values/{key}"))["kvs"][0]["lease"]
    return lease


async def test_a_lease_that_was_revoked_is_replaced(own: EtcdServer) -> None:
    store = await opened(own.url)
    await store.write("members/a", b"1", expires=60)
    for lease in ask(own, "lease/leases")["leases"]:
        ask(own, "lease/revoke", ID=lease["ID"])
    assert await store.read("members/a") is None
    await store.write("members/a", b"2", expires=60)
    assert await store.read("members/a") == b"2"
    await store.close()


async def test_a_watch_of_a_server_that_falls_silent_notices(
    own: EtcdServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("consensus.storage.etcd.etcd_wire._QUIET", 0.3)
    store = await opened(own.url, timeout=SOON)
    views = Heard(store, "views/")
    await views.once()
    own.stop()
    await until(lambda: "is not watched for now" in caplog.text)
    before = views.count
    own.go_on()
    await until(lambda: views.count > before)
    await store.close()
    await views.ended()


async def test_a_watch_without_news_is_not_taken_for_a_failure(
    own: EtcdServer, server: EtcdServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """etcd says nothing while nothing changes. The watch is made again at the same server, which is asked first as before."""
    monkeypatch.setattr("consensus.storage.etcd.etcd_wire._QUIET", 0.3)
    store = await opened(f"etcd://localhost:{own.port},localhost:{server.port}", job="quiet")
    views = Heard(store, "views/")
    await until(lambda: views.count > 3)
    assert "is not watched for now" not in caplog.text
    await store.write("views/1", b"1")
    assert "kvs" in ask(own, "kv/range", key=coded("/ftlib/quiet/values/views/1"))
    await store.close()
    await views.ended()


async def test_a_watch_does_not_mind_compaction(own: EtcdServer) -> None:
    store = await opened(own.url)
    views = Heard(store, "views/")
    await views.once()
    for number in range(5):
        await store.write("views/1", b"%d" % number)
    ask(own, "kv/compaction", revision=int(ask(own, "kv/range", key=coded("a"))["header"]["revision"]), physical=True)
    await views.once()
    own.restart()
    await views.once()
    await store.write("views/1", b"")
    await views.once()
    await store.close()
