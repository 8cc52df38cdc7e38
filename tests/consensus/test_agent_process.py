"""Agents in processes of their own: they die with their training process and not otherwise, and say what the kernel knows."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from consensus import Config, ConsensusError, Gossip, Home, NullPlane
from consensus.border import Order, Stopped
from tests.harness.basics import TIMEOUT, eventually, lives
from tests.harness.shipping import Shipping, shipping_from

from .group import address, agree, begin, members, peers
from .peer import ROOT, Peer

pytestmark = pytest.mark.process


def status(peer: Peer) -> dict[str, Any]:
    with urllib.request.urlopen(f"http://{peer.address}/status", timeout=TIMEOUT) as response:
        found: dict[str, Any] = json.load(response)
        return found


def notes(member: Gossip) -> str:
    return " | ".join(note["text"] for note in member.status()["notes"])


def test_it_dies_with_its_training_process_and_says_so_first() -> None:
    settings = {"job": "test", "initial_size": 3, "exclude_after": 60.0}  # no silence could exclude it in time
    with members(2, **settings) as group, peers(1, introducers=(address(group[0]),), **settings) as [peer]:
        agree(group, 3)
        agent = peer.agent
        peer.kill()
        agree(group, 2)
        eventually(lambda: not lives(agent), "the agent is gone")
        eventually(lambda: "its training process ended" in notes(group[0]) + notes(group[1]), "it said so")


def test_a_fork_keeps_neither_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a DataLoader's worker that outlives its parent."""
    founder = begin(job="test", initial_size=2)
    try:
        with peers(1, job="test", initial_size=2, introducers=(address(founder),), fork=True) as [peer]:
            agree([founder], 2)
            agent = peer.agent
            peer.kill()
            agree([founder], 1)
            eventually(lambda: not lives(agent), "the agent is gone")
    finally:
        founder.stop()


def test_who_is_cut_off_neither_hears_nor_is_heard() -> None:
    """The others find it silent and go on; it never learns of that while the cut lasts, and no view of its own is active."""
    with members(3, agent=Home.PROCESS, exclude_after=4.0) as group:
        whole = agree(group, 3)
        others, cut = [group[0], group[2]], 0.0

        def excluded() -> bool:
            """Nobody waits for the end of the cut, which begins anew each second until it has happened."""
            nonlocal cut
            if time.monotonic() > cut + 1.0:
                cut = time.monotonic()
                assert group[1].cut_off(8.0)
            return all(member.view != whole and member.confirm() for member in others)

        eventually(excluded, "the others go on without it")
        assert group[1].view == whole
        assert group[1].stopped is None
        eventually(lambda: group[1].stopped is not None, "it learns that the others went on without it")
        assert time.monotonic() - cut >= 8.0


def test_a_short_cut_changes_nothing() -> None:
    with members(3, agent=Home.PROCESS, exclude_after=15.0) as group:
        whole = agree(group, 3)
        assert group[1].cut_off(0.3)
        time.sleep(1.0)  # nothing is to happen
        assert [member.view for member in group] == [whole] * 3
        assert all(member.confirm() for member in group)


def test_signals_of_a_whole_group_are_not_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """From its first instant on: a batch system signals every process that it finds."""
    started = subprocess.Popen

    def at_once(*arguments: Any, **more: Any) -> Any:
        process = started(*arguments, **more)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            os.kill(process.pid, number)
        return process

    monkeypatch.setattr(subprocess, "Popen", at_once)
    with members(2, agent=Home.PROCESS) as group:
        agree(group, 2)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            os.kill(group[1]._host.pid, number)  # type: ignore[union-attr]
        assert group[0].cut_off(0.1), "it answers"
        agree(group, 2)


def test_its_own_death_ends_the_lifetime() -> None:
    with members(3, agent=Home.PROCESS) as group:
        agree(group, 3)
        told: list[Order] = []
        group[1]._plane.handle = told.append  # type: ignore[union-attr, method-assign, assignment]
        os.kill(group[1]._host.pid, signal.SIGKILL)  # type: ignore[union-attr]
        agree([group[0], group[2]], 2)
        eventually(lambda: told and isinstance(told[-1], Stopped), "the data plane is told")
        stopped = told[-1]
        assert isinstance(stopped, Stopped) and "killed by SIGKILL" in str(stopped.error)
        assert group[1].stopped is stopped.error
        assert not group[1].confirm()
        with pytest.raises(ConsensusError, match="stopped"):
            group[1].report_join(["127.0.0.1:1"])
        assert group[1].status()["stale"]


