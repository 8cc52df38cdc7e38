"""What torchrun's and Slurm's variables come to. The real launches are in ``test_launches``."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftlib import ConfigError
from ftlib.settings.config import resolve
from ftlib.settings.environment import SLURM_PORTS, Store, expand, launched

TORCHRUN = {
    "RANK": "1",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "4",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "node1",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "run7",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}
SLURM = {
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "2",
    "SLURM_PROCID": "3",
    "SLURM_NTASKS": "8",
    "SLURM_STEP_NODELIST": "node[01-02]",
    "SLURM_JOB_NODELIST": "node[01-04]",
    "SLURMD_NODENAME": "node02",
}


def test_nothing_is_found_where_nobody_launched() -> None:
    assert launched({}) is None
    assert launched({"RANK": "0", "WORLD_SIZE": "2"}) is None
    batch = SLURM | {"SLURM_STEP_ID": "4294967291"}
    assert launched(batch) is None, "the batch script itself runs once, whatever SLURM_NTASKS says"
    assert launched({key: value for key, value in SLURM.items() if key != "SLURM_STEP_ID"}) is None


def test_torchrun_on_one_host_stays_on_loopback_and_meets_through_its_store() -> None:
    found = launched(TORCHRUN)
    assert found is not None
    assert found.store == Store("node1", 29500, "ftlib/torchrun-run7-29500-0/founder")
    assert found.settings == {"job": "torchrun-run7-29500-0", "initial_size": 4, "bind": ":0"}
    first = launched(TORCHRUN | {"RANK": "0"})
    assert first is not None and first.settings["bind"] == "127.0.0.1:0" and not first.several_hosts
    assert found.says == "torchrun: worker 1 of 4, introducer is rank 0, found through the store at node1:29500"


def test_torchrun_on_several_hosts_listens_where_master_addr_is() -> None:
    found = launched(TORCHRUN | {"RANK": "0", "WORLD_SIZE": "8"})
    assert found is not None and found.several_hosts and found.settings["bind"] == "node1:0"
    assert launched(TORCHRUN | {"RANK": "0", "WORLD_SIZE": "8", "MASTER_ADDR": "fd00::1"}).settings["bind"] == "[fd00::1]:0"  # type: ignore[union-attr]


def test_a_restarted_round_is_another_job_and_a_long_name_still_one() -> None:
    jobs = {launched(TORCHRUN | {"TORCHELASTIC_RESTART_COUNT": count}).settings["job"] for count in "012"}  # type: ignore[union-attr]
    assert len(jobs) == 3
    long = [launched(TORCHRUN | {"TORCHELASTIC_RUN_ID": "x" * 99 + end}).settings["job"] for end in "ab"]  # type: ignore[union-attr]
    assert long[0] != long[1] and max(map(len, long)) <= 64


def test_without_the_store_it_is_the_port_after_the_master_port_or_the_one_given() -> None:
    plain = {key: value for key, value in TORCHRUN.items() if not key.startswith("TORCHELASTIC")}
    for more, port in [({}, 29501), ({"FTLIB_PORT": "7000"}, 7000), ({"MASTER_PORT": "65535"}, 65534)]:
        first, second = launched(plain | more | {"RANK": "0"}), launched(plain | more)
        assert first is not None and second is not None
        assert first.settings["introducers"] == second.settings["introducers"] == (f"127.0.0.1:{port}",)
        assert (first.settings["bind"], second.settings["bind"]) == (f"127.0.0.1:{port}", ":0")
        assert first.store is None
    assert launched(TORCHRUN | {"FTLIB_PORT": "7000"}).store is None  # type: ignore[union-attr]


def test_slurm() -> None:
    found = launched(SLURM)
    assert found is not None
    port = 20_000 + (4711 * 31 + 2) % 10_000
    assert found.settings == {
        "job": "slurm-4711.2-0",
        "initial_size": 8,
        "introducers": (f"node01:{port}",),
        "bind": ":0",
    }
    assert found.several_hosts and found.name == "worker 3"
    first = launched(SLURM | {"SLURM_PROCID": "0", "SLURM_RESTART_COUNT": "2", "FTLIB_PORT": "7000"})
    assert first is not None
    assert (first.settings["bind"], first.settings["job"]) == ("node01:7000", "slurm-4711.2-2")
    alone = launched(SLURM | {"SLURM_STEP_NODELIST": "node01"})
    assert alone is not None and alone.settings["introducers"] == (f"127.0.0.1:{port}",)


@given(st.integers(1, 10**9), st.integers(0, 10**4))
def test_the_slurm_port_is_in_the_documented_range(job: int, step: int) -> None:
    found = launched(SLURM | {"SLURM_JOB_ID": str(job), "SLURM_STEP_ID": str(step)})
    assert found is not None
    assert int(found.settings["introducers"][0].rpartition(":")[2]) in SLURM_PORTS


@pytest.mark.parametrize(
    ("environment", "text"),
    [
        (TORCHRUN | {"RANK": "4"}, "RANK=4 is not below WORLD_SIZE=4"),
        (TORCHRUN | {"RANK": "first"}, "RANK='first' is no number"),
        (SLURM | {"SLURM_STEP_NODELIST": "node[1-"}, r"SLURM_STEP_NODELIST='node\[1-' is no list of hosts"),
        (SLURM | {"FTLIB_PORT": "99999"}, "FTLIB_PORT=99999: give a port"),
    ],
)
def test_variables_that_contradict_are_named(environment: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        launched(environment)


# Host lists


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("login1", "login1"),
        ("node[01-03,07]", "node01 node02 node03 node07"),
        ("a[9-11],b", "a9 a10 a11 b"),
        ("r[1-2]n[01-02]x", "r1n01x r1n02x r2n01x r2n02x"),
        ("a,b.c-d,a", "a b.c-d"),
        ("n[098-101]", "n098 n099 n100 n101"),
    ],
)
def test_host_lists(text: str, hosts: str) -> None:
    assert expand(text) == tuple(hosts.split())


@pytest.mark.parametrize(
    "text", ["", "a[", "a]", "a[1-2", "a[2-1]", "a[]", "a[1-]", "a[-1]", "a[1-2-3]", "a[x]", "a b", "a[1-999999]"]
)
def test_what_is_no_host_list(text: str) -> None:
    with pytest.raises(ConfigError):
        expand(text)


LITERAL = st.text("abcxyz.-", min_size=1, max_size=4)
RANGES = st.lists(st.tuples(st.integers(0, 1200), st.integers(0, 12)), min_size=1, max_size=3)
PIECE = st.tuples(LITERAL, st.none() | st.tuples(RANGES, st.integers(1, 5)))


@given(st.lists(st.lists(PIECE, min_size=1, max_size=2), min_size=1, max_size=3))
def test_expanding_undoes_compressing(listed: list[list[tuple[str, tuple[list[tuple[int, int]], int] | None]]]) -> None:
    texts, hosts = [], []
    for pieces in listed:
        text, choices = "", []
        for literal, numbers in pieces:
            text += literal
            choices.append([literal])
            if numbers is not None:
                ranges, width = numbers
                text += "[" + ",".join(f"{a:0{width}d}-{a + n}" if n else f"{a:0{width}d}" for a, n in ranges) + "]"
                choices.append([f"{k:0{len(f'{a:0{width}d}')}d}" for a, n in ranges for k in range(a, a + n + 1)])
        texts.append(text)
        hosts += ["".join(choice) for choice in product(*choices)]
    assert expand(",".join(texts)) == tuple(dict.fromkeys(hosts))


# Precedence


def test_explicit_settings_win_and_a_list_of_introducers_ends_the_guessing() -> None:
    found = resolve({}, {}, TORCHRUN)
    assert (found.consensus.job, found.consensus.initial_size, found.name) == ("torchrun-run7-29500-0", 4, "worker 1")
    assert found.launched is not None and found.launched.by == "torchrun"
    found = resolve({"initial_size": 2}, {"job": "mine"}, TORCHRUN | {"FTLIB_BIND": "127.0.0.1:7007", "FTLIB_NAME": "me"})
    assert (found.consensus.job, found.consensus.initial_size, found.consensus.bind) == ("mine", 2, "127.0.0.1:7007")
    assert found.name == "me" and found.launched is not None
    found = resolve({}, {}, TORCHRUN | {"FTLIB_INTRODUCERS": "127.0.0.1:7001"})
    assert found.launched is None
    assert (found.consensus.job, found.consensus.initial_size, found.consensus.bind) == ("default", 1, "")
    assert resolve({}, {}, {}).consensus.bind == "127.0.0.1:0"
