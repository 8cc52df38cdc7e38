"""Workers that meet in a real Redis or etcd: killed, joined, with the server away, locked, and wiped under way."""

from __future__ import annotations

import base64
import json
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ftlib.cli.doctor.network import examine
from ftlib.cli.status import fetch_status
from tests.harness.basics import TIMEOUT
from tests.harness.cluster import Cluster, Worker
from tests.harness.nursery import Nursery
from tests.harness.servers import Certificates, EtcdServer, RedisServer, Server, running
from tests.harness.verdict import Verdict
from tests.harness.worker import PAUSE

pytestmark = pytest.mark.process

SECRET = "a p@ss/word"
QUOTED = "a%20p%40ss%2Fword"
SETTINGS = {
    "bucket_mb": 0.08,
    "consensus": "shared_storage",
    "lease": 3.0,
    "storage_timeout": 2.0,
    "storage_poll": 1.0,
    "quorum_timeout": 60.0,
}


@pytest.fixture
def cluster(nursery: Nursery, tmp_path: Path) -> Iterator[Cluster]:
    """Of a job of its own, without workers yet."""
    with Cluster(tmp_path / "workers", nursery, sizes=[20_000, 300], pause=PAUSE) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """Several jobs' server."""
    with running(RedisServer(tmp_path_factory.mktemp("redis"))) as server:
        assert isinstance(server, RedisServer)
        yield server


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    """Several jobs' server."""
    with running(EtcdServer(tmp_path_factory.mktemp("etcd"))) as server:
        assert isinstance(server, EtcdServer)
        yield server


