"""Finding and cutting the sockets of one process group among all descriptors of this process.

Gloo offers no way to interrupt an operation; shutting down its connected sockets does. Other parts of the process own
sockets too, and a descriptor number may mean another socket a moment later. So everything here works on duplicates:
duplicate first, look at the duplicate's addresses, keep it. A duplicate pins the socket: cutting it later hits no other.

Listening sockets are never cut: Gloo's loop thread answers that by terminating the process.

Addresses do not tell which of two groups in one process has made a connection to a third. Who watches it does: each Gloo device
watches its listener and its connections with one epoll descriptor, and ``/proc`` lists what that watches (``watched_with``).

Forked children (data loader workers) inherit every descriptor and would keep a dead parent's connections open, so that
its peers see nothing. With ``guard_forks`` a child lets go of all sockets tracked here.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import stat
import threading
from collections.abc import Collection, Iterable
from dataclasses import dataclass

_DESCRIPTORS = "/proc/self/fd"
_DETAILS = "/proc/self/fdinfo"
_EPOLL = "anon_inode:[eventpoll]"
_WATCHED = re.compile(r"^tfd:.* ino:([0-9a-f]+) sdev:([0-9a-f]+)$", re.MULTILINE)
_MINOR_BITS = 20
"""Of a device number as the kernel prints it there."""

Address = tuple[str, int]
"""Numeric IP (no brackets, no scope, IPv4 not mapped into IPv6) and port."""

Inode = tuple[int, int]
"""(device, inode): identity of a socket, the same for all its duplicates and in forked children."""

_scanning = threading.Lock()
_tracked: dict[Inode | Address, None] = {}
_guards: list[None] = []


@dataclass(frozen=True, slots=True)
class Link:
    """One connected socket: a duplicate that keeps it alive until ``close``."""

    inode: Inode
    local: Address
    remote: Address
    handle: socket.socket

    def deafen(self) -> None:
        """Let every holder of the socket here read its end, while what they write still goes to the peer. Idempotent."""
        with contextlib.suppress(OSError):
            self.handle.shutdown(socket.SHUT_RD)

    def cut(self) -> None:
        """Shut the connection down for every holder of the socket, here and at the peer. Idempotent."""
        with contextlib.suppress(OSError):  # the peer was first, or this is closed already
            self.handle.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Let go of the duplicate. Idempotent."""
        self.handle.close()


def supported() -> bool:
    """True if this system lets a process list its own sockets (Linux)."""
    return os.path.isdir(_DESCRIPTORS)  # noqa: PTH112 - a group is built meanwhile, and paths are slow


def snapshot() -> frozenset[Inode]:
    """Identify all sockets of this process, to distinguish later ones from them."""
    if not supported():
        return frozenset()
    return frozenset(inode for inode in map(_inode, _descriptors()) if inode is not None)


def listeners(host: str, but: frozenset[Inode] = frozenset()) -> dict[Inode, Address]:
    """Find the listening TCP sockets bound to exactly this interface address, except those in ``but``."""
    found: dict[Inode, Address] = {}
    for inode, handle in _sockets(but):
        with handle:
            local = _local(handle)
            if local is not None and local[0] == host and _listens(handle):
                found[inode] = local
    return found


def connections(local: Collection[Address], remote: Collection[Address], but: frozenset[Inode] = frozenset()) -> list[Link]:
    """Find the connected sockets with one of these local or remote addresses, except those in ``but``.

    The caller closes the links.
    """
    found: dict[Inode, Link] = {}
    for inode, handle in _sockets(but):
        link = None if inode in found else _link(inode, handle)
        if link is not None and (link.local in local or link.remote in remote):
            found[inode] = link
        else:
            handle.close()
    return list(found.values())


def watched_with(listener: Inode) -> frozenset[Inode]:
    """All files that one epoll descriptor watches together with ``listener``, it among them; none if that is not to be seen."""
    for descriptor in _descriptors() if supported() else ():
        with contextlib.suppress(OSError):  # closed since it was listed
            if os.readlink(f"{_DESCRIPTORS}/{descriptor}") != _EPOLL:  # noqa: PTH115 - see ``supported``
                continue
            with open(f"{_DETAILS}/{descriptor}", encoding="ascii") as details:  # noqa: PTH123 - see ``supported``
                found = frozenset(map(_identity, _WATCHED.finditer(details.read())))
            if listener in found:
                return found
    return frozenset()


