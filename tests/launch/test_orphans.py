"""Nothing is left behind, whoever is killed or interrupted; and Ctrl-C drains."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from ftlib.common.processes import TWIN

from .helpers import running, script, wait_gone, wait_until

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

FAMILY = """
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
daemon = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"], start_new_session=True)
write(f"family-{INDEX}", f"{os.getpid()} {child.pid} {daemon.pid}")
"""


def families(run: Any, workers: int) -> list[int]:
    return [int(pid) for index in range(workers) for pid in run.wait_file(f"family-{index}").split()]


def test_a_killed_launcher_leaves_no_orphans(tmp_path: Path) -> None:
    with running(tmp_path, "-n", 2, script=script(FAMILY + "time.sleep(300)")) as run:
        pids = families(run, 2)
        run.process.kill()
        for pid in pids:
            wait_gone(pid)


def test_a_killed_supervisor_leaves_no_orphans(tmp_path: Path) -> None:
    with running(tmp_path, "-n", 2, script=script(FAMILY + "write(f'parent-{INDEX}', os.getppid())\ntime.sleep(300)")) as run:
        pids = families(run, 2)
        supervisor = int(run.wait_file("parent-0"))
        assert supervisor != run.process.pid
        os.kill(supervisor, signal.SIGKILL)
        _, err = run.finish(128 + signal.SIGKILL)
        assert "the supervisor was killed by SIGKILL" in err
        for pid in pids:
            wait_gone(pid, 0.1)


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.parametrize("killed", ["keeper", "guard keeper", "guard supervisor", "keeper supervisor"])
def test_those_killed_in_one_instant_leave_no_orphans(tmp_path: Path, killed: str) -> None:
    """Whoever is left of guard, keeper and supervisor ends the workers, and all that they started."""
    with running(tmp_path, "-n", 2, script=script(FAMILY + "time.sleep(300)")) as run:
        pids = families(run, 2)
        guard, supervisor = run.process.pid, parent(pids[0])
        keeper = parent(supervisor)
        assert parent(keeper) == guard
        assert Path(f"/proc/{keeper}/cmdline").read_bytes().rstrip(b"\0") == b"ftlib-keeper"  # no name-based kill finds it
        doomed = [{"guard": guard, "keeper": keeper, "supervisor": supervisor}[name] for name in killed.split()]
        for pid in doomed:
            os.kill(pid, signal.SIGSTOP)
        for pid in doomed:  # none of them may do anything about the other's end
            wait_until(lambda pid=pid: state(pid) == "T", f"{pid} has stopped")
        for pid in doomed:
            os.kill(pid, signal.SIGKILL)
        for pid in (*pids, guard, keeper, supervisor):
            wait_gone(pid)


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_killed_supervisor_leaves_no_secret(tmp_path: Path) -> None:
    body = script("write('parent', os.getppid())\ntime.sleep(300)")
    with running(tmp_path, "-n", 1, script=body, FTLIB_SECRET="", XDG_RUNTIME_DIR=str(tmp_path / "runtime")) as run:
        supervisor = int(run.wait_file("parent"))
        directory = tmp_path / "runtime" / "ftlib"
        assert len(list(directory.iterdir())) == 1
        os.kill(supervisor, signal.SIGKILL)
        run.finish(128 + signal.SIGKILL)
        assert not list(directory.iterdir())


def test_a_killed_process_group_leaves_no_orphans(tmp_path: Path) -> None:
    with running(tmp_path, "-n", 1, script=script(FAMILY + "time.sleep(300)")) as run:
        pids = families(run, 1)
        os.killpg(run.process.pid, signal.SIGKILL)
        for pid in pids:
            wait_gone(pid)


def test_a_dead_workers_children_die_with_it(tmp_path: Path) -> None:
    with running(tmp_path, "-n", 2, "--max-restarts", 0, script=script(FAMILY + "wait('go')")) as run:
        families(run, 2)
        worker, child, daemon = map(int, (tmp_path / "family-0").read_text().split())
        os.kill(worker, signal.SIGKILL)
        wait_gone(child)
        (tmp_path / "go").touch()
        run.finish(0)
        wait_gone(daemon, 0.1)  # whatever session it made for itself, the end of the run is its end


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGUSR1, 138)],
)
def test_an_interrupt_drains(tmp_path: Path, number: signal.Signals, code: int) -> None:
    body = """
def drain(*_):
    print("drained", INDEX)
    sys.exit(0)
signal.signal(signal.SIGTERM, drain)
write(f"up-{INDEX}", os.getpid())
time.sleep(60)
"""
    with running(tmp_path, "-n", 2, script=script(body)) as run:
        pids = [int(run.wait_file(f"up-{index}")) for index in range(2)]
        run.process.send_signal(number)
        out, err = run.finish(code)
        for pid in pids:
            wait_gone(pid, 0.1)
    assert sorted(out.splitlines()) == ["[worker 0] drained 0", "[worker 1] drained 1"]
    assert f"{number.name}: draining" in err


STUBBORN = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
write(f"up-{INDEX}", os.getpid())
if INDEX == 0:
    os.kill(os.getpid(), signal.SIGSTOP)
time.sleep(60)
"""


def test_the_grace_ends(tmp_path: Path) -> None:
    with running(tmp_path, "-n", 2, "--grace", 0.2, script=script(STUBBORN)) as run:
        pids = [int(run.wait_file(f"up-{index}")) for index in range(2)]
        run.process.send_signal(signal.SIGTERM)
        _, err = run.finish(143)
        for pid in pids:
            wait_gone(pid, 0.1)
    assert "did not end within 0.2 s" in err


def test_a_second_interrupt_kills(tmp_path: Path) -> None:
    with running(tmp_path, "-n", 2, "--grace", 60, script=script(STUBBORN)) as run:
        for index in range(2):
            run.wait_file(f"up-{index}")
        run.process.send_signal(signal.SIGINT)
        assert run.process.stderr is not None
        for line in run.process.stderr:
            if b"draining" in line:
                break
        time.sleep(2 * TWIN)  # sooner it would be the first one, sent twice
        run.process.send_signal(signal.SIGINT)
        run.finish(130)
