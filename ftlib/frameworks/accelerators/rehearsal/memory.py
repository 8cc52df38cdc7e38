"""Memory of the rehearsed devices that peers use: nothing but the news that somebody has freed it.

NCCL's operations read and write the memory of peers. One that frees it while an operation of a peer still runs makes that
operation end in an illegal memory access, after which the peer's process can use its device no more.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import weakref
from collections.abc import Sequence
from typing import Protocol

from ftlib.frameworks.sockets import Address

_LIMIT = 1024
"""Bytes of a view's id."""


class User(Protocol):
    """A communicator that uses memory of its peers."""

    def freed_by_peer(self) -> None:
        """A peer has freed its memory."""


class SharedMemory:
    """That of one process. Any thread."""

    def __init__(self, host: str) -> None:
        """Listen, for news of peers, on an ephemeral port of an interface."""
        self._sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM)
        self._sock.bind((host, 0))
        self.address: Address = (host, int(self._sock.getsockname()[1]))
        self._users: weakref.WeakValueDictionary[bytes, User] = weakref.WeakValueDictionary()
        self._lock = threading.Lock()
        self._closed = False
        threading.Thread(target=self._listen, name="ftlib-rehearsal-memory", daemon=True).start()

    def use(self, view_id: str, user: User) -> None:
        """``user`` wants to know if a peer frees what it has for that view."""
        with self._lock:
            self._users[view_id.encode()[:_LIMIT]] = user

    def free(self, view_id: str, peers: Sequence[Address]) -> None:
        """This process's memory for that view is freed."""
        for peer in peers:
            self._send(view_id.encode()[:_LIMIT], peer)

    def close(self) -> None:
        """Listen no longer. Idempotent."""
        self._closed = True
        self._send(b"", self.address)

    def _send(self, data: bytes, to: Address) -> None:
        with contextlib.suppress(OSError):  # nobody is there any more, or this is closed
            self._sock.sendto(data, to)

    def _listen(self) -> None:
        with self._sock:
            while not self._closed:
                data = self._sock.recv(_LIMIT)
                with self._lock:
                    user = self._users.get(data)
                if user is not None:
                    user.freed_by_peer()
                del user
