"""``Launcher`` by the system's ssh client, over a real sshd: logins, noise, secrets, refusals, and what is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ftlib import AgentFailedError, Launcher
from tests.harness.basics import TIMEOUT, eventually
from tests.harness.sshd import Sshd, needs_sshd
from tests.launch.helpers import wait_gone
from tests.launch.launching import Kept, here, launcher, mark, no_child_is_left, wait_for

pytestmark = [pytest.mark.process, needs_sshd]


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    with Sshd(tmp_path_factory.mktemp("sshd") / "own") as server:
        yield server


def by_ssh(sshd: Sshd, *hosts: str, **more: Any) -> Launcher:
    return launcher(*hosts, transport="ssh", ssh_config_file=sshd.config, **more)


def facts() -> tuple[str | None, ...]:
    return (os.environ.get("RANK"), os.environ.get("FTLIB_BIND", "").rpartition(":")[0], os.environ.get("EXTRA"))


def test_uneven_hosts_by_ssh(sshd: Sshd) -> None:
    with no_child_is_left():
        result = by_ssh(sshd, "node1", "node2", workers=[1, 2], extra_env_vars={"EXTRA": "of the caller"}).run(facts)
    assert [result.rank(rank) for rank in range(3)] == [(str(rank), "127.0.0.1", "of the caller") for rank in range(3)]


def test_a_jump_host(sshd: Sshd) -> None:
    assert by_ssh(sshd, "jumped", workers=1).run(pow, 2, 5).rank(0) == 32


@pytest.mark.parametrize(("host", "words"), [("refused", "Permission denied"), ("stranger", "Host key verification failed")])
def test_sshs_own_words_say_why_a_host_cannot_be_used(sshd: Sshd, host: str, words: str) -> None:
    with no_child_is_left(), pytest.raises(AgentFailedError, match=words) as caught:
        by_ssh(sshd, "node1", host, workers=1).run(facts)
    assert caught.value.host == host


def test_a_missing_interpreter_is_named(sshd: Sshd) -> None:
    with pytest.raises(AgentFailedError, match=r"node1.*/nowhere/python"):
        by_ssh(sshd, "node1", workers=1, python="/nowhere/python").run(facts)


def variable(name: str) -> str | None:
    return os.environ.get(name)


NOISE = """printf 'Welcome to the cluster\\n\\000\\001\\377 ftlib-agent \\000ftlib-agent '
echo 'a word on stderr' >&2"""


def test_what_a_login_prints_first_does_no_harm(tmp_path: Path) -> None:
    kept = Kept()
    with Sshd(tmp_path / "own", noise=NOISE) as sshd:
        launch = by_ssh(sshd, "node1", workers=1, setup="echo from the setup; read -r nothing; export FROM_SETUP=1")
        result = launch.set_logging_handlers(lambda: [kept]).run(variable, "FROM_SETUP")
    assert result.rank(0) == "1"
    assert {"a word on stderr", "from the setup"} <= set(kept.texts(hostname="node1", local_rank=None))


SECRET = "a-secret-that-nobody-may-see-0123456789"


def stay(path: Path) -> str | None:
    mark(path, f"up-{os.environ['RANK']}", os.getpid())
    wait_for(path / "go")
    return os.environ.get("FTLIB_SECRET")


def test_no_secret_stands_on_a_command_line(sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FTLIB_SECRET", SECRET)
    launch = by_ssh(sshd, "node1", "node2", workers=1, extra_env_vars={"TOKEN": SECRET}).start(stay, tmp_path)
    for rank in range(2):
        here(tmp_path, f"up-{rank}")
    for line in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            assert SECRET.encode() not in line.read_bytes(), line
        except (FileNotFoundError, ProcessLookupError):
            continue
    (tmp_path / "go").touch()
    assert launch.wait(TIMEOUT).rank(1) == SECRET


CALLER = """
import sys
from pathlib import Path
from tests.launch.test_launcher_ssh import family, by_ssh
from tests.harness.sshd import Sshd
sshd = Sshd(Path(sys.argv[1]))
by_ssh(sshd, "node1", "node2", "node3", grace=5.0, agent_timeout=float(sys.argv[3])).run(family, Path(sys.argv[2]))
"""


def family(path: Path) -> None:
    """With a child in a session of its own, and a daemon."""
    child = subprocess.Popen(["sleep", "300"], start_new_session=True)
    daemon = subprocess.check_output(["sh", "-c", "setsid sleep 300 >/dev/null 2>&1 & echo $!"], text=True)
    mark(path, f"family-{os.environ['RANK']}", f"{os.getpid()} {child.pid} {daemon.strip()}")
    while True:
        time.sleep(1)


def call(sshd: Sshd, path: Path, timeout: float = 30.0) -> tuple[subprocess.Popen[bytes], list[int]]:
    """A caller in a process of its own, and all processes of its workers."""
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-c", CALLER, str(sshd.folder), str(path), str(timeout)]
    caller = subprocess.Popen(command, cwd=root, stdin=subprocess.DEVNULL, start_new_session=True)
    names = [path / f"family-{rank}" for rank in range(6)]
    eventually(lambda: all(name.exists() for name in names), "all families")
    return caller, [int(word) for name in names for word in name.read_text().split()]


def test_a_killed_caller_leaves_nothing_on_any_host(sshd: Sshd, tmp_path: Path) -> None:
    caller, pids = call(sshd, tmp_path)
    caller.kill()
    caller.wait()
    for pid in pids:
        wait_gone(pid)


def test_ctrl_c_leaves_nothing_on_any_host(sshd: Sshd, tmp_path: Path) -> None:
    caller, pids = call(sshd, tmp_path)
    caller.send_signal(signal.SIGINT)
    assert caller.wait(TIMEOUT) == -signal.SIGINT or caller.returncode == 130 or caller.returncode == 1
    for pid in pids:
        wait_gone(pid)


def test_a_caller_that_is_stopped_for_a_while_harms_nobody(sshd: Sshd, tmp_path: Path) -> None:
    caller, pids = call(sshd, tmp_path, timeout=30.0)
    caller.send_signal(signal.SIGSTOP)
    time.sleep(2.0)
    caller.send_signal(signal.SIGCONT)
    time.sleep(1.0)
    assert caller.poll() is None
    for pid in pids:
        os.kill(pid, 0)
    caller.kill()
    caller.wait()
    for pid in pids:
        wait_gone(pid)


def test_a_caller_that_is_stopped_for_long_is_given_up(sshd: Sshd, tmp_path: Path) -> None:
    caller, pids = call(sshd, tmp_path, timeout=12.0)
    caller.send_signal(signal.SIGSTOP)
    try:
        for pid in pids:
            wait_gone(pid)
    finally:
        caller.kill()
        caller.wait()
