"""Tests whether a file system has what a store relies on, in a directory of its own, with two names for one file.

FAT and exFAT, SMB shares, most object stores behind FUSE and some container volumes have no hard links, or do not count them.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

_ADVICE = "choose a directory on a local disk or NFS, or a server: redis://, etcd://"
_UNABLE = frozenset({errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.EMLINK, errno.EXDEV})
"""Errors of a call that the file system does not support; any other error may pass."""


class UnfitError(Exception):
    """The file system is unfit for a store. ``args``: one text, with the remedy."""


def probe(directory: Path) -> None:
    """Test it in ``directory``, which exists, is empty, and is left empty. Raises ``UnfitError`` and ``OSError``."""
    first, second, third = directory / "first", directory / "second", directory / "third"
    try:
        _make(first)
        _make(third)
        _try("hard links", lambda: second.hardlink_to(first))
        if first.stat().st_nlink != 2 or not first.samefile(second):
            _refuse("does not count hard links")
        try:
            second.hardlink_to(third)
        except FileExistsError:
            pass
        else:
            _refuse("lets a hard link replace a file, so two members could decide the same thing")
        _try("renaming over a file", lambda: third.replace(second))
        # (The link count of ``first`` is not checked: it may be an old one, from a cache.)
        if sorted(directory.iterdir()) != [first, second] or second.read_bytes() != b"third":
            _refuse("does not replace a file when another one is renamed to it")
        _try("fsync of a directory", lambda: sync_directory(directory))
    finally:
        for path in (first, second, third):
            path.unlink(missing_ok=True)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _make(path: Path) -> None:
    with path.open("xb") as file:
        file.write(path.name.encode())
        file.flush()
        _try("fsync", lambda: os.fsync(file.fileno()))


def _try(what: str, action: Callable[[], object]) -> None:
    try:
        action()
    except OSError as error:
        if error.errno not in _UNABLE:
            raise
        _refuse(f"is without {what} ({error.strerror})")


def _refuse(what: str) -> NoReturn:
    raise UnfitError(f"its file system {what}: {_ADVICE}")


def advice(device: int, mounts: str) -> str | None:
    """Advice on the mount options of ``device`` (``st_dev``); None if there is none to give.

    An NFS client's caches make a store not unsafe (see ``compactions``), but a member may notice changes late.

    ``mounts``: the text of ``/proc/self/mountinfo``; see nfs(5) for the options.
    """
    number = f"{os.major(device)}:{os.minor(device)}"
    for line in mounts.splitlines():
        mount, _, system = line.partition(" - ")
        fields, kind = mount.split(), system.split()
        if len(fields) < 6 or fields[2] != number or len(kind) < 3 or not kind[0].startswith("nfs"):
            continue
        options = {*fields[5].split(","), *kind[2].split(",")}
        if "nocto" in options:
            return "it is mounted with nocto, so that members may seem dead: mount it without"
        if options.isdisjoint({"noac", "lookupcache=pos", "lookupcache=none"}):
            return "its NFS client may overlook a new view for a minute: mount it with lookupcache=positive,actimeo=1"
    return None
