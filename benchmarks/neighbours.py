"""Foreign load: processes that do nothing but keep the machine busy."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

from ftlib.launch.process import die_with_parent

__all__ = ["busy_loops"]


@contextlib.contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """So many processes that each want a whole core."""
    parent = os.getpid()
    loops: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(count):
            command = [sys.executable, "-S", "-c", "while True: pass"]
            loops.append(subprocess.Popen(command, preexec_fn=lambda: die_with_parent(parent)))  # noqa: PLW1509
        yield
    finally:
        for loop in loops:
            loop.kill()
        for loop in loops:
            loop.wait()
