"""``Launcher`` and ``ftlib run`` at a terminal: Ctrl-C, Ctrl-Z, and a terminal that is closed."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pexpect
import pytest

from tests.harness.basics import TIMEOUT, eventually, lives
from tests.harness.program import ROOT, clean
from tests.launch.launching import here

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

WORK = f"""
import os, sys, threading
sys.path.insert(0, {str(ROOT)!r})
def work():
    number = os.environ.get("LOCAL_RANK")
    with open(f".part{{number}}", "w") as file:
        file.write(str(os.getpid()))
    os.rename(f".part{{number}}", number)
    print("worker", number, "works", flush=True)
    threading.Event().wait(300)
"""
LAUNCHER = (
    WORK
    + """
from ftlib import Launcher
if __name__ == "__main__":
    Launcher(workers_per_host=2, preload=(), transport="local", grace=2.0).run(work)
"""
)
PROGRAM = (
    WORK
    + """
import signal
def drain(number, frame):
    open("drained-" + os.environ["LOCAL_RANK"], "w").close()
    sys.exit(0)
signal.signal(signal.SIGTERM, drain)
work()
"""
)
RUN = ["-m", "ftlib.launch", "-n", "2", "--grace", "20"]
COMMANDS = {"launcher": [], "run": RUN, "hosts": [*RUN, "--hosts", "localhost", "--transport", "local"]}


@contextlib.contextmanager
def terminal(path: Path, kind: str) -> Iterator[tuple[pexpect.spawn, list[int]]]:
    """A shell in a terminal that runs one of them in the foreground; the workers' process ids."""
    (path / "program.py").write_text(LAUNCHER if kind == "launcher" else PROGRAM)
    shell = pexpect.spawn(
        "/bin/bash",
        ["--norc", "--noprofile"],
        cwd=str(path),
        env=clean(PS1="$ "),
        encoding="utf-8",
        timeout=TIMEOUT,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # as at a terminal, even if nohup runs the tests
    )
    try:
        shell.sendline(" ".join([sys.executable, *COMMANDS[kind], "program.py"]))
        workers = [here(path, "0"), here(path, "1")]
        for _ in workers:
            shell.expect("worker . works")
        yield shell, workers
    finally:
        shell.close(force=True)


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def gone(workers: list[int]) -> None:
    eventually(lambda: not any(map(lives, workers)), "workers end")


DRAINED: dict[str, set[str]] = {"launcher": set(), "run": {"drained-0", "drained-1"}, "hosts": {"drained-0", "drained-1"}}
"""A program that makes a ``Launcher`` takes no signal but Ctrl-C: it dies, and so do its workers."""


def drained(path: Path) -> set[str]:
    """What workers that got SIGTERM have written."""
    return {each.name for each in path.glob("drained-*")}


@pytest.mark.parametrize("kind", COMMANDS)
def test_control_c_ends_all_and_the_shell_is_back(tmp_path: Path, kind: str) -> None:
    with terminal(tmp_path, kind) as (shell, workers):
        shell.sendintr()
        shell.expect(r"\$ $")
        shell.sendline("echo code $?")
        shell.expect(r"code (\d+)\r")
        assert shell.match is not None and shell.match.group(1) == "130"
        gone(workers)


@pytest.mark.soak
@pytest.mark.parametrize("kind", COMMANDS)
def test_control_z_and_foreground_again_harm_nobody(tmp_path: Path, kind: str) -> None:
    with terminal(tmp_path, kind) as (shell, workers):
        shell.sendcontrol("z")
        shell.expect("Stopped")
        shell.expect(r"\$ $")
        time.sleep(1.0)
        assert all(map(lives, workers))
        shell.sendline("fg")
        shell.expect("program.py")
        time.sleep(0.5)
        assert all(map(lives, workers)) and not {"T", "t"} & set(map(state, workers))
        shell.sendintr()
        shell.expect(r"\$ $")
        gone(workers)


@pytest.mark.parametrize("kind", COMMANDS)
def test_a_terminal_that_is_closed_ends_all(tmp_path: Path, kind: str) -> None:
    with terminal(tmp_path, kind) as (shell, workers):
        os.kill(shell.pid, signal.SIGHUP)  # as sshd and terminals do; the terminal itself goes next
        shell.close(force=True)
        gone(workers)
    assert drained(tmp_path) == DRAINED[kind]


@pytest.mark.parametrize("kind", COMMANDS)
def test_a_connection_that_is_lost_ends_all(tmp_path: Path, kind: str) -> None:
    """The terminal goes first: whatever is written to it as the signal comes fails."""
    with terminal(tmp_path, kind) as (shell, workers):
        shell.close(force=True)
        gone(workers)
    assert drained(tmp_path) == DRAINED[kind]
