"""``ftlib ps``, commands without an address, and orders to one worker: against a real run, whose secret is its own."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from consensus import OrderKind, View, format_address
from ftlib.cli.orders import consequence, order
from ftlib.cli.runs import Run, address_of, show
from ftlib.errors import ConfigError, FTLibError
from ftlib.launch.processes.registry import RunRecord, runs
from tests.consensus.fake_core import rig
from tests.harness.basics import TIMEOUT, eventually
from tests.harness.nursery import Nursery

from .helpers import Run as Launched
from .helpers import cli, command, environment, forked, running, script, told

SECRET = "the secret of these tests"

TRAINS = """
import time
import torch
from ftlib import FTLib

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with FTLib.init() as ft:
    ft.register_state(model=model, optimizer=optimizer)
    while not ft.should_leave:
        model(torch.ones(2, 4)).square().sum().backward()
        if ft.allreduce_average(model):
            optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.1)
"""
"""Slowly: with a step each 20 ms four workers would keep two thirds of a processor busy, whatever a test waits for."""


def a_run(job: str, *workers: dict[str, Any]) -> Run:
    record = RunRecord(job, 1, "127.0.0.1:1", "python train.py", 0.0)
    return Run(record, "running", 3, workers)


def worker(index: int, *, phase: str = "running", epoch: int = 1) -> dict[str, Any]:
    return {"worker": index, "phase": phase, "epoch": epoch, "address": f"127.0.0.1:700{index}", "pid": 10 + index, "starts": 1}


class TestAddressOf:
    def test_an_address_is_itself(self) -> None:
        assert address_of("host:7000", []) == "host:7000"

    def test_nothing_is_the_only_job_and_in_it_who_is_in_the_newest_view(self) -> None:
        assert address_of(None, [a_run("lab", worker(0, epoch=0), worker(1, epoch=4))]) == "127.0.0.1:7001"

    def test_a_worker_by_its_name(self) -> None:
        there = [a_run("lab", worker(0), worker(2)), a_run("home", worker(3))]
        assert address_of("worker-2", there) == "127.0.0.1:7002"
        assert address_of("home/worker-3", there) == "127.0.0.1:7003"

    @pytest.mark.parametrize(
        ("who", "there", "said"),
        [
            (None, [], "give the ADDRESS"),
            (None, [a_run("lab", worker(0)), a_run("home", worker(0))], "as lab/worker-0"),
            ("worker-0", [a_run("lab", worker(0)), a_run("home", worker(0))], "as lab/worker-0"),
            ("worker-9", [a_run("lab", worker(0))], "choose of lab/worker-0"),
            ("worker-0", [a_run("lab", worker(0, phase="waiting"))], "give host:port"),
        ],
    )
    def test_what_is_unclear_is_an_error_with_a_remedy(self, who: str | None, there: list[Run], said: str) -> None:
        with pytest.raises(ConfigError, match=said):
            address_of(who, there)


def test_what_an_order_means() -> None:
    status = {
        "meta": {"name": "worker-1", "supervisor": "127.0.0.1:1"},
        "members": [{"id": "ab"}, {"id": "cd"}],
        "member": "ab",
    }
    assert consequence(OrderKind.DRAIN, status).endswith("is not started again; 1 member goes on")
    assert "its launcher starts it again" in consequence(OrderKind.KILL, status)
    assert consequence(OrderKind.KILL, {"member": "abcdefgh", "members": [{"id": "abcdefgh"}]}).endswith(
        "no member is left, the job ends"
    )


def test_an_order_to_a_process_of_a_replica_concerns_all_of_that() -> None:
    members = [{"id": f"{name}{shard}", "cohort": {"name": name, "size": 2}} for name in "abc" for shard in range(2)]
    status = {"meta": {"name": "worker-1"}, "members": members, "member": "a1", "ftlib": {"min_size": 2}, "policy": "majority"}
    drained = consequence(OrderKind.DRAIN, status)
    assert "and its whole replica of 2 processes goes with it; 2 replicas go on, of whom 3 members are a quorum" in drained
    broken = {**status, "members": members[:5]}  # one process of the last replica is gone
    assert "1 of at least 2 replicas (min_size) are left, and steps wait for more" in consequence(OrderKind.KILL, broken)
    assert consequence(OrderKind.KILL, {**status, "members": members[:2]}).endswith("no replica is left, the job ends")


@pytest.mark.parametrize("changes", [False, True], ids=["the same view", "another view by then"])
async def test_an_order_is_for_the_view_that_was_looked_at(changes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which need not be active yet: its members were shown."""
    monkeypatch.setenv("FTLIB_SECRET", SECRET)
    async with rig(secret=SECRET) as there:
        active, shown, next_one = (View(epoch, "", (there.member,)) for epoch in (1, 2, 3))
        there.core.active_view, there.core.view = active, shown

        def status() -> dict[str, Any]:
            return {"epoch": 2, "active_epoch": 1, "members": [{"id": there.member.id}]}

        def agreed(meaning: str) -> bool:
            if changes:
                there.core.view = next_one
            return "the job ends" in meaning

        there.core.status = status  # type: ignore[method-assign]
        given = asyncio.to_thread(order, OrderKind.DRAIN, format_address(there.member.address), TIMEOUT, agreed)
        if changes:
            with pytest.raises(FTLibError, match="it is for epoch 2, and this is epoch 3: look again"):
                await given
        else:
            assert "the signal is sent" in await given
        assert there.signals == [signal.SIGTERM] * (not changes)