def holders(wanted: Collection[Inode]) -> int:
    """How many descriptors of this process are one of these sockets, duplicates too."""
    return sum(_inode(descriptor) in wanted for descriptor in _descriptors()) if wanted and supported() else 0


def track(sockets: Iterable[Inode | Address]) -> None:
    """Make forked children close these sockets, and all sockets with one of these addresses at either end."""
    _tracked.update(dict.fromkeys(sockets))


def untrack(sockets: Iterable[Inode | Address]) -> None:
    """Stop tracking sockets that are closed, or about to be."""
    for entry in sockets:
        _tracked.pop(entry, None)


def guard_forks() -> None:
    """Install, once per process, the hook by which forked children close tracked sockets."""
    if _guards or not hasattr(os, "register_at_fork"):
        return
    _guards.append(None)
    # No fork while a scan holds its short-lived duplicates: they would stay open in the child.
    os.register_at_fork(before=_scanning.acquire, after_in_parent=_scanning.release, after_in_child=_let_go)


def _let_go() -> None:
    """Put the null device in place of every tracked socket of a forked child.

    Closing would free the descriptor numbers, and a destructor that still holds one would then close an unrelated file.
    """
    _scanning.release()
    if not _tracked or not supported():
        return
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for descriptor in _descriptors():
        if _is_tracked(descriptor):
            os.dup2(null, descriptor, inheritable=False)
    os.close(null)


def _is_tracked(descriptor: int) -> bool:
    found = _duplicate(descriptor)
    if found is None:
        return False
    inode, handle = found
    with handle:
        link = _link(inode, handle)
        return inode in _tracked or _local(handle) in _tracked or (link is not None and link.remote in _tracked)


def _identity(watched: re.Match[str]) -> Inode:
    number, device = (int(text, 16) for text in watched.groups())
    return os.makedev(device >> _MINOR_BITS, device & ((1 << _MINOR_BITS) - 1)), number


def _descriptors() -> list[int]:
    return list(map(int, os.listdir(_DESCRIPTORS)))  # noqa: PTH208 - see ``supported``


def _inode(descriptor: int) -> Inode | None:
    """Identify an open socket; None for anything else."""
    try:
        status = os.fstat(descriptor)
    except OSError:
        return None
    return (status.st_dev, status.st_ino) if stat.S_ISSOCK(status.st_mode) else None


def _sockets(but: frozenset[Inode]) -> list[tuple[Inode, socket.socket]]:
    """Duplicate the TCP sockets of this process; the caller closes them."""
    if not supported():
        return []
    with _scanning:
        return [found for found in (_duplicate(descriptor, but) for descriptor in _descriptors()) if found is not None]


def _duplicate(descriptor: int, but: frozenset[Inode] = frozenset()) -> tuple[Inode, socket.socket] | None:
    inode = _inode(descriptor)
    if inode is None or inode in but:
        return None
    try:
        copy = os.dup(descriptor)
    except OSError:
        return None
    inode = _inode(copy)  # of the duplicate: the number may mean another socket since
    if inode is None:
        os.close(copy)
        return None
    try:
        handle = socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        return None
    if handle.family not in {socket.AF_INET, socket.AF_INET6} or handle.type != socket.SOCK_STREAM:
        handle.close()
        return None
    return inode, handle


def _link(inode: Inode, handle: socket.socket) -> Link | None:
    if _listens(handle):
        return None
    local, remote = _local(handle), None
    with contextlib.suppress(OSError):
        remote = _address(handle.getpeername())
    return None if local is None or remote is None else Link(inode, local, remote, handle)


def _listens(handle: socket.socket) -> bool:
    return handle.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) != 0


def _local(handle: socket.socket) -> Address | None:
    try:
        return _address(handle.getsockname())
    except OSError:
        return None


def _address(raw: object) -> Address | None:
    if not isinstance(raw, tuple) or len(raw) < 2:
        return None
    host, port = str(raw[0]), int(raw[1])
    return host.removeprefix("::ffff:").partition("%")[0], port
