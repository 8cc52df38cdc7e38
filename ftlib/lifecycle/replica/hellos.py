"""How the processes of a replica connect to each other: who calls says which shard it is, and that it knows the job's secret.

Anybody may connect to a port. So nobody is waited for alone: all who have called are heard at once, each for a while.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import hmac
import os
import secrets
import select
import socket
import struct
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from consensus import Member, format_address, parse_address

from ...errors import GroupError
from ...frameworks import sockets

FACT, _KEY = "_mates", "_mates_key"
_HELLO = struct.Struct("<I32s")
"""Who connects: its shard, and that it knows what only members of the job know."""
LOOK = 0.1
"""Seconds between two looks whether the view is still wanted while the others are waited for."""
_HELLO_TIMEOUT = 2.0
"""Seconds from a connection until its hello is there."""
_MOST = 64
"""Connections without a hello that are kept; a further one ends the oldest."""
_PAUSE = 0.01
"""Seconds before something that has failed is tried again."""


@dataclass(slots=True)
class _Caller:
    sock: socket.socket
    deadline: float = field(default_factory=lambda: time.monotonic() + _HELLO_TIMEOUT)
    said: bytes = b""

    def receive(self) -> bool:
        """Read what is there, without waiting. Whether that is a whole hello; OSError if none can come any more."""
        try:
            more = self.sock.recv(_HELLO.size - len(self.said))
        except BlockingIOError:
            more = b""
            if time.monotonic() > self.deadline:
                raise TimeoutError("no hello in time") from None
        else:
            if not more:
                raise ConnectionAbortedError("no hello")
        self.said += more
        return len(self.said) == _HELLO.size


class HelloListener:
    """Where the mates of one process call. Used by one thread at a time."""

    def __init__(self, host: str, end: int) -> None:
        """Listen on interface address ``host``. ``end``: a descriptor; once it can be read, nobody is waited for."""
        self._end = end
        self._key = secrets.token_hex(16)
        self._callers: list[_Caller] = []
        self._sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
        try:
            self._sock.bind((host, 0))
            self._sock.listen(64)
        except BaseException:
            self._sock.close()
            raise
        self._sock.setblocking(False)
        _track(self._sock)
        self.facts: Mapping[str, str] = {FACT: format_address((host, self._sock.getsockname()[1])), _KEY: self._key}
        """By which mates find this process."""

    def next_caller(self, wanted: Collection[int]) -> tuple[int, socket.socket] | None:
        """One of the shards ``wanted`` that has called, with its connection; None if there was none within ``LOOK`` seconds,
        and at once if somebody else has said something.
        """
        waiting = select.poll()
        for descriptor in (self._end, self._sock.fileno(), *(caller.sock.fileno() for caller in self._callers)):
            waiting.register(descriptor, select.POLLIN)
        if self._sock.fileno() in [descriptor for descriptor, _ in waiting.poll(LOOK * 1e3)]:
            self._accept()
        for caller in self._callers.copy():
            try:
                shard = self._shard(caller.said) if caller.receive() else None
            except OSError:
                shard = -1
            if shard is None:
                continue  # the rest of its hello is to come
            self._callers.remove(caller)
            if shard in wanted:
                return shard, caller.sock
            drop(caller.sock)  # a stranger
        return None

    def close(self) -> None:
        """Listen no longer, and end what has called. Idempotent."""
        callers, self._callers = self._callers, []
        for sock in (self._sock, *(caller.sock for caller in callers)):
            drop(sock)

    def _accept(self) -> None:
        try:
            sock, _ = self._sock.accept()
        except BlockingIOError:  # it has gone again
            return
        except OSError:  # too many open files, say
            time.sleep(_PAUSE)
            return
        sock.setblocking(False)
        _track(sock)
        self._callers.append(_Caller(sock))
        if len(self._callers) > _MOST:
            drop(self._callers.pop(0).sock)

    def _shard(self, said: bytes) -> int:
        """The shard that has said it; -1 for who does not know the key."""
        shard, proof = _HELLO.unpack(said)
        return shard if hmac.compare_digest(proof, _vouch(self._key, shard)) else -1


def call(member: Member, shard: int, check: Callable[[str], None]) -> socket.socket:
    """Connect to ``member``, and say that this is ``shard``. GroupError if it cannot be called.

    ``check``: called now and then, with what is to be said once the time is up; raises what ends this.
    """
    where, key = member.fact(FACT), member.fact(_KEY)
    if where is None or key is None:
        raise GroupError(f"{member} says nowhere how its mates reach it: run one release everywhere")
    address, hello = parse_address(where), _HELLO.pack(shard, _vouch(key, shard))
    silent = f"{member} does not answer its mates at {where}"
    while True:
        check(silent)
        sock = socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            _connect(sock, address, lambda: check(silent))
            sock.sendall(hello)  # there is room for so little
            _track(sock)
        except OSError:
            sock.close()
            time.sleep(_PAUSE)
        except BaseException:
            sock.close()
            raise
        else:
            return sock


def _connect(sock: socket.socket, address: tuple[str, int], check: Callable[[], None]) -> None:
    """OSError if that fails, or takes too long."""
    deadline, error = time.monotonic() + _HELLO_TIMEOUT, sock.connect_ex(address)
    if error == errno.EINPROGRESS:
        waiting = select.poll()
        waiting.register(sock, select.POLLOUT)
        while not waiting.poll(LOOK * 1e3):
            check()
            if time.monotonic() > deadline:
                raise TimeoutError("no answer in time")
        error = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if error:
        raise OSError(error, os.strerror(error))


def drop(sock: socket.socket) -> None:
    """Close it."""
    with contextlib.suppress(OSError):
        sockets.untrack([_inode(sock)])
    sock.close()


def _vouch(key: str, shard: int) -> bytes:
    return hashlib.blake2b(f"{key}|{shard}".encode(), digest_size=32).digest()


def _track(sock: socket.socket) -> None:
    """A forked child must not keep the connection open: the others would not see this process end."""
    sockets.guard_forks()
    sockets.track([_inode(sock)])


def _inode(sock: socket.socket) -> sockets.Inode:
    status = os.fstat(sock.fileno())
    return status.st_dev, status.st_ino