def test_a_record_that_is_none_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    from ftlib.launch.processes import places

    places.write("lab", ".run", "{}")
    assert runs() == []
    show(runs_of := [])
    assert runs_of == []


class Tools:
    """The command line, in the place of one test: no secret of the user's, as most users have none."""

    def __init__(self, nursery: Nursery, launched: Launched, runtime: Path) -> None:
        self._nursery = nursery
        self._launched = launched
        self._runtime = runtime
        self._places = (launched.directory / f"command{number}" for number in itertools.count())

    def __call__(self, *arguments: object, code: int = 0) -> str:
        if arguments[0] != "ps":
            arguments += ("--timeout", TIMEOUT / 2)
        environ = environment(XDG_RUNTIME_DIR=str(self._runtime))
        del environ["FTLIB_SECRET"]
        ended, out, err = told(self._nursery, next(self._places), *arguments, env=environ)
        assert ended == code, f"{out}\n{err}\n{self._launched.events()}"  # text is shown whole
        return out + err

    def workers(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []

        def answered() -> bool:
            [run] = json.loads(self("ps", "--json"))
            found[:] = run["workers"]
            return bool(found)

        eventually(answered, "the launcher answers in time")
        return found


@pytest.mark.process
def test_orders_to_workers_of_a_run(nursery: Nursery, tmp_path: Path) -> None:
    runtime = tmp_path / "runtime"
    with forked(nursery, tmp_path, "-n", 3, script=TRAINS, XDG_RUNTIME_DIR=str(runtime), FTLIB_SECRET="") as launched:
        ftlib = Tools(nursery, launched, runtime)
        launched.wait_events("announced", 3)
        eventually(lambda: all(each["epoch"] for each in ftlib.workers()), "all three are in a view")
        assert "worker-2" in ftlib("ps")
        assert "3 members" in ftlib("status")
        assert "founded by" in ftlib("explain")
        stacks = ftlib("stack", "worker-1")
        assert "thread MainThread:" in stacks
        assert "script.py" in stacks

        before = ftlib.workers()
        assert "Give --yes" in ftlib("kill", "worker-1", code=2)
        assert ftlib.workers() == before
        said = ftlib("kill", "worker-1", "--yes")
        assert "kill worker-1: its launcher starts it again" in said
        [ended] = launched.wait_events("ended", 1)
        assert (ended["worker"], ended["code"]) == (1, -9)
        eventually(lambda: ftlib.workers()[1]["epoch"] > 0 and ftlib.workers()[1]["starts"] == 2, "it is back")

        assert "drain worker-0" in ftlib("drain", "worker-0", "--yes")
        ended = launched.wait_events("ended", 2)[-1]
        assert (ended["worker"], ended["code"]) == (0, 0)
        eventually(lambda: "2 members" in ftlib("status", "worker-2"), "the others go on")
        os.kill(launched.process.pid, 15)
        launched.finish()
    assert ftlib("ps").strip() == "no job of yours runs here by ftlib run"


@pytest.mark.process
def test_versions_and_completion(tmp_path: Path) -> None:
    said = subprocess.run(command("--version"), capture_output=True, text=True, timeout=TIMEOUT, check=True).stdout
    assert said.startswith("ftlib ")
    assert all(word in said for word in ("protocol ", "torch 2", "Python 3"))
    script = subprocess.run(command("completion", "bash"), capture_output=True, text=True, timeout=TIMEOUT, check=True).stdout
    assert "_FTLIB_COMPLETE=bash_complete" in script
    environ = {**os.environ, "_FTLIB_COMPLETE": "bash_complete", "COMP_WORDS": "ftlib st", "COMP_CWORD": "1"}
    said = subprocess.run(command(), env=environ, capture_output=True, text=True, timeout=TIMEOUT, check=True).stdout
    assert said.split() == ["plain,stack", "plain,status"]


HANGS = """
import ctypes, pathlib, time
import torch
from ftlib import FTLib

with FTLib.init() as ft:
    assert ft.allreduce_average(torch.ones(3))
    while not pathlib.Path("announced").exists():  # which a thread of this process does
        time.sleep(0.05)
    write("hangs")
    ctypes.PyDLL(None).sleep(600)  # with the GIL, so that none of its threads answers
"""


def other_processes_may_be_looked_at() -> bool:
    """Whether the kernel lets a program look into another one of this user that it did not start."""
    scope = Path("/proc/sys/kernel/yama/ptrace_scope")
    return os.geteuid() == 0 or not scope.exists() or scope.read_text().strip() == "0"


@pytest.mark.skipif(not other_processes_may_be_looked_at(), reason="the kernel lets only root look into another process here")
@pytest.mark.process
@pytest.mark.soak
def test_the_stacks_of_a_program_whose_python_does_not_answer(tmp_path: Path) -> None:
    with running(tmp_path, "-n", 1, script=script(HANGS)) as launched:
        [announced] = launched.wait_events("announced", 1)
        (tmp_path / "announced").touch()
        launched.wait_file("hangs")
        done = cli("stack", announced["address"], "--timeout", 10, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert "script.py" in done.stdout
        os.kill(launched.process.pid, signal.SIGKILL)
