"""Network namespaces, entered by name. Linux only, root only. Imports little: workers use it too."""

from __future__ import annotations

import contextlib
import ctypes
import socket
from collections.abc import Iterator
from pathlib import Path

_CLONE_NEWNET = 0x40000000
_CLONE_NEWNS = 0x00020000
_CLONE_NEWUTS = 0x04000000
_MS_BIND, _MS_REC, _MS_SLAVE = 0x1000, 0x4000, 0x80000
_NAMES = Path("/run/netns")
_FILES = Path("/etc/netns")


def enter(name: str) -> None:
    """This thread, and what it starts from now on, is in the namespace ``name``."""
    with (_NAMES / name).open() as there:
        _enter(there.fileno())


def settle(name: str) -> None:
    """This process, and what it starts, is on that host for good: with its /etc/hosts and the like, and its host name."""
    enter(name)
    libc = ctypes.CDLL(None, use_errno=True)
    _done(libc.unshare(_CLONE_NEWNS | _CLONE_NEWUTS), "unshare")
    _done(libc.mount(b"", b"/", None, _MS_SLAVE | _MS_REC, None), "mount")
    for path in (_FILES / name).glob("*"):
        _done(libc.mount(bytes(path), f"/etc/{path.name}".encode(), None, _MS_BIND, None), f"mount {path}")
    socket.sethostname(name)


@contextlib.contextmanager
def inside(name: str) -> Iterator[None]:
    """The same for a while."""
    with Path("/proc/thread-self/ns/net").open() as here:
        enter(name)
        try:
            yield
        finally:
            _enter(here.fileno())


def _enter(descriptor: int) -> None:
    _done(ctypes.CDLL(None, use_errno=True).setns(descriptor, _CLONE_NEWNET), "setns")


def _done(result: int, what: str) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), what)
