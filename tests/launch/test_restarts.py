"""What ``ftlib run`` starts again, and where."""

from __future__ import annotations

import io
import json
import os
import re
import resource
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.harness.network import Network, needs_network
from tests.harness.nursery import Nursery
from tests.harness.program import Program, ftlib_run

from .helpers import LIMIT, Run, environment, running, script, wait_until

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]


def test_before_a_view_a_worker_returns_to_its_address(tmp_path: Path) -> None:
    body = """
facts = [os.environ["FTLIB_BIND"], os.environ["FTLIB_INTRODUCERS"], os.environ["FTLIB_INITIAL_SIZE"]]
if INDEX == 0 and first("died"):
    write("before", facts)
    os.kill(os.getpid(), signal.SIGKILL)
if INDEX == 0:
    write("after", facts)
wait("after")
"""
    for attempt in range(5):  # whoever asks for any port may be given this one while nobody has it
        directory = tmp_path / str(attempt)
        directory.mkdir()
        with running(directory, "-n", 2, script=script(body)) as run:
            _, err = run.finish(0)
        if not re.search(r"port \d+ is taken by now: worker 0 meets the others at theirs", err):
            break
    assert (directory / "before").read_text() == (directory / "after").read_text()


def test_after_a_view_a_worker_joins_the_living(tmp_path: Path) -> None:
    body = """
import socket
env = os.environ
if not first(f"first-{INDEX}"):
    assert "FTLIB_SOCKET_FDS" not in env
    assert env["FTLIB_INITIAL_SIZE"] == "3"
    announce(7, "127.0.0.1:4321")
    write("joined", env["FTLIB_INTRODUCERS"] + " " + env["FTLIB_BIND"])
else:
    udp, tcp = map(int, env["FTLIB_SOCKET_FDS"].split(","))
    address = ":".join(map(str, socket.socket(fileno=tcp).getsockname()))
    assert env["FTLIB_INTRODUCERS"].split(",")[INDEX] == env["FTLIB_BIND"] == address
    write(f"address-{INDEX}", address)
    announce(1, address)
    write(f"announced-{INDEX}")
    if INDEX == 1:
        wait("announced-0")
        os.kill(os.getpid(), signal.SIGKILL)
wait("joined")
"""
    with running(tmp_path, "-n", 3, script=script(body)) as run:
        introducers, bind = run.wait_file("joined").split()
        run.finish(0)
    assert bind == "127.0.0.1:0"
    assert introducers.split(",") == [(tmp_path / f"address-{index}").read_text() for index in (0, 2)]


def test_with_nobody_left_all_found_again(tmp_path: Path) -> None:
    body = """
if first(f"first-{INDEX}"):
    announce(1, os.environ["FTLIB_BIND"])
    write(f"up-{INDEX}", os.getpid())
    if INDEX == 0:
        wait("up-1")
        os.kill(int(open("up-1").read()), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(300)
write(f"introducers-{INDEX}", os.environ["FTLIB_INTRODUCERS"])
assert os.environ["FTLIB_BIND"] in os.environ["FTLIB_INTRODUCERS"]
assert "FTLIB_SOCKET_FDS" in os.environ
wait("introducers-0"), wait("introducers-1")
"""
    # One of them kills both, one line after the other: the second death comes before the first restart.
    with running(tmp_path, "-n", 2, "--restart-delay", 2.0, script=script(body)) as run:
        run.finish(0)
    assert (tmp_path / "introducers-0").read_text() == (tmp_path / "introducers-1").read_text()


def test_a_taken_address_is_given_up(tmp_path: Path) -> None:
    """By a daemon of the worker's own, which has its sockets and outlives it."""
    body = """
if first("died"):
    sockets = list(map(int, os.environ["FTLIB_SOCKET_FDS"].split(",")))
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"], pass_fds=sockets, start_new_session=True)
    write("before", os.environ["FTLIB_BIND"])
    os.kill(os.getpid(), signal.SIGKILL)
write("after", os.environ["FTLIB_BIND"] + " " + os.environ["FTLIB_INTRODUCERS"])
"""
    with running(tmp_path, "-n", 1, script=script(body)) as run:
        _, err = run.finish(0)
    host, port = (tmp_path / "before").read_text().split(":")
    bind, introducers = (tmp_path / "after").read_text().split()
    assert bind == introducers != f"{host}:{port}"
    assert f"port {port} is taken" in err