def test_it_goes_on_while_the_interpreter_is_held() -> None:
    """Twice the time after which silence excludes."""
    settings = {"job": "test", "initial_size": 3, "exclude_after": 6.0}
    with members(2, **settings) as group, peers(1, introducers=(address(group[0]),), **settings) as [peer]:
        view = agree(group, 3)
        peer.tell("hold 600")  # until it is killed
        eventually(lambda: status(peer)["ftlib"].get("stale"), "it is held")
        began = time.monotonic()
        while time.monotonic() - began < 12.0:
            assert group[0].view == group[1].view == view
            assert status(peer)["ftlib"]["stale"]  # it answers, and says what it does not know
            time.sleep(0.2)
        eventually(lambda: all(item["status"] == "alive" for item in group[0].status()["members"]), "all are alive")


def test_a_thread_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the process is for: the same, lost."""
    settings = {"job": "test", "initial_size": 3, "exclude_after": 4.0}
    with (
        members(2, **settings) as group,
        peers(1, introducers=(address(group[0]),), agent="thread", **settings) as [peer],
    ):
        agree(group, 3)
        peer.tell("hold 600")
        agree(group, 2)


def test_a_hung_data_plane_steps_aside() -> None:
    settings = {"job": "test", "initial_size": 3, "stall_timeout": 1.0, "exclude_after": 60.0}
    with members(2, **settings) as group, peers(1, introducers=(address(group[0]),), **settings) as [peer]:
        agree(group, 3)
        peer.tell("where 6,0")
        group[0].progress(6, 7)
        began = time.monotonic()
        time.sleep(0.5)
        assert len(agree(group, 3)) == 3  # one of three is less than half
        group[1].progress(6, 7)
        agree(group, 2)
        assert time.monotonic() - began > 1.4
        eventually(lambda: "stalled: it had not entered call 7" in notes(group[0]) + notes(group[1]), "it said so")


def test_log_records_arrive_with_their_fields(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "ftlib.consensus"), members(1, agent=Home.PROCESS) as [alone]:
        agree([alone], 1)
        eventually(lambda: "listens" in caplog.text, "the first line")
    assert {record.name for record in caplog.records} == {"ftlib.consensus"}


def test_an_interpreter_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    with pytest.raises(ConsensusError, match="agent='thread'"):
        begin(agent=Home.PROCESS)


def test_what_python_skips_in_its_path_its_agent_skips(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whatever is no text; and a working directory that was removed."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    (tmp_path / "here").rmdir()
    monkeypatch.setattr("sys.path", ["", tmp_path, None, *sys.path])
    with members(1, agent=Home.PROCESS) as [alone]:
        agree([alone], 1)


NAMESAKE = """
import sys, time, urllib.request
from consensus import Config, Gossip, Home

print("begins", flush=True)
member = Gossip(Config(agent=Home.PROCESS))
member.start()
member.seek_admission()
found = member.wait_view(120)  # it may end before it has founded
if sys.argv[1] == "answers":
    assert found
    urllib.request.urlopen("http://%s:%d/status" % member.member.address, timeout=120).close()
else:
    until = time.monotonic() + 120
    while member.stopped is None and time.monotonic() < until:
        time.sleep(0.01)
