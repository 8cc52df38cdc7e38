"""A real ``ftlib run`` in a subprocess, and what tests ask of it. Every wait has a deadline."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from consensus import KeyRing
from ftlib.common.processes import TWIN
from tests.harness.basics import PATIENT, TIMEOUT, eventually
from tests.harness.nursery import Nursery
from tests.harness.program import ROOT, Program, clean

LIMIT = 150.0
SECRET = "the secret of these tests"
KEY = KeyRing([SECRET]).first

# Prepended to every script: a worker says by a file what it has done, and waits for files instead of sleeping.
PRELUDE = f"""
import os, signal, subprocess, sys, time
sys.path.insert(0, {str(ROOT)!r})
INDEX = int(os.environ["FTLIB_WORKER_INDEX"])
def write(name, text=""):
    with open(name + ".part", "w") as file:
        file.write(str(text))
    os.rename(name + ".part", name)
def wait(name):
    while not os.path.exists(name):
        time.sleep(0.005)
def first(name):
    try:
        os.close(os.open(name, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True
def announce(epoch, address="127.0.0.1:1"):
    from consensus import KeyRing
    from ftlib.lifecycle.supervisor_client import announce
    env = os.environ
    vouch = KeyRing([env["FTLIB_SECRET"]]).first.vouch
    me = dict(job=env["FTLIB_JOB"], member=f"m{{os.getpid()}}", address=address, epoch=epoch)
    assert announce(env["FTLIB_SUPERVISOR"], vouch, **me, timeout={LIMIT})
"""


def script(body: str) -> str:
    """The source of a worker."""
    return PRELUDE + body


def environment(**more: str) -> dict[str, str]:
    """Of a user with a secret. Workers that are members may be silent for long: a busy machine keeps some from running."""
    return clean(**{"FTLIB_SECRET": SECRET, "FTLIB_EXCLUDE_AFTER": str(PATIENT["exclude_after"]), **more})


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "ftlib.cli.main", *map(str, arguments)]


def cli(*arguments: object, cwd: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """Run to the end; text output."""
    return subprocess.run(
        command(*arguments),
        cwd=cwd,
        env=environment(**more),
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )


class Run:
    """One launcher under way."""

    def __init__(self, directory: Path, process: subprocess.Popen[bytes], events: Path) -> None:
        self.directory = directory
        self.process = process
        self._events = events

    def events(self, kind: str | None = None) -> list[dict[str, Any]]:
        """What the launcher has written so far, whole lines only."""
        if not self._events.exists():
            return []
        lines = self._events.read_bytes().split(b"\n")[:-1]
        return [event for event in map(json.loads, lines) if kind in (None, event["event"])]

    def wait_events(self, kind: str, count: int) -> list[dict[str, Any]]:
        """At least ``count`` events of a kind."""
        wait_until(lambda: len(self.events(kind)) >= count, f"{count} events {kind!r}, have {self.events()}")
        return self.events(kind)

    def wait_file(self, name: str) -> str:
        """The text of a file that a worker writes (by renaming: it is whole when it is there)."""
        path = self.directory / name
        wait_until(path.exists, f"the file {name}; events: {self.events()}")
        return path.read_text()

    def finish(self, code: int | None = None) -> tuple[str, str]:
        """Wait for the end; stdout and stderr."""
        out, err = self.process.communicate(timeout=LIMIT)
        texts = out.decode("utf-8"), err.decode("utf-8")
        if code is not None:
            assert self.process.returncode == code, texts
        return texts


class ForkedRun(Run):
    """The same as a fork of the fork server, and so are its workers: none of them imports torch."""

    process: Program  # type: ignore[assignment] # it has the names that are needed

    def finish(self, code: int | None = None) -> tuple[str, str]:
        ended = self.process.wait(LIMIT)
        texts = self.process.stdout, self.process.stderr
        assert code in (None, ended), texts
        return texts


def _line(directory: Path, options: tuple[object, ...], script: str, args: tuple[object, ...]) -> tuple[list[str], Path]:
    """The command that runs ``script`` (its source) with fast restarts, and the file of its events."""
    path, events = directory / "script.py", directory / "events.jsonl"
    path.write_text(script)
    return command("run", "--events", events, "--restart-delay", 0.05, *options, path, *args), events


def _inherit(ignoring: signal.Signals | None) -> None:
    """In the child: no hang-up is ignored, even if ``nohup`` runs the tests; a signal is that the caller wants ignored."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    if ignoring is not None:
        signal.signal(ignoring, signal.SIG_IGN)


@contextlib.contextmanager
def running(
    directory: Path,
    *options: object,
    script: str,
    args: tuple[object, ...] = (),
    together: bool = False,
    ignoring: signal.Signals | None = None,
    **more: str,
) -> Iterator[Run]:
    """``ftlib run`` of ``script`` (its source) with fast restarts; ended on exit, whatever happened. ``together``: ``2>&1``.
    ``ignoring``: a signal that whoever starts it has it ignore.
    """
    line, events = _line(directory, options, script, args)
    process = subprocess.Popen(
        line,
        cwd=directory,
        env=environment(**more),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if together else subprocess.PIPE,
        start_new_session=True,
        preexec_fn=lambda: _inherit(ignoring),  # noqa: PLW1509 - system calls and no more
    )
    try:
        yield Run(directory, process, events)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(2 * TWIN)
            process.send_signal(signal.SIGTERM)  # the second one kills, where it is no twin of the first
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(TIMEOUT)
            process.kill()
        process.communicate(timeout=LIMIT)


@contextlib.contextmanager
def forked(
    nursery: Nursery, directory: Path, *options: object, script: str, args: tuple[object, ...] = (), **more: str
) -> Iterator[Run]:
    """``running`` as a fork of the fork server: for whoever asks for workers that train, and not for how they start."""
    line, events = _line(directory, options, script, args)
    with Program(nursery, directory, *line[1:], env=environment(**more)) as process:
        run = ForkedRun(directory, process, events)  # type: ignore[arg-type]
        yield run


def told(nursery: Nursery, directory: Path, *arguments: object, env: dict[str, str]) -> tuple[int, str, str]:
    """What ``ftlib ARGUMENTS`` says, as a fork of the fork server: exit code, stdout and stderr. ``directory``: a new one."""
    directory.mkdir()
    with Program(nursery, directory, *command(*arguments)[1:], env=env) as program:
        code = program.wait(TIMEOUT)
        return code, program.stdout, program.stderr


def wait_until(condition: Callable[[], object], what: object) -> None:
    eventually(condition, what, LIMIT)


def wait_gone(pid: int, limit: float = TIMEOUT) -> None:
    """Until the process has ended (a zombie has)."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        poller = select.poll()
        poller.register(fd, select.POLLIN)
        assert poller.poll(limit * 1000), f"process {pid} still lives after {limit} s"
    finally:
        os.close(fd)
