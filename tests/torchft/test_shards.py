"""Replicas of several processes under torchft's names: one step over all shards, a name from the store, a loss."""

from __future__ import annotations

import os
import signal
from datetime import timedelta
from pathlib import Path

import pytest
from torch.distributed import TCPStore

from ftlib.errors import ConfigError, FTLibError
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
        ((0, 2), {"FTLIB_SHARDS": "3"}, "FTLIB_SHARDS=3"),
    ],
)
def test_places_that_cannot_be(given: tuple[int | None, int | None], variables: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        place_of(*given, None, None, variables)


def test_the_place_is_torchruns_or_as_given_or_what_ftlib_run_says() -> None:
    torchrun = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "::1", "MASTER_PORT": "29500"}
    assert place_of(None, None, None, None, torchrun) == Place(1, 2, "[::1]:29500/ftlib/replica/0")
    again = {**torchrun, "TORCHELASTIC_RESTART_COUNT": "3"}
    assert place_of(0, 4, "host", 7, again) == Place(0, 4, "host:7/ftlib/replica/3")
    assert place_of(None, None, None, None, {"FTLIB_SHARDS": "2", "FTLIB_SHARD": "1"}) == Place()
    assert place_of(None, None, None, None, {}) == Place()
    assert Place().settings("a", SHORT) == {}


def test_all_processes_of_a_replica_find_one_name_and_another_one_when_it_comes_back() -> None:
    with_port = store()
    places = [Place(rank, 2, f"127.0.0.1:{with_port.port}/ftlib/replica/0") for rank in range(2)]
    names = [[place.settings("blue", timedelta(seconds=20)) for place in places] for _ in range(2)]
    for first, second in names:
        assert first == {"replica": first["replica"], "shard": 0, "shards": 2}
        assert second == {**first, "shard": 1}
        assert str(first["replica"]).startswith("blue-")
    assert names[0][0]["replica"] != names[1][0]["replica"]


def test_a_process_that_waits_in_vain_says_for_whom() -> None:
    alone = store()
    with pytest.raises(FTLibError, match=r"process 1 of 2 .* process 0 of the replica has not come"):
        Place(1, 2, f"127.0.0.1:{alone.port}/ftlib/replica/0").settings(None, SHORT)
    with pytest.raises(FTLibError, match="does not answer"):
        Place(0, 2, f"127.0.0.1:{free_ports(1)[0]}/ftlib/replica/0").settings(None, SHORT)


@pytest.mark.process
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
    replicas.check()
    survivors = sorted(set(first) & set(after))
    assert replicas.skipped(survivors[0]) == replicas.skipped(survivors[1]) != []


@pytest.mark.process
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
    replicas.check()