@pytest.fixture(params=["redis", "etcd"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """One, then the other."""
    server: Server = request.getfixturevalue(request.param)
    yield server
    server.restart()  # a test that failed left it as it was


def found(
    cluster: Cluster, size: int, storage: str = "", *, environment: dict[str, str] | None = None, **more: Any
) -> list[Worker]:
    """Start founders that know nothing but the store (``storage``, else what ``environment`` says)."""
    settings = {**SETTINGS, "introducers": [], "bind": "127.0.0.1:0", **more}
    settings |= {"storage": storage} if storage else {}
    return cluster.found(size, settings=settings, environment=environment or {})


def join(cluster: Cluster, storage: str) -> Worker:
    """Somebody who knows nothing but the store."""
    return cluster._spawn({**SETTINGS, "introducers": [], "storage": storage})


def judge(cluster: Cluster, workers: list[Worker] | None = None) -> int:
    """No step lost, none divergent, nobody that erred; the newest step."""
    verdict = Verdict()
    cluster.read()
    verdict.check(cluster.workers if workers is None else workers)
    names = {worker.task.name for worker in (cluster.workers if workers is None else workers)}
    assert not [*verdict.violations, *(fault for fault in cluster.faults() if fault.partition(":")[0] in names)]
    return verdict.steps


def together(cluster: Cluster, workers: list[Worker]) -> None:
    """Wait until exactly those of ``workers`` that live average together."""

    def same() -> bool:
        alive = [worker for worker in workers if worker.alive]
        mask = sum(1 << worker.task.slot for worker in alive)
        return all(worker.last.get("who") == mask for worker in alive)

    cluster.until("the workers of a job train together", same)


def ask(server: EtcdServer, path: str, **body: Any) -> dict[str, Any]:
    """What an etcd's gateway answers to its operator."""
    request = urllib.request.Request(f"http://localhost:{server.port}/v3/{path}", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
        answer: dict[str, Any] = json.load(response)
        return answer


def span(prefix: str) -> dict[str, str]:
    """All keys that begin so (``prefix`` ends in /), as etcd's gateway is told."""
    return {
        "key": base64.b64encode(prefix.encode()).decode(),
        "range_end": base64.b64encode(f"{prefix[:-1]}0".encode()).decode(),
    }


def errors(workers: list[Worker]) -> list[str]:
    """What ended those that erred."""
    return [event["text"] for worker in workers for event in worker.events if event.get("event") == "error"]


# The server is there, goes away, and comes back


def test_killed_joined_and_the_server_away(cluster: Cluster, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    workers = found(cluster, 4, server.url)
    cluster.training(4)
    workers[0].kill()
    cluster.training(3)
    join(cluster, server.url)
    cluster.training(4)

    server.kill()
    cluster.advanced()
    before = {worker.pid: worker.last["step"] for worker in cluster.alive()}
    time.sleep(1.5 * SETTINGS["lease"])  # how long it is away is what is tested: nobody's lease holds any more
    cluster.until(
        "training goes on meanwhile", lambda: all(worker.last["step"] > before[worker.pid] + 5 for worker in cluster.alive())
    )
    epochs = {worker.last["epoch"] for worker in cluster.alive()}
    assert len(epochs) == 1

    workers[1].kill()
    alive = cluster.alive()
    assert len(alive) == 3
    monkeypatch.setenv("FTLIB_SECRET", cluster.secret)
    cluster.until("everybody says what it waits for", lambda: all(waits_for_the_store(worker, server) for worker in alive))
    said = time.monotonic()
    assert all(f"the store {server.url} was not reached" in worker.output() for worker in alive)
    (diagnosis,) = examine(alive[0].address, job=None, timeout=20.0)
    assert f"it does not reach the store {server.url}" in diagnosis.verdict
    time.sleep(SETTINGS["lease"])  # once its lease is over its death is no more decided than before
    restarted = time.monotonic()
    server.start()
    cluster.training(3)
    cluster.advanced()
    assert not [call for worker in alive for call in worker.calls if said < call["t"] < restarted], "nobody goes on undecided"
    assert {worker.last["epoch"] for worker in cluster.alive()} == {epochs.pop() + 1}, "nobody else was lost"
    judge(cluster)


def waits_for_the_store(worker: Worker, server: Server) -> bool:
    """Whether that is what ``ftlib explain`` shows."""
    under_way = fetch_status(worker.address, 60.0).get("under_way") or {"text": ""}
    return f"the next view waits for the store: the store {server.url} " in under_way["text"]


def test_the_last_of_four_goes_on(cluster: Cluster, redis: RedisServer) -> None:
    """Gossip finds out who lives, the store decides: three of four die at once."""
    storage = {"consensus": "gossip", "policy": "storage", "storage": redis.url}
    workers = cluster.found(4, settings={**SETTINGS, **storage})
    cluster.training(4)
    for worker in workers[1:]:
        worker.kill()
    cluster.training(1)
    cluster.join(settings={**SETTINGS, **storage})
    cluster.training(2)
    judge(cluster)


def test_two_jobs_in_one_server(cluster: Cluster, etcd: EtcdServer) -> None:
    """One's name begins like the other's."""
    jobs = [found(cluster, 2, etcd.url, job=job) for job in ("a", "a/b")]
    for workers in jobs:
        together(cluster, workers)
    jobs[1][0].kill()
    for workers in jobs:
        together(cluster, workers)
    cluster.advanced()
    for workers in jobs:
        judge(cluster, workers)
    assert {worker.last["epoch"] for worker in jobs[0]} == {1}


# Who is let in


def locked(cluster: Cluster, right: str, wrong: str, why: str) -> None:
    """Two with the right password train, one of them told by its environment; with a wrong one ``init`` fails, at once."""
    workers = [
        *found(cluster, 1, right, initial_size=2),
        *found(cluster, 1, initial_size=2, environment={"FTLIB_STORAGE": right}),
    ]
    liar = found(cluster, 1, environment={"FTLIB_STORAGE": wrong})[0]
    cluster.until("who has a wrong password ends", lambda: liar.code is not None)
    liar.read()
    (error,) = errors([liar])
    assert liar.code == 1
    assert error.startswith("JoinError: the store ")
    assert why in error
    assert "\n" not in error
    assert not any("init" in event.values() for event in liar.events), "it never met anybody"
    together(cluster, workers)
    workers[0].kill()
    together(cluster, workers)
    judge(cluster, workers)
    for worker in cluster.workers:
        assert not [form for form in (SECRET, QUOTED, "another") if form in worker.output()]


def test_redis_with_password_and_tls(cluster: Cluster, tmp_path: Path) -> None:
    certificates = Certificates(tmp_path / "certificates")
    with running(RedisServer(tmp_path / "redis", tls=certificates, password=SECRET)) as server:
        place = f"localhost:{server.port}?ca={certificates.ca}"
        locked(cluster, f"rediss://:{QUOTED}@{place}", f"rediss://:another@{place}", "password")


def test_etcd_with_user_and_password(cluster: Cluster, tmp_path: Path) -> None:
    with running(EtcdServer(tmp_path / "etcd")) as server:
        assert isinstance(server, EtcdServer)
        for user, role in (("root", "root"), ("writer", "writes")):
            ask(server, "auth/user/add", name=user, password=SECRET)
            ask(server, "auth/role/add", name=role)
            ask(server, "auth/user/grant", user=user, role=role)
        ask(server, "auth/role/grant", name="writes", perm={"permType": "READWRITE", **span("/ftlib/")})
        ask(server, "auth/enable")
        place = f"localhost:{server.port}"
        locked(cluster, f"etcd://writer:{QUOTED}@{place}", f"etcd://writer:another@{place}", "the password is wrong")


# What was decided is gone


def test_wiped_under_way(cluster: Cluster, tmp_path: Path, redis: RedisServer, etcd: EtcdServer) -> None:
    """All three stores at once. Every member ends with one clear error, though it was asked to join again by itself."""
    directory = tmp_path / "store"
    directory.mkdir()
    wipes: dict[str, Callable[[], object]] = {
        redis.url: lambda: redis.ask("FLUSHALL"),
        etcd.url: lambda: ask(etcd, "kv/deleterange", **span("/ftlib/")),
        f"file://{directory}": lambda: (directory / "job-2").rename(tmp_path / "gone"),  # in one: they write meanwhile
    }
    jobs = [found(cluster, 2, url, job=f"job-{number}", rejoin=True) for number, url in enumerate(wipes)]
    for workers in jobs:
        together(cluster, workers)
    began = time.monotonic()
    for wipe in wipes.values():
        wipe()
    cluster.until("all have ended", lambda: all(worker.code is not None for worker in cluster.workers))
    for workers, url in zip(jobs, wipes, strict=True):
        for worker in workers:
            worker.read()
            (error,) = errors([worker])
            assert error.startswith("QuorumLost: "), error
            assert "gone from the store" in error or "was wiped" in error, error
            assert worker.code == 1
            assert worker.last["lifetime"] == 0
            assert {call["epoch"] for call in worker.calls} == {1}, "no view without the others"
        assert max(worker.ended for worker in workers) - began < 50, url
    assert "views" not in redis.ask("KEYS", "*")
    assert "views" not in " ".join(
        base64.b64decode(kv["key"]).decode() for kv in ask(etcd, "kv/range", **span("/ftlib/")).get("kvs", [])
    )
    assert not [*directory.glob("*/*/keys/views/*")]
