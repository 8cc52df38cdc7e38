"""Keeping torch from asking a name server in the middle of a recovery.

To connect to a ``TCPStore``, torch looks up the host name that belongs to the address, only to show it in messages. A name
server that drops such a question, as many do for private addresses, makes the connection take five seconds or more (glibc's
timeout). Unasked, torch writes one warning in a process's life, that "the hostname of the client socket cannot be retrieved".
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from typing import Any


class _Resolver(ctypes.Structure):
    """The beginning of glibc's ``struct __res_state`` (resolv.h), of which every thread has one."""

    nscount: int
    _fields_ = (
        ("retrans", ctypes.c_int),
        ("retry", ctypes.c_int),
        ("options", ctypes.c_ulong),
        ("nscount", ctypes.c_int),
    )

    def ask(self, servers: int) -> int:
        """From now on ask so many name servers; returns how many it were."""
        before, self.nscount = int(self.nscount), servers
        return before


def _functions() -> tuple[Any, Any] | None:
    """The functions of glibc that initialize and find a thread's resolver; None with another C library."""
    try:
        libc = ctypes.CDLL(None)
        return libc["__res_init"], ctypes.CFUNCTYPE(ctypes.POINTER(_Resolver))(("__res_state", libc))
    except (OSError, AttributeError):
        return None


_FOUND = _functions()


@contextlib.contextmanager
def no_name_server() -> Iterator[None]:
    """Until the end of the block, this thread asks no name server: what /etc/hosts does not know has no name.

    Other threads are not affected. Without glibc nothing changes.
    """
    if _FOUND is None:
        yield
        return
    begin, state = _FOUND
    begin()  # else the first question would do so, and find the name servers
    resolver = state().contents
    servers = resolver.ask(0)
    try:
        yield
    finally:
        resolver.ask(servers)
