"""What ``ftlib doctor`` says of GPUs: the rules, where the facts come from, and the command as a whole."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from consensus import Config, Gossip, Home, format_address
from consensus.tools.diagnosis import Examination, Grade
from ftlib.cli.doctor.gpus import compared, examined, summary, takes
from ftlib.cli.doctor.host import HostFacts, HostProbe
from ftlib.cli.doctor.main import consult
from ftlib.launch.processes.gpus import Gpu, GpuFinder, Gpus
from tests.harness.basics import TIMEOUT

from .fake_driver import MODEL, fake_proc, fake_smi, listed, uuid
from .helpers import cli

NOWHERE = Path("/nonexistent")
WELL = HostFacts(
    Gpus(tuple(Gpu(MODEL, uuid(number)) for number in range(2))), "570.86.15", "2.11.0+cu128", "12.8", True, "", "2.28.9"
)
SAID = {"torch": "2.11.0+cu128", "cuda": "12.8", "available": True, "why": "", "nccl": "2.28.9", "reconfigure": False}


def bad(checks: Sequence[Examination], grade: Grade = Grade.NOTED) -> list[str]:
    return [f"{check.name}: {check}" for check in checks if check.grade is grade]


def test_all_is_well() -> None:
    checks = examined(WELL, {"NCCL_SOCKET_IFNAME": "lo", "FTLIB_BIND": "127.0.0.1:0", "NCCL_COMM_BLOCKING": "0"})
    assert not bad(checks) and not bad(checks, Grade.BAD)
    assert summary(WELL, checks) == (
        "2 x NVIDIA H200, driver 570.86.15, torch 2.11.0+cu128 for CUDA 12.8, NCCL 2.28.9; nothing here keeps members from "
        "using NCCL together"
    )


@pytest.mark.parametrize(
    ("changes", "environment", "text"),
    [
        ({"nccl": "2.28.6"}, {}, "nccl: NCCL 2.28.6 cannot be stopped without being freed: ftlib needs 2.28.7 or newer"),
        ({"nccl": "2.9.10"}, {}, "nccl: NCCL 2.9.10 cannot"),
        ({"nccl": ""}, {}, "nccl: torch 2.11.0+cu128 was built without NCCL"),
        ({"cuda": "", "available": False, "nccl": ""}, {}, "torch: torch 2.11.0+cu128 was built without CUDA"),
        (
            {"available": False, "why": "driver too old"},
            {},
            "torch: torch 2.11.0+cu128 cannot use CUDA 12.8 here (driver too old)",
        ),
        ({"trouble": "torch did not answer"}, {}, "torch: torch did not answer: see that"),
        ({}, {"NCCL_COMM_BLOCKING": "1"}, "nccl settings: NCCL_COMM_BLOCKING=1 makes calls of NCCL wait"),
        (
            {},
            {"NCCL_SOCKET_IFNAME": "eth", "FTLIB_BIND": "127.0.0.1:0"},
            "nccl settings: NCCL_SOCKET_IFNAME=eth leaves out lo, the interface of FTLIB_BIND=127.0.0.1:0",
        ),
        (
            {"shared": {uuid(1): ["worker 0 of job j", "worker 3 of job j"]}},
            {},
            f"sharing: worker 0 of job j and worker 3 of job j compute on one GPU ({uuid(1)}): NCCL takes one member a GPU",
        ),
    ],
)
def test_what_keeps_members_from_using_nccl(changes: dict[str, Any], environment: dict[str, str], text: str) -> None:
    facts = dataclasses.replace(WELL, **changes)
    checks = examined(facts, environment)
    [found] = bad(checks)
    assert found.startswith(text)
    assert found.partition(": ")[2] in summary(facts, checks)
    assert bad(examined(facts, environment, Grade.BAD), Grade.BAD) == [found]


def test_instances_and_native_groups_are_told() -> None:
    split = dataclasses.replace(WELL, gpus=Gpus((Gpu(MODEL, uuid(0), split=True),)))
    assert bad(examined(split, {}))[0].startswith("mig: a GPU is divided into MIG instances: give each worker")
    for there, text in ((True, "torch's ProcessGroup.reconfigure is there, and not used"), (False, "torch has no")):
        checks = examined(dataclasses.replace(WELL, reconfigure=there), {})
        assert next(check.found for check in checks if check.name == "reconfigure").startswith(text)


def test_a_host_without_gpus() -> None:
    none = HostFacts(Gpus((), "no GPU was found: none"), torch="2.13.0+cpu")
    checks = examined(none, {})
    assert not bad(checks) and "no GPU was found: none; torch 2.13.0+cpu computes on the CPU" in summary(none, checks)
    assert bad(examined(none, {}, Grade.BAD), Grade.BAD)[0].startswith("gpus: no GPU was found: none: install the driver")


@pytest.mark.parametrize(
    ("chosen", "interface", "taken"),
    [
        ("eth", "eth0", True),
        ("eth", "ib0", False),
        ("ib,eth:1", "eth1", True),
        ("=eth0,eth1", "eth1", True),
        ("=eth0,eth1", "eth10", False),
        ("^docker,lo", "eth0", True),
        ("^docker,lo", "lo", False),
        ("^=eth0", "eth01", True),
        ("^=eth0", "eth0", False),
    ],
)
def test_how_nccl_chooses_interfaces(chosen: str, interface: str, taken: bool) -> None:
    assert takes(chosen, interface) is taken


def test_two_hosts_are_compared() -> None:
    theirs = WELL.advertised()
    assert theirs == {"gpus": "2", "driver": "570.86.15", "torch": "2.11.0+cu128", "cuda": "12.8", "nccl": "2.28.9"}
    assert [check.grade for check in compared(WELL, theirs, "h:1")] == [Grade.GOOD]
    other = theirs | {"nccl": "2.30.7", "torch": "2.15.0", "driver": "580.1"}
    assert [check.found for check in compared(WELL, other, "h:1")] == [
        "nccl is 2.28.9 here and 2.30.7 at the host of h:1",
        "torch is 2.11.0+cu128 here and 2.15.0 at the host of h:1",
        "driver is 570.86.15 here and 580.1 at the host of h:1",
    ]
    assert [check.grade for check in compared(WELL, other, "h:1", Grade.BAD)] == [Grade.BAD, Grade.NOTED, Grade.NOTED]
    assert "has no GPU" in compared(WELL, {"gpus": "0"}, "h:1")[0].found
    assert [check.grade for check in compared(WELL, {}, "h:1")] == [Grade.SKIPPED]


# Where the facts come from.


def saying(said: object) -> tuple[str, ...]:
    return (sys.executable, "-c", f"print('a warning')\nprint({json.dumps(said)!r})")


def probe(directory: Path, said: object = SAID, *, count: int = 2, apps: str = "") -> HostProbe:
    path = fake_smi(directory / "bin", listed(count), apps=apps)
    version = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build\n"
    finder = GpuFinder({"PATH": path}, fake_proc(directory / "proc", 0, version))
    return HostProbe({"PATH": path}, finder, torch_facts=saying(said))


@pytest.mark.process
def test_facts_of_other_processes(tmp_path: Path) -> None:
    assert probe(tmp_path).facts() == WELL


@pytest.mark.process
@pytest.mark.soak
def test_torch_says_what_it_is() -> None:
    """The real one, as it is installed here."""
    facts = HostProbe({}, GpuFinder({"PATH": ""}, NOWHERE)).facts()
    assert (facts.torch, facts.cuda, facts.trouble) == (torch.__version__, torch.version.cuda or "", "")
    assert facts.reconfigure is hasattr(torch.distributed.ProcessGroup, "reconfigure")
    assert bool(facts.nccl) is hasattr(torch._C, "_nccl_version")


@pytest.mark.process
@pytest.mark.parametrize(
    ("command", "text"),
    [
        (("/nonexistent/python",), "torch could not be asked: "),
        ((sys.executable, "-c", "raise SystemExit('no torch')"), "torch could not be asked (exit code 1: no torch)"),
        ((sys.executable, "-c", "print('{')"), "torch could not be asked (exit code 0: it said nothing)"),
        ((sys.executable, "-c", "import os; os.abort()"), "torch could not be asked (exit code -6"),
        (("sleep", "60"), "torch did not answer within 0.5 s"),
    ],
)
def test_torch_that_says_nothing(monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], text: str) -> None:
    monkeypatch.setattr("ftlib.cli.doctor.host._PATIENCE", 0.5 if command[0] == "sleep" else 60.0)
    facts = HostProbe({"PATH": "/usr/bin:/bin"}, GpuFinder({}, NOWHERE), torch_facts=command).facts()
    assert facts.trouble.startswith(text)


@pytest.mark.process
def test_workers_on_one_gpu_are_found(tmp_path: Path) -> None:
    """Two workers of one job, one of them with two processes; another job's worker and a stranger beside them."""

    def start(**variables: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(["sleep", "100"], env={"PATH": "/usr/bin:/bin", **variables})

    jobs = [("j", "0", 0), ("j", "0", 0), ("j", "2", 0), ("k", "1", 0), ("j", "1", 1), ("k", "0", 1)]
    workers = [(start(FTLIB_JOB=job, FTLIB_WORKER_INDEX=index), gpu) for job, index, gpu in jobs]
    workers.append((start(), 0))
    try:
        apps = "".join(f"{uuid(gpu)}, {process.pid}\n" for process, gpu in workers) + f"{uuid(0)}, 999999999\n[N/A], [N/A]\n"
        facts = probe(tmp_path, apps=apps).facts()
    finally:
        for process, _ in workers:
            process.kill()
            process.wait()
    assert facts.shared == {uuid(0): ["worker 0 of job j", "worker 2 of job j"]}


# The command.


def test_this_host_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = {"job": None, "timeout": 1.0, "as_json": False, "verbose": False, "nccl": True}
    assert consult(None, **options, probe=probe(tmp_path)) == 0
    assert capsys.readouterr().out.startswith("this host: 2 x NVIDIA H200, driver 570.86.15, torch 2.11.0+cu128 for CUDA 12.8")


@pytest.mark.process
def test_the_command_fails_where_nccl_is_asked_for(tmp_path: Path) -> None:
    path = fake_smi(tmp_path / "bin", listed(2))
    failed = cli("doctor", "--nccl", "--json", cwd=tmp_path, PATH=path, NCCL_COMM_BLOCKING="1")
    record = json.loads(failed.stdout)
    assert failed.returncode == 1 and not record["ok"] and record["targets"] == []
    assert [gpu["uuid"] for gpu in record["host"]["gpus"]] == [uuid(0), uuid(1)]
    assert "nccl settings" in {check["name"] for check in record["host"]["checks"] if check["result"] == "failed"}


@pytest.mark.parametrize("theirs", [{"gpus": "2", "nccl": "2.30.7"}, {}])
def test_against_another_host(tmp_path: Path, capsys: pytest.CaptureFixture[str], theirs: dict[str, str]) -> None:
    gossip = Gossip(Config(job="doctor", agent=Home.THREAD, insecure=True))
    gossip.start(meta=theirs)
    address = format_address(gossip.member.address)
    try:
        for nccl, code in ((False, 0), (True, int(bool(theirs)))):
            options = {"job": None, "timeout": 20.0, "as_json": False, "verbose": True}
            assert consult(address, **options, nccl=nccl, probe=probe(tmp_path / str(nccl))) == code
            out = " ".join(capsys.readouterr().out.split())
            said = "nccl is 2.28.9 here and 2.30.7 at the host of" if theirs else "does not say its versions"
            assert said in out and "nothing here keeps members from using NCCL together" in out
    finally:
        gossip.stop()


@pytest.mark.process
def test_a_doctor_at_another_host_is_told(tmp_path: Path) -> None:
    """A host without GPUs says so, which takes no torch."""
    process = subprocess.Popen(
        [sys.executable, "-m", "ftlib.cli.main", "doctor", "--listen", "127.0.0.1:0"],
        cwd=Path(__file__).parents[2],
        env={"PATH": fake_smi(tmp_path / "none", "")},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        address = process.stdout.readline().partition("ftlib doctor ")[2].split()[0]
        assert consult(address, job=None, timeout=20.0, as_json=True, verbose=False, nccl=True, probe=probe(tmp_path)) == 1
    finally:
        process.terminate()
        process.communicate(timeout=TIMEOUT)
