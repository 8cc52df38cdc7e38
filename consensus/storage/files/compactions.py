"""Compacted revisions: numbers that only rise, as names of files, without locks.

A series has a directory. Each number up to which it was compacted is an empty file in it, named by the number; the highest
counts. To compact is to make a file, so two members can do it at once without a conflict. Two things are less simple than they
look:

* A listing is not taken at one instant. While a file is removed and a higher one made, a listing may show neither, and the
  compacted revision would seem to fall. So a file is removed only when a higher one has existed for ``GRACE`` seconds, by the
  file server's own timestamps, and a listing that took longer than half of that is repeated. If a file vanishes during a
  listing, a higher file has then existed all the time, and every listing shows that one.
* An NFS client answers a listing from its cache for up to a minute, and remembers as long that a directory did not exist. But a
  change of its own makes it forget. So before each listing a file is made and removed in the directory, and a directory that
  seems to be missing is made. Safety then does not depend on mount options.
"""

from __future__ import annotations

import errno
import os
import secrets
import time
from itertools import pairwise
from pathlib import Path

from .probe import sync_directory

GRACE = 600.0
"""Seconds that a lower number is kept after a higher one."""

MOST = 10**16 - 1
"""The highest number that a file name can hold."""

_DIGITS = 16


def compacted(directory: Path) -> int:
    """The compacted revision, 0 if there was no compaction. ``directory`` must exist."""
    return max(_numbers(directory), default=0)


def compact(directory: Path, number: int) -> int:
    """Raise the compacted revision to ``number`` unless it is higher by now. Returns what it is afterwards."""
    file = os.open(_path(directory, number), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    os.close(file)
    sync_directory(directory)
    return _clean(directory)


def _clean(directory: Path) -> int:
    """Remove the numbers below one that has existed long enough. Returns the compacted revision."""
    stamp = _touch(directory)
    numbers = sorted(_numbers(directory))
    for lower, higher in pairwise(numbers):
        if stamp - _stamp(_path(directory, higher)) <= GRACE:
            break
        _path(directory, lower).unlink(missing_ok=True)
    if not numbers:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(directory))
    return numbers[-1]


def _numbers(directory: Path) -> list[int]:
    while True:
        _touch(directory)
        began = time.clock_gettime(time.CLOCK_BOOTTIME)
        names = [path.name for path in directory.iterdir()]
        if time.clock_gettime(time.CLOCK_BOOTTIME) - began < GRACE / 2:
            return [int(name) for name in names if len(name) == _DIGITS and name.isascii() and name.isdigit()]


def _touch(directory: Path) -> float:
    """Change the directory. Returns the file server's time, in seconds."""
    path = directory / f".{secrets.token_hex(8)}"
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            return os.fstat(file).st_mtime
        finally:
            os.close(file)
    finally:
        path.unlink(missing_ok=True)


def _stamp(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:  # another member cleans up, too
        return float("inf")


def _path(directory: Path, number: int) -> Path:
    return directory / f"{number:0{_DIGITS}}"
