"""Elastic launches: workers that die are restarted and join, hosts are lost, come, drain. Workers here only announce views."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from consensus import KeyRing
from ftlib import AgentFailedError, Launch, WorkerFailedError
from ftlib.lifecycle.supervisor_client import announce
from tests.harness.basics import TIMEOUT, eventually
from tests.launch.helpers import cli
from tests.launch.launching import kill, launcher, mark, no_child_is_left

pytestmark = pytest.mark.process
FAST = {"restart_delay": 0.05, "grace": 5.0}


def member(path: Path) -> str:
    """Be a member of a view until told to finish; SIGTERM ends it well, as it does a program that drains."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    env = os.environ
    key = KeyRing([env["FTLIB_SECRET"]]).first
    me = f"{env['FTLIB_NAME']}-{os.getpid()}"
    mark(path, f"{env['FTLIB_NAME'].replace('/', '-')}-{os.getpid()}", env["FTLIB_INTRODUCERS"])
    facts = {"job": env["FTLIB_JOB"], "member": me, "address": f"a:{os.getpid()}", "epoch": 1}
    assert announce(env["FTLIB_SUPERVISOR"], key.vouch, **facts, timeout=TIMEOUT)
    while not (path / "finish").exists():
        time.sleep(0.01)
    return me


def running(launch: Launch, count: int) -> list[dict[str, Any]]:
    """The facts about so many workers, all members of a view, once there are."""
    members: list[dict[str, Any]] = []

    def there() -> bool:
        members[:] = [each for each in launch.workers() if each["phase"] == "running" and each["epoch"] and each["pid"]]
        return len(members) == count

    eventually(there, launch.workers)
    return members


def until(launch: Launch, count: int, condition: Callable[[list[dict[str, Any]]], bool]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []

    def there() -> bool:
        found[:] = running(launch, count)
        return condition(found)

    eventually(there, launch.workers)
    return found


def test_a_killed_worker_is_restarted_and_joins_those_that_live(tmp_path: Path) -> None:
    with no_child_is_left():
        launch = launcher("localhost", "127.0.0.1", workers=1, max_restarts=3, **FAST).start(member, tmp_path)
        first, second = running(launch, 2)
        kill(first["pid"])
        again = until(launch, 2, lambda seen: seen[0]["starts"] == 2)
        assert again[1]["pid"] == second["pid"]
        assert (tmp_path / f"localhost-0-{again[0]['pid']}").read_text() == f"a:{second['pid']}"
        (tmp_path / "finish").touch()
        result = launch.wait(TIMEOUT)
    assert len(result.results["localhost"]) == len(result.results["127.0.0.1"]) == 1


def test_a_lost_host_rests_and_its_workers_come_back(tmp_path: Path) -> None:
    with no_child_is_left():
        launch = launcher("localhost", "127.0.0.1", workers=2, min_workers=1, **FAST).start(member, tmp_path)
        workers = running(launch, 4)
        gone = [each for each in workers if each["host"] == "127.0.0.1"]
        kill(int(Path(f"/proc/{gone[0]['pid']}/stat").read_text().rpartition(")")[2].split()[1]))  # the agent's steward
        back = until(launch, 4, lambda seen: sum(each["starts"] == 2 for each in seen) == 2)
        assert {each["host"] for each in back if each["starts"] == 2} == {"127.0.0.1"}
        (tmp_path / "finish").touch()
        launch.wait(TIMEOUT)


@pytest.mark.soak
def test_hosts_of_a_file_come_and_drain(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("localhost:1\n")
    with no_child_is_left():
        launch = launcher(hosts_file=hosts, **FAST).start(member, tmp_path)
        running(launch, 1)
        hosts.write_text("localhost:1\n127.0.0.1:2  # more\n")
        running(launch, 3)
        hosts.write_text("127.0.0.1 slots=2\n")
        left = running(launch, 2)
        assert {each["host"] for each in left} == {"127.0.0.1"}
        eventually(lambda: [each["phase"] for each in launch.workers()].count("not needed any more") == 1, launch.workers)
        (tmp_path / "finish").touch()
        launch.wait(TIMEOUT)


def test_hosts_are_added_and_removed_by_calls(tmp_path: Path) -> None:
    with no_child_is_left():
        launch = launcher(workers=1, min_workers=1, **FAST).start(member, tmp_path)
        running(launch, 1)
        launch.add_hosts(["127.0.0.1:2"])
        running(launch, 3)
        launch.remove_hosts(["localhost"])
        running(launch, 2)
        launch.cancel()
        eventually(lambda: launch.done, launch.workers)


def fail_always() -> None:
    sys.exit(4)


def test_a_function_that_always_fails_ends_it() -> None:
    with no_child_is_left(), pytest.raises(WorkerFailedError, match="exit code 4"):
        launcher(workers=2, max_restarts=100, **FAST).run(fail_always)


def test_no_host_can_be_used() -> None:
    with no_child_is_left(), pytest.raises(AgentFailedError, match="/nowhere"):
        launcher(workers=1, min_workers=1, python="/nowhere/python", **FAST).run(fail_always)


@pytest.mark.parametrize("command", [[sys.executable, "nowhere.py"], ["nowhere", "x"], ["/nowhere/at/all"]])
def test_a_program_that_a_host_lacks_is_named_with_the_remedy(command: list[str]) -> None:
    with no_child_is_left(), pytest.raises(WorkerFailedError, match=r"nowhere\S* is not there .*: programs do not travel"):
        launcher(workers=1).start_program(command).wait(TIMEOUT)


SCRIPT = """
import os, sys
print("worker", os.environ["FTLIB_WORKER_INDEX"], sys.argv[1:], "RANK" in os.environ)
sys.exit(5 if "fail" in sys.argv else 0)
"""


def test_ftlib_run_with_hosts(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    common = ("run", "--hosts", "localhost,127.0.0.1", "--transport", "local", "--max-restarts", 0, "-n", 1)
    done = cli(*common, "script.py", "--lr", "1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        "[127.0.0.1:0] worker 1 ['--lr', '1'] False",
        "[localhost:0] worker 0 ['--lr', '1'] False",
    ]
    assert "2 of 2 workers finished" in done.stderr
    failed = cli(*common, "-q", "script.py", "fail", cwd=tmp_path)
    assert failed.returncode == 5, failed.stderr
    assert "exit code 5" in failed.stderr and not failed.stdout