print(member.stopped, flush=True)
member.stop()
"""


@pytest.mark.parametrize(("name", "what", "text"), [("mimetypes", "answers", "None"), ("aiohttp", "ends", "rename it")])
def test_a_program_whose_file_is_a_modules_namesake_runs_once(name: str, what: str, text: str, tmp_path: Path) -> None:
    """Of one of Python's, or of a library's that is found only later in the path. Each agent would start the next one."""
    program = tmp_path / f"{name}.py"
    program.write_text(NAMESAKE)
    path = os.pathsep.join(map(str, (ROOT, tmp_path)))
    done = subprocess.run(
        [sys.executable, program, what],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
        timeout=TIMEOUT,
        check=True,
    )
    begins, said = done.stdout.splitlines()
    assert begins == "begins" and text in said
    assert what == "answers" or f"{program} was imported by an agent" in said


def test_an_agent_that_dies_at_once(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("consensus.runtime.host.process_host._COMMAND", "raise SystemExit('no such luck')")
    with pytest.raises(ConsensusError, match="exit code 1"):
        begin(agent=Home.PROCESS)
    assert "no such luck" in capfd.readouterr().err


def test_nothing_is_left_after_many_lifetimes() -> None:
    def mine() -> tuple[int, int]:
        children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
        return len(list(Path("/proc/self/fd").iterdir())), len(children)

    with members(1, agent=Home.PROCESS) as [alone]:
        agree([alone], 1)
    before = mine()
    for _ in range(3):
        with members(1, agent=Home.PROCESS) as [alone]:
            agree([alone], 1)
    eventually(lambda: all(now <= then for now, then in zip(mine(), before, strict=True)), "all is given back")


def test_facts_of_the_layer_above() -> None:
    class Plane(NullPlane):
        def facts(self) -> dict[str, Any]:
            return {"step": 7}

    gossip = Gossip()
    gossip.start(Plane(gossip))
    try:
        assert gossip.wait_view(TIMEOUT) is not None
        with urllib.request.urlopen(f"http://{address(gossip)}/status", timeout=TIMEOUT) as response:
            assert json.load(response)["ftlib"] == {"step": 7}
    finally:
        gossip.stop()


SEIZE = """
import ctypes, sys
PTRACE_SEIZE = 0x4206
print(ctypes.CDLL(None).ptrace(PTRACE_SEIZE, int(sys.argv[1]), 0, 0), flush=True)
sys.stdin.read()
"""


def test_an_agent_that_does_not_end_leaves_nothing_open(caplog: pytest.LogCaptureFixture) -> None:
    """Killed in a system call that nothing interrupts, say: here a debugger keeps the end of its process to itself."""
    with members(1, agent=Home.PROCESS) as [alone]:
        agree([alone], 1)
        host, pid = alone._host, alone.agent_pid
        assert host is not None
        with subprocess.Popen(
            [sys.executable, "-c", SEIZE, str(pid)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as debugger:
            assert debugger.stdout is not None
            if debugger.stdout.readline().strip() != "0":
                pytest.skip("the kernel lets nobody debug another process here")
            alone.stop()
            assert (host._pipe.fileno(), host._handoff.fileno()) == (-1, -1)  # type: ignore[union-attr]
            assert f"process {pid} was killed, and has not ended" in caplog.text
            debugger.communicate()
        host._process.wait(TIMEOUT)  # type: ignore[attr-defined]


@pytest.mark.parametrize("home", list(Home))
def test_facts_that_cannot_be_had_end_nothing(home: Home) -> None:
    class Plane(NullPlane):
        def facts(self) -> dict[str, Any]:
            return {"mine": 1 / 0}

    gossip = Gossip(Config(agent=home))
    gossip.start(Plane(gossip))
    try:
        view = gossip.wait_view(TIMEOUT)
        for path in ("/status", "/metrics"):
            with urllib.request.urlopen(f"http://{address(gossip)}{path}", timeout=TIMEOUT) as response:
                body = response.read()
            assert path == "/metrics" or json.loads(body)["ftlib"] == {"error": "ZeroDivisionError: division by zero"}
        assert gossip.status()["stopped"] is None
        assert gossip.view == view
    finally:
        gossip.stop()


@pytest.fixture
def shipping() -> Iterator[Shipping]:
    with shipping_from("ftlib.consensus") as handler:
        yield handler


@pytest.mark.parametrize("home", list(Home))
def test_a_log_handler_that_raises_costs_its_record_alone(
    home: Home, shipping: Shipping, capfd: pytest.CaptureFixture[str]
) -> None:
    with members(1, agent=home) as [alone]:
        view = agree([alone], 1)
        shipping.away = True
        assert alone.cut_off(0.001)  # it is logged
        eventually(lambda: shipping.lost, "the record came")
        assert not alone.status().get("stale"), "its agent answers"
        assert alone.stopped is None and alone.view == view
    assert "ConnectionError: the log server is away" in capfd.readouterr().err


@pytest.mark.parametrize("home", list(Home))
def test_a_log_handler_that_raises_does_not_hide_the_end(home: Home, shipping: Shipping) -> None:
    class Failing(NullPlane):
        told: Stopped | None = None

        def handle(self, order: Order) -> None:
            assert isinstance(order, Stopped), "broken plane"
            self.told = order

    alone = Gossip(Config(agent=home))
    plane = Failing(alone)
    shipping.away = True
    alone.start(plane)
    try:
        alone.seek_admission()
        eventually(lambda: alone.stopped is not None and plane.told, "the data plane and the callers are told")
    finally:
        alone.stop()
    assert "broken plane" in str(alone.stopped)
