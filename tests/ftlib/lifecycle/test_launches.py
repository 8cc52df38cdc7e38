"""A script that only calls ``FTLib.init()``, started in other ways than by ``ftlib run``: real processes, 20 real steps."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ftlib import ConfigError, FTLib, JoinError
from tests.harness.basics import free_ports
from tests.harness.network import Network, needs_network
from tests.harness.nursery import Nursery
from tests.harness.program import Program

ROOT = Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.process


def run(*command: str) -> list[dict[str, Any]]:
    """What the workers said."""
    strangers = ("FTLIB_", "SLURM", "TORCHELASTIC", "MASTER_")
    env = {key: value for key, value in os.environ.items() if not key.startswith(strangers)}
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=ROOT,
        env=env | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def shells(nursery: Nursery, where: Path, *environments: dict[str, str]) -> list[dict[str, Any]]:
    """The same, of one worker in each of these environments."""
    with Program(nursery, where, "-m", "tests.ftlib.crews.shell", json.dumps(environments)) as program:
        assert program.wait(180) == 0, program.stderr
        return [json.loads(line) for line in program.stdout.splitlines()]


def test_torchrun_works_unchanged() -> None:
    facts = run("torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(ROOT / "tests/ftlib/crews/shell.py"))
    assert [(each["size"], each["grad"]) for each in facts] == [(2, 1.5), (2, 1.5)]
    assert facts[0]["job"].startswith("torchrun-")
    assert all(each["said"].startswith("torchrun: worker ") for each in facts)


def test_slurm_and_plain_shells_over_ipv6(nursery: Nursery, tmp_path: Path) -> None:
    """Two jobs at the same time, of two workers each."""
    port = str(free_ports(1)[0])
    slurm = {
        "SLURM_JOB_ID": "12",
        "SLURM_STEP_ID": "0",
        "SLURM_NTASKS": "2",
        "SLURM_STEP_NODELIST": "localhost",
        "FTLIB_PORT": port,
    }
    first, second = free_ports(2, "::1")
    plain = {"FTLIB_INTRODUCERS": f"[::1]:{first},[::1]:{second}", "FTLIB_INITIAL_SIZE": "2"}
    facts = shells(nursery, tmp_path, {**slurm, "SLURM_PROCID": "0"}, plain, {**slurm, "SLURM_PROCID": "1"}, plain)
    assert len(facts) == 4
    assert all((each["size"], each["grad"]) == (2, 1.5) for each in facts)
    by_job = {each["job"]: each for each in facts}
    assert sorted(by_job) == ["default", "slurm-12.0-0"]
    assert by_job["slurm-12.0-0"]["said"].startswith("Slurm: worker ")
    assert ["127.0.0.1", int(port)] == by_job["slurm-12.0-0"]["addresses"][0]
    assert sorted(by_job["default"]["addresses"]) == sorted([["::1", first], ["::1", second]])
    assert all(store.startswith("[::1]:") for store in by_job["default"]["stores"]), "the data plane is on that interface too"


def test_a_taken_port_is_named_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        variables = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port - 1)}
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(ConfigError, match=rf"bind=127.0.0.1:{port}: the port is in use.*FTLIB_PORT, the same for all"):
            FTLib.init()


def test_a_store_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_ports(1)[0]
    variables = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    for name, value in {**variables, "TORCHELASTIC_USE_AGENT_STORE": "True"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(JoinError, match=rf"torchrun's store at 127.0.0.1:{port} does not answer.*FTLIB_PORT"):
        FTLib.init(join_timeout=0.3)


def test_rank_0_that_never_comes_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    store = TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    variables = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port)}
    for name, value in {**variables, "TORCHELASTIC_USE_AGENT_STORE": "True"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(JoinError, match=r"rank 0 has not published its address.* within 4 s: does it call FTLib.init"):
        FTLib.init(join_timeout=4.0)
    gone = free_ports(1)[0]
    store.set(f"ftlib/torchrun-none-{store.port}-0/founder", f"127.0.0.1:{gone}")
    with pytest.raises(JoinError, match=rf"127.0.0.1:{gone}, which it published, does not answer"):
        FTLib.init(join_timeout=4.0)


def test_loopback_is_of_no_use_to_several_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {"JOB_ID": "3", "STEP_ID": "0", "PROCID": "0", "NTASKS": "2", "STEP_NODELIST": "localhost,node2"}
    for name, value in variables.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    monkeypatch.setenv("FTLIB_PORT", str(free_ports(1)[0]))
    with pytest.raises(
        ConfigError,
        match=r"Slurm runs workers on several hosts.*which is loopback: correct /etc/hosts, or set FTLIB_INTRODUCERS",
    ):
        FTLib.init()


@needs_network
def test_an_interface_that_was_derived_must_be_trusted_too() -> None:
    with Network(1) as [host], host.inside():
        with pytest.raises(ConfigError, match=r"bind=10.77.0.1:\d+ is reachable from other hosts"):
            FTLib.init(introducers=["10.77.0.9:7000"])
        with pytest.raises(ConfigError, match=r"no route leads to 10\.99\.0\.1:7000"):
            FTLib.init(introducers=["10.99.0.1:7000"])