def test_restarts_run_out(tmp_path: Path) -> None:
    body = "announce(1)\nsys.exit(9)"
    with running(tmp_path, "-n", 1, "--max-restarts", 2, script=script(body)) as run:
        run.finish(9)
    assert [event["code"] for event in run.events("ended")] == [9, 9, 9]


def test_a_joiner_is_sent_away_when_the_work_is_done(tmp_path: Path) -> None:
    body = """
if INDEX == 0 and not first("first"):
    write("joining")
    time.sleep(60)
announce(1)
write(f"up-{INDEX}")
if INDEX == 0:
    wait("up-1")
    os.kill(os.getpid(), signal.SIGKILL)
wait("joining")
"""
    with running(tmp_path, "-n", 2, script=script(body)) as run:
        _, err = run.finish(0)
    assert "1 of 2 workers finished" in err


def test_whoever_waits_for_a_founding_is_not_needed_when_the_work_is_done(tmp_path: Path) -> None:
    """It waits since a joiner runs, which may yet hold a view, and then that joiner finishes."""
    body = """
if INDEX == 0:
    announce(1)
    write("up")
    wait("joining")
    os.kill(os.getpid(), signal.SIGKILL)
wait("up")
if first("first"):
    os.kill(os.getpid(), signal.SIGKILL)
write("joining")
wait("due")
"""
    with running(tmp_path, "-n", 2, "--grace", 120, script=script(body)) as run:
        wait_until(lambda: 0 in [event["worker"] for event in run.events("ended")], "the founder's end")
        time.sleep(0.5)  # ten times the restart delay: no event tells that worker 0 is due, and held
        (tmp_path / "due").touch()
        _, err = run.finish(0)
    assert "Traceback" not in err
    [over] = run.events("over")
    assert over["seconds"] < 120, "it waited for the grace"
    assert "1 of 2 workers finished" in err


@needs_network
def test_a_host_that_lost_its_address_starts_its_worker_once_that_is_back(tmp_path: Path) -> None:
    body = """
if first("died"):
    write("up", os.getpid())
    time.sleep(300)
write("again", os.environ["FTLIB_BIND"])
"""
    with Network(1) as [host]:
        meet = f"{host.v4}:4000"
        options = ("--meet", meet, "--size", 1, "-n", 1, "--max-restarts", 1)
        with host.inside(), running(tmp_path, *options, script=script(body)) as run:
            pid = int(run.wait_file("up"))
            host.ip(f"addr del {host.v4}/24 dev eth0")
            os.kill(pid, signal.SIGKILL)
            wait_for_words(run, f"worker 0: nothing can listen at {meet} (Cannot assign requested address)")
            host.ip(f"addr add {host.v4}/24 dev eth0")
            assert run.wait_file("again") == meet
            _, err = run.finish(0)
    assert "nothing can listen" not in err, "it is said once"
    assert len(run.events("ended")) == 2, "an attempt is no start"


def wait_for_words(run: Run, words: str) -> str:
    """Read lines of stderr until one has these words in it, and no further; returns them."""
    assert isinstance(run.process.stderr, io.BufferedReader)
    lines = [""]
    while words not in lines[-1]:
        assert select.select([run.process.stderr], [], [], LIMIT)[0], f"no line for {LIMIT} s: {''.join(lines)}"
        line = run.process.stderr.raw.readline()  # what a buffer had taken too much would be nobody's
        assert line, f"the end came before {words!r}: {''.join(lines)}"
        lines.append(line.decode())
    return "".join(lines)


@pytest.mark.parametrize("viewed", [False, True], ids=["at their addresses", "in a new founding"])
def test_without_descriptors_workers_are_started_later(tmp_path: Path, viewed: bool) -> None:
    body = f"""
import resource
if first(f"first-{{INDEX}}"):
    announce({int(viewed)}, os.environ["FTLIB_BIND"])  # the launcher imports nothing more from then on
    write(f"up-{{INDEX}}", os.getpid())
    if INDEX == 0:
        wait("up-1")
        limits = resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE)
        resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE, (3, limits[1]))
        write("limited", f"{{os.getppid()}} {{limits[0]}} {{limits[1]}}")
        os.kill(int(open("up-1").read()), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(300)
write(f"again-{{INDEX}}")
wait("again-0"), wait("again-1")
"""
    with running(tmp_path, "-n", 2, "--max-restarts", 2, script=script(body)) as run:
        supervisor, *limits = map(int, run.wait_file("limited").split())
        before = wait_for_words(run, "nothing can listen at 127.0.0.1 (Too many open files)")
        resource.prlimit(supervisor, resource.RLIMIT_NOFILE, tuple(limits))
        _, err = run.finish(0)
    assert "Traceback" not in before + err
    assert len(run.events("ended")) == 4


