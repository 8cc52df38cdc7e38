"""Replicas of several processes under torchft's names: one step over all shards, a name from the store, a loss."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import Future
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from torch.distributed import TCPStore

from ftlib.errors import ConfigError, FTLibError
from ftlib.torchft.process_group import create_store_client
from ftlib.torchft.replica.place import Place, place_of
from tests.harness.basics import eventually, free_ports
from tests.harness.nursery import Nursery
from tests.harness.program import Program, clean, ftlib_run
from tests.torchft.test_processes import LONG, TRAINER, Replicas

SHORT = timedelta(seconds=0.5)


def store() -> TCPStore:
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


@pytest.mark.parametrize(
    ("given", "variables", "text"),
    [
        ((2, 2), {}, "rank=2 of world_size=2"),
        ((1, None), {}, "rank=1 of world_size=1"),
        ((0, 2), {}, "store_addr and store_port"),
        ((None, None), {"WORLD_SIZE": "2", "MASTER_ADDR": "here"}, "MASTER_PORT"),
        ((None, None), {"WORLD_SIZE": "four"}, "WORLD_SIZE='four'"),
        ((0, 2), {"FTLIB_SHARDS": "3"}, "world_size=2, but FTLIB_SHARDS=3"),
        ((0, 1), {"FTLIB_SHARDS": "2"}, "world_size=1, but FTLIB_SHARDS=2"),
        ((0, 2), {"FTLIB_SHARDS": "2", "FTLIB_SHARD": "1"}, "rank=0, but FTLIB_SHARD=1"),
        ((0, 2), {"RANK": "1", "WORLD_SIZE": "2"}, "rank=0, but RANK=1"),
        ((0, 2), {"RANK": "0", "WORLD_SIZE": "4"}, "world_size=2, but WORLD_SIZE=4"),
    ],
)
def test_places_that_cannot_be(given: tuple[int | None, int | None], variables: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        place_of(*given, None, None, variables)


def test_the_place_is_as_given_or_torchruns_or_what_ftlib_run_says() -> None:
    torchrun = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "::1", "MASTER_PORT": "29500"}
    assert place_of(None, None, None, None, torchrun) == Place(1, 2, "[::1]:29500/ftlib/replica")
    assert place_of(0, 4, "host", 7, {}) == Place(0, 4, "host:7/ftlib/replica")
    assert place_of(0, 1, None, None, torchrun) == Place(), "torchrun may start replicas of one process"
    run = {"FTLIB_SHARDS": "2", "FTLIB_SHARD": "1", "FTLIB_REPLICA": "a"}
    assert place_of(None, None, None, None, run) == Place(1, 2)
    assert place_of(1, 2, None, None, {"FTLIB_REPLICA": "a"}).settings("b", SHORT) == {"shard": 1, "shards": 2}
    assert place_of(None, None, None, None, {}) == Place()
    assert Place().settings("a", SHORT) == {}


class Naming:
    """Processes of one replica, each a thread, that ask for its name."""

    def __init__(self, size: int = 2) -> None:
        self.server = store()
        self.size = size

    def ask(self, rank: int, timeout: timedelta = timedelta(seconds=20)) -> Future[dict[str, Any]]:
        """The process of that rank has just begun."""
        place = Place(rank, self.size, f"127.0.0.1:{self.server.port}/ftlib/replica")
        asking: Future[dict[str, Any]] = Future()

        def run() -> None:
            try:
                asking.set_result(place.settings("blue", timeout))
            except FTLibError as error:
                asking.set_exception(error)

        threading.Thread(target=run, daemon=True).start()
        return asking

    def all(self, *asking: Future[dict[str, Any]]) -> str:
        """The name that they agree on."""
        found = [each.result(60) for each in asking]
        name = found[0]["replica"]
        assert found == [{"replica": name, "shard": rank, "shards": self.size} for rank in range(self.size)]
        assert name.startswith("blue-")
        return str(name)


def test_all_processes_of_a_replica_find_one_name_and_another_one_when_it_comes_back() -> None:
    naming = Naming(3)
    names = {naming.all(*(naming.ask(rank) for rank in range(3))) for _ in range(4)}
    assert len(names) == 4


@pytest.mark.parametrize("early", [(0,), (1,), (0, 2), (1, 2), (2, 1, 2, 0)])
def test_what_processes_have_left_in_the_store_that_died_before_all_had_come_misleads_nobody(early: tuple[int, ...]) -> None:
    """Some come first and end, more or fewer times than others, before all are there at once."""
    naming = Naming(3)
    for rank in early:
        with pytest.raises(FTLibError):
            naming.ask(rank, SHORT).result(60)
    first = naming.all(*(naming.ask(rank) for rank in range(3)))
    assert naming.all(*(naming.ask(rank) for rank in (0, 1, 2))) != first


def test_a_process_that_waits_is_called_by_the_process_0_that_comes_back() -> None:
    naming = Naming(2)
    waiting = naming.ask(1)
    left = create_store_client(f"127.0.0.1:{naming.server.port}/ftlib/replica", SHORT)
    eventually(lambda: left.check(["here/1"]), "it waits")
    left.set("call/" + left.get("here/1").decode(), "one that has died")
    eventually(lambda: left.check(["answer/one that has died/1"]), "it has answered")
    naming.all(naming.ask(0), waiting)


def test_a_process_that_waits_in_vain_says_for_whom() -> None:
    naming = Naming(3)
    with pytest.raises(FTLibError, match=r"process 1 of 3 .* process 0 of the replica has not come"):
        naming.ask(1, SHORT).result(60)
    with pytest.raises(FTLibError, match=r"process 0 of 3 .* process 1, 2 of the replica has not come"):
        naming.ask(0, SHORT).result(60)
    with pytest.raises(FTLibError, match="does not answer"):
        Place(0, 2, f"127.0.0.1:{free_ports(1)[0]}/ftlib/replica").settings(None, SHORT)


@pytest.mark.process
@pytest.mark.soak
def test_an_error_of_one_process_makes_all_shards_of_all_replicas_skip(nursery: Nursery, tmp_path: Path) -> None:
    replicas = Replicas(tmp_path)
    command = ftlib_run("-n", 2, "--shards", 2, "--max-restarts", 5, "--restart-delay", 0.2, *TRAINER, tmp_path, "--faulty")
    with Program(nursery, tmp_path, *command, env=clean(FTLIB_EXCLUDE_AFTER="8")) as launcher:
        first = sorted(replicas.together(2, launcher, shards=2))
        eventually(lambda: all(len(replicas.skipped(pid)) > 2 for pid in first), "all have skipped some steps", LONG)
        os.kill(first[0], signal.SIGKILL)  # the rest of its replica ends with it, and all of it comes back
        after = replicas.together(2, launcher, shards=2)
        assert len(set(first) & set(after)) == 2
        replicas.end()
        assert launcher.wait(LONG) == 0, launcher.stdout + launcher.stderr
    replicas.check(lost=set(first) - set(after))
    survivors = sorted(set(first) & set(after))
    assert replicas.skipped(survivors[0]) == replicas.skipped(survivors[1]) != []


@pytest.mark.process
@pytest.mark.soak
def test_replicas_meet_in_a_directory_and_their_processes_in_the_store_that_torchrun_tells(
    nursery: Nursery, tmp_path: Path
) -> None:
    (tmp_path / "store").mkdir()
    replicas, stores, programs = Replicas(tmp_path), [store(), store()], {}

    def start(replica: int, shard: int) -> None:
        place = tmp_path / f"{replica}-{shard}-{len(programs)}"
        place.mkdir()
        port = f"{stores[replica].port}"
        variables = {"RANK": f"{shard}", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        variables |= {"FTLIB_LEASE": "6.0", "FTLIB_INITIAL_SIZE": "2", "FTLIB_JOB": "sharded"}
        env = clean(TORCHFT_LIGHTHOUSE=f"file://{tmp_path}/store", **variables)
        programs[replica, shard] = Program(nursery, place, *TRAINER, tmp_path, env=env)

    try:
        for replica in range(2):
            for shard in range(2):
                start(replica, shard)
        replicas.together(2, programs[0, 0], shards=2)
        lost = [programs[1, shard].pid for shard in range(2)]
        programs[1, 0].send_signal(signal.SIGKILL)
        assert programs[1, 1].wait(LONG) != 0
        assert "ReplicaLost" in programs[1, 1].stderr
        replicas.together(1, programs[0, 0], shards=2)
        start(1, 0)
        start(1, 1)
        replicas.together(2, programs[0, 0], shards=2)
        replicas.end()
        for key, program in programs.items():
            assert program.wait(LONG) == 0, (key, program.stderr)
    finally:
        for program in programs.values():
            program.kill()
    replicas.check(lost)
