"""Accepts connections at an agent's TCP port, and holds them until they have authenticated: a few at a time, and none for long.

A client with the secret authenticates within milliseconds. Until then each is a *stranger*, wherever it comes from: members may
share an address with an attacker. A stranger has ``PATIENCE`` seconds from the moment it was accepted, however much or little
it sends. There are few places for strangers; if all are taken, a new one gets the place of the one that has been silent
longest. So ten thousand connections that send nothing, or a byte a second, take no place from a member: members have places of
their own (see ``authenticator``), and a new connection is always read next.

The data of a stranger is collected here, in plain sockets, until it is a whole head of a request. Only then does HTTP get the
connection, where it costs twenty times as much. What can be refused by its head alone never gets there.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
from collections import OrderedDict
from collections.abc import Callable, Iterable
from enum import Enum
from socket import SHUT_WR, socket

from .fork import release_in_children

PATIENCE = 10.0
"""Seconds from accepting a connection to its authentication. A client on a busy host may need seconds for its few lines. More
patience costs nothing: places are few, and whoever comes gets that of the oldest silent one.
"""

_STRANGERS = 256
"""The places for strangers, at most an eighth of the descriptors that this process may have."""
_AT_ONCE = 64
"""The most connections accepted in one turn of the loop."""
_HEAD = 4096
"""Bytes after which HTTP gets a request that is not whole yet; HTTP has limits of its own."""
_SLEPT = 0.25
"""Seconds of delay after which this process counts as having slept, without reading the strangers: they get that time again."""
_AGAIN = 0.1
"""Seconds until the next try to accept when no descriptor is left."""


def places(most: int, share: int) -> int:
    """``most``, or 1/``share`` of the descriptors that this process may have if that is less; at least 8."""
    return max(8, min(most, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // share))


class StrangerStage(Enum):
    """How much a stranger has sent so far."""

    SILENT = "no whole request"
    ASKING = "a request, and HTTP has it"
    REFUSED = "a request that has been refused: what else it sends is dropped"
    READING = "the beginning of a message that is worth reading: HTTP limits how many, and how long"


class UnprovenPeer:
    """One connection that has not authenticated."""

    __slots__ = ("end", "said", "sock", "stage", "until")

    def __init__(self, sock: socket, until: float) -> None:
        """``until``: when its time is up."""
        self.sock: socket | None = sock
        """None once HTTP has it."""
        self.said = bytearray()
        self.stage = StrangerStage.SILENT
        self.until = until
        self.end: Callable[[], None] = sock.close
        """Closes the connection."""


Enter = Callable[[socket, UnprovenPeer], None]
"""Gives a stranger's connection and its data to HTTP, which sets its ``end``."""
Refuse = Callable[[bytes], bytes | None]
"""The whole answer to a request that needs no HTTP to be refused, by its head; None for all others."""


