"""Processes that even SIGKILL does not end, until they are let go: frozen by the kernel's first freezer of cgroups.

To the rest of the system they are as those of a driver, or of a file system, that hangs: their state is D.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.basics import eventually

_ROOT = Path("/sys/fs/cgroup/freezer")

needs_freezer = pytest.mark.skipif(
    not os.access(_ROOT / "cgroup.procs", os.W_OK), reason=f"needs root, and the freezer of cgroups (v1) at {_ROOT}"
)


class Freezer:
    """A cgroup, whose processes are frozen and let go together."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def freeze(self, pid: int) -> None:
        """Returns once it does nothing any more."""
        (self.path / "cgroup.procs").write_text(str(pid))
        (self.path / "freezer.state").write_text("FROZEN")
        eventually(lambda: (self.path / "freezer.state").read_text() == "FROZEN\n", f"process {pid} to be frozen")

    def thaw(self) -> None:
        """Let all go: those that were killed end now."""
        (self.path / "freezer.state").write_text("THAWED")


@contextlib.contextmanager
def freezer() -> Iterator[Freezer]:
    """A cgroup of its own, removed at the end; what was killed in it has ended by then."""
    path = _ROOT / f"ftlib-test-{os.getpid()}"
    path.mkdir()
    made = Freezer(path)
    try:
        yield made
    finally:
        made.thaw()
        eventually(lambda: _removed(path), f"the end of all processes in {path}")


def _removed(path: Path) -> bool:
    try:
        path.rmdir()
    except OSError:  # somebody is in it still
        return False
    return True