def test_an_error_of_the_launchers_own_ends_the_run(tmp_path: Path) -> None:
    """Whatever was to be started, nobody waits for it."""
    body = """
if INDEX == 1:
    os.kill(os.getpid(), signal.SIGKILL)
wait("never")
"""
    (tmp_path / "script.py").write_text(script(body))
    program = """
import sys
from ftlib.launch.run.plan import StartPlan
from ftlib.launch.run.supervisor import Supervisor, launch
def fail(self, index):
    raise ValueError("what nobody thought of")
Supervisor._delay_over = fail
sys.exit(launch(StartPlan((sys.executable, "script.py"), 2, restart_delay=0.05)))
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == 1 or done.returncode == 128 + signal.SIGKILL, done.stderr
    assert "ValueError: what nobody thought of" in done.stderr and "Traceback" in done.stderr
    assert "the launcher itself has failed" in done.stderr.splitlines()[-2], done.stderr


def test_a_worker_that_hangs_is_started_anew_and_the_run_ends(nursery: Nursery, tmp_path: Path) -> None:
    """Its agent lives, so nobody is silent; the others give it up, and it is not there at the end."""
    body = """
import threading
import torch
from ftlib import FTLib
model, over = torch.nn.Linear(2, 1), torch.zeros(1)
with FTLib.init(log_level="info") as ft:
    ft.register_state(model=model)
    anew, calls = "FTLIB_SOCKET_FDS" not in os.environ, 0
    while not over.item():
        if INDEX == 1 and calls == 3 and not anew:
            threading.Event().wait()
        over.fill_(INDEX == 1 and anew)
        assert ft.allreduce(over, "MAX")
        calls += 1
"""
    (tmp_path / "script.py").write_text(script(body))
    env = environment(FTLIB_STALL_TIMEOUT="3")
    command = ftlib_run("-n", 2, "--events", "events.jsonl", "--restart-delay", 0.05, "script.py")
    with Program(nursery, tmp_path, *command, env=env) as launcher:
        assert launcher.wait(LIMIT) == 0, launcher.stderr
        err = launcher.stderr
    events = map(json.loads, (tmp_path / "events.jsonl").read_text().splitlines())
    death = next(event for event in events if event["event"] == "ended")
    assert (death["worker"], death["code"]) == (1, 75)
    assert "it ends, so that its launcher starts it anew" in err
    assert "threading.Event().wait()" in err, "its stack"


def test_a_replica_of_which_one_process_leaves_to_come_back_is_started_again_as_a_whole(tmp_path: Path) -> None:
    """Its mate, which hangs, is ended: else the one that has left would wait for it for ever."""
    body = """
from consensus import KeyRing
from ftlib.lifecycle.supervisor_client import ask_again
env = os.environ
if INDEX < 2:
    announce(1)
    write(f"up-{INDEX}")
elif not first(f"first-{INDEX}"):
    write(f"again-{INDEX}", env["FTLIB_REPLICA"])
elif INDEX == 2:
    wait("up-0")
    wait("hangs")
    vouch = KeyRing([env["FTLIB_SECRET"]]).first.vouch
    assert ask_again(env["FTLIB_SUPERVISOR"], vouch, job=env["FTLIB_JOB"], member="m", timeout=60.0)
    sys.exit(0)
else:
    write("hangs")
    wait("never")
wait("again-2"), wait("again-3")
"""
    with running(tmp_path, "-n", 2, "--shards", 2, "--max-restarts", 1, script=script(body)) as run:
        assert {run.wait_file("again-2"), run.wait_file("again-3")} == {"1-2"}
        run.finish(0)
    # Whoever has not ended by itself when the job is over gets SIGTERM, for no cause of its own.
    [killed] = [event for event in run.events("ended") if event["cause"]]
    assert (killed["worker"], killed["cause"]) == (3, "its replica has lost worker 2")