class Door:
    """Accepts the connections of one listening socket, which it owns. Everything here runs on the loop's thread."""

    def __init__(self, sock: socket, enter: Enter, refuse: Refuse = lambda _head: None) -> None:
        """``enter``: gets each stranger that has sent a whole head, unless ``refuse`` has an answer to it."""
        self._sock = sock
        self._enter = enter
        self._refuse = refuse
        self._most = places(_STRANGERS, 8)
        self._strangers = strangers = OrderedDict[UnprovenPeer, None]()
        """The strangers, the oldest first."""
        self._timer: asyncio.TimerHandle | None = None
        self._open = False
        self.closed = 0
        """The number of strangers whose connections were closed here."""
        release_in_children(self, lambda: [each.sock.fileno() for each in strangers if each.sock is not None])

    def __len__(self) -> int:
        return len(self._strangers)

    def __contains__(self, stranger: UnprovenPeer) -> bool:
        return stranger in self._strangers

    def open(self, accepted: Iterable[socket] = ()) -> None:
        """Accept from now on; ``accepted``: connections accepted before."""
        self._open = True
        self._sock.setblocking(False)
        asyncio.get_running_loop().add_reader(self._sock.fileno(), self._accept)
        for sock in accepted:
            self._admit(sock)

    def close(self) -> None:
        """Accept no more, and close the connections of all strangers. Idempotent."""
        if not self._open:
            return
        self._open = False
        asyncio.get_running_loop().remove_reader(self._sock.fileno())
        self._sock.close()
        if self._timer is not None:
            self._timer.cancel()
        for stranger in list(self._strangers):
            self._hang_up(stranger)

    def proved(self, stranger: UnprovenPeer) -> None:
        """``stranger`` has authenticated: from now on its server decides how long it stays."""
        self._strangers.pop(stranger, None)

    gone = proved
    """``stranger`` has closed its end."""

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                sock, _ = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:  # no descriptor is left, or no memory
                if not self._make_room():
                    loop = asyncio.get_running_loop()
                    loop.remove_reader(self._sock.fileno())
                    loop.call_later(_AGAIN, self._resume)
                return
            self._admit(sock)

    def _resume(self) -> None:
        if self._open:
            asyncio.get_running_loop().add_reader(self._sock.fileno(), self._accept)

    def _admit(self, sock: socket) -> None:
        loop = asyncio.get_running_loop()
        sock.setblocking(False)
        stranger = UnprovenPeer(sock, loop.time() + PATIENCE)
        if len(self._strangers) >= self._most:
            self._make_room()
        self._strangers[stranger] = None
        if self._timer is None:
            self._timer = loop.call_at(stranger.until, self._expire, stranger.until)
        self._hear(stranger)  # most have sent their request by now
        if stranger.sock is not None and stranger in self._strangers:
            loop.add_reader(sock.fileno(), self._hear, stranger)

    def _make_room(self) -> bool:
        """Close the oldest silent or refused connection, else the oldest that is not READING. Returns whether there was one."""
        idle = (StrangerStage.SILENT, StrangerStage.REFUSED)
        found = next((each for each in self._strangers if each.stage in idle), None)
        found = found or next((each for each in self._strangers if each.stage is StrangerStage.ASKING), None)
        if found is not None:
            self._hang_up(found)
        return found is not None

    def _hear(self, stranger: UnprovenPeer) -> None:
        sock = stranger.sock
        assert sock is not None
        try:
            data = sock.recv(_HEAD)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if not data:
            self._hang_up(stranger)
            return
        if stranger.stage is StrangerStage.REFUSED:
            return
        stranger.said += data
        whole = b"\r\n\r\n" in stranger.said
        if whole and (answer := self._refuse(bytes(stranger.said))) is not None:
            self._turn_away(stranger, sock, answer)
        elif whole or len(stranger.said) >= _HEAD:
            asyncio.get_running_loop().remove_reader(sock.fileno())
            stranger.sock, stranger.stage, stranger.end = None, StrangerStage.ASKING, _later
            self._enter(sock, stranger)

    def _turn_away(self, stranger: UnprovenPeer, sock: socket, answer: bytes) -> None:
        """Send the answer. Where more may come after the head the connection stays, else the answer might be lost with it."""
        with contextlib.suppress(OSError):
            sock.send(answer)
            sock.shutdown(SHUT_WR)
        if stranger.said.startswith(b"GET ") and stranger.said.endswith(b"\r\n\r\n"):
            self._hang_up(stranger)
        else:
            stranger.stage = StrangerStage.REFUSED
            stranger.said.clear()

    def _expire(self, planned: float) -> None:
        """Close the connections whose time is up."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        slept = now - planned if now - planned > _SLEPT else 0.0
        self._timer = None
        for stranger in list(self._strangers):
            stranger.until += slept
            if stranger.until <= now and stranger.stage is not StrangerStage.READING:
                self._hang_up(stranger)
        due = min((each.until for each in self._strangers if each.stage is not StrangerStage.READING), default=None)
        if due is None and self._strangers:
            due = now + PATIENCE
        if due is not None:
            self._timer = loop.call_at(due, self._expire, due)

    def _hang_up(self, stranger: UnprovenPeer) -> None:
        self._strangers.pop(stranger, None)
        self.closed += 1
        if stranger.sock is not None:
            asyncio.get_running_loop().remove_reader(stranger.sock.fileno())
        with contextlib.suppress(OSError):
            stranger.end()


def _later() -> None:
    """Nothing to close: HTTP, which is about to get the connection, checks then whether the stranger is still here."""
