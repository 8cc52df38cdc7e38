"""Functions and helpers for tests of the launcher: all that a test's worker does is here or in the test's own module."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ftlib import Launcher
from ftlib.launch.processes.process import descendants
from tests.harness.basics import eventually

LOCAL = {"preload": (), "quiet": True, "transport": "local"}
"""Agents are processes of this machine; nothing is imported beforehand, so that workers begin within milliseconds."""


def launcher(*hosts: str, workers: Any = 2, **more: Any) -> Launcher:
    """A launcher of local agents with these names."""
    named = "auto" if more.keys() & {"hosts_file", "discover"} else list(hosts or ("localhost",))
    return Launcher(hostnames=named, workers_per_host=workers, **{**LOCAL, **more})


class Kept(logging.Handler):
    """Keeps all records."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.kept.append(record)

    def texts(self, **wanted: Any) -> list[str]:
        """Texts of those whose attributes are as wanted, in order."""
        return [each.getMessage() for each in self.kept if all(getattr(each, key) == wanted[key] for key in wanted)]


@contextlib.contextmanager
def no_child_is_left() -> Iterator[None]:
    """Every process that the block starts has ended when it ends, or does within seconds."""
    before = descendants(os.getpid())
    yield
    eventually(lambda: not descendants(os.getpid()) - before, lambda: descendants(os.getpid()) - before)


def here(path: Path, name: str) -> int:
    """The process id that a worker wrote there (by renaming: it is whole when it is there)."""
    eventually((path / name).exists, f"the file {name}")
    return int((path / name).read_text())


def mark(path: Path, name: str, text: object = "") -> None:
    """For workers: write a file at once."""
    part = path / f".{name}.{os.getpid()}"
    part.write_text(str(text))
    part.rename(path / name)


def wait_for(path: Path) -> None:
    """For workers: wait for a file."""
    while not path.exists():
        time.sleep(0.005)


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
