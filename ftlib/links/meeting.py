"""How the two ends of a stream agree on their path, in at most three short messages over the stream itself.

The end that accepted says on which kernel and in which network it is, and the name of a socket that only processes there reach.
If the other end is there too, it passes the descriptors of a ring through that socket, with the token that it learned on the
stream: so they come from this peer, and from nobody else. Wherever that is not possible the stream itself stays the path.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import socket
from pathlib import Path as File
from typing import Any

import msgpack

from .ring import DESCRIPTORS, SIZE, RingPath, make
from .wire import WireError

_VERSION = 1
_TOKEN = 32
_OTHERS = 8
"""The most connections without the token that are looked at."""
_TIMEOUT = 0.2
"""Seconds for a local socket to take a connection and a token."""


def whereabouts() -> str:
    """This process's kernel and network, "" if unknown: an abstract socket reaches as far."""
    try:
        network = File("/proc/self/ns/net").stat()
        return f"{File('/proc/sys/kernel/random/boot_id').read_text().strip()} {network.st_dev}:{network.st_ino}"
    except OSError:
        return ""


class Meeting:
    """One end. ``over`` once it is agreed; then ``path`` is the ring, or None for the stream, and ``why`` says why no ring."""

    def __init__(self, *, dialled: bool, ring: bool) -> None:
        """``ring``: whether one is wanted here."""
        self._dialled = dialled
        self._where = whereabouts() if ring else ""
        self._listener: socket.socket | None = None
        self._token = b""
        self._offered: RingPath | None = None
        self.over = False
        self.path: RingPath | None = None
        self.why = "" if self._where else "not wanted here" if not ring else "there is no /proc"

    def opening(self) -> bytes | None:
        """What this end says first."""
        if self._dialled:
            return None
        name = ""
        if self._where:
            name, self._token = f"ftlib-{secrets.token_hex(12)}", secrets.token_bytes(_TOKEN)
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            try:
                listener.bind(f"\0{name}")
                listener.listen(_OTHERS)
                listener.setblocking(False)
            except OSError as error:
                listener.close()
                name, self._where, self.why = "", "", f"no local socket: {error.strerror}"
            else:
                self._listener = listener
        return _pack({"where": self._where, "name": name, "token": self._token, "size": SIZE})

    def received(self, said: bytes) -> bytes | None:
        """What the peer says; returns the answer. Raises WireError if it makes no sense."""
        facts = _unpack(said)
        if self.over:
            raise WireError("the peer goes on to agree on what is agreed")
        if not self._dialled:
            return self._decide(facts)
        if self._offered is None:
            return self._offer(facts)
        self.over = True
        if facts.get("path") == "ring":
            self.path, self._offered = self._offered, None
        else:
            self.why = str(facts.get("why"))[:200]
            self.close()
        return None

    def _offer(self, facts: dict[str, Any]) -> bytes:
        """The dialling end: pass on a ring if the peer is near."""
        name, token = facts.get("name"), facts.get("token")
        if not self._where:
            pass
        elif not facts.get("where") or not isinstance(name, str) or not isinstance(token, bytes):
            self.why = "not wanted there"
        elif facts.get("where") != self._where:
            self.why = "the peer is on another kernel, or in another network"
        elif facts.get("size") != SIZE:
            self.why = "the peer's rings have another size"
        else:
            try:
                self._offered = _pass_on(name, token)
                return _pack({"path": "ring"})
            except OSError as error:
                self.why = f"its local socket cannot be reached: {error.strerror or error}"
        self.over = True
        return _pack({"path": "tcp", "why": self.why})

    def _decide(self, facts: dict[str, Any]) -> bytes | None:
        """The accepting end: take the ring, if there is one."""
        self.over = True
        if facts.get("path") != "ring":
            self.why = str(facts.get("why"))[:200]
            self.close()
            return None
        try:
            self.path = self._taken()
        except OSError as error:
            self.why = f"the ring could not be taken: {error.strerror or error}"
        self.close()
        return _pack({"path": "tcp", "why": self.why} if self.path is None else {"path": "ring"})

    def _taken(self) -> RingPath:
        """The ring whose descriptors came with the token."""
        if self._listener is None:
            raise OSError("none was asked for")
        for _ in range(_OTHERS):
            with self._listener.accept()[0] as connection:  # BlockingIOError: nobody with the token came
                connection.setblocking(False)
                try:
                    token, fds, _, _ = socket.recv_fds(connection, _TOKEN, DESCRIPTORS)
                except BlockingIOError:
                    continue
            for fd in fds:
                os.set_inheritable(fd, False)
            if hmac.compare_digest(token, self._token) and len(fds) == DESCRIPTORS:
                return RingPath(fds, made=False)
            for fd in fds:
                os.close(fd)
        raise OSError("others have filled the local socket")

    def descriptors(self) -> list[int]:
        """Those that a forked child must not keep."""
        return [] if self._listener is None else [self._listener.fileno()]

    def close(self) -> None:
        """Let go of what is not used. Idempotent."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        if self._offered is not None:
            self._offered.close()
            self._offered = None


def _pass_on(name: str, token: bytes) -> RingPath:
    fds = make()
    with contextlib.ExitStack() as undo:
        for fd in fds:
            undo.callback(os.close, fd)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.settimeout(_TIMEOUT)
            connection.connect(f"\0{name}")
            socket.send_fds(connection, [token], list(fds))
        undo.pop_all()
    return RingPath(fds, made=True)


def _pack(facts: dict[str, Any]) -> bytes:
    packed: bytes = msgpack.packb({"v": _VERSION, **facts})
    return packed


def _unpack(said: bytes) -> dict[str, Any]:
    try:
        facts = msgpack.unpackb(said)
    except Exception as error:  # noqa: BLE001 - msgpack has many
        raise WireError(f"what it says about its path is not readable ({type(error).__name__})") from None
    if not isinstance(facts, dict) or facts.get("v") != _VERSION:
        raise WireError("its links are of another version")
    return facts
