"""Pings for a lifetime that there never was, from outside of any job: a member answers ``Stranger``. For ``diagnosis``."""

from __future__ import annotations

import contextlib
import secrets
import select
import socket
import time
from collections.abc import Iterator

from ..codec import MAX_DATAGRAM, Codec
from ..envelope import Sealer
from ..errors import CodecError
from ..member import Address
from ..messages import Envelope, Message, Ping, Status, Stranger, Update
from ..view import NO_VIEW_ID
from .names import Endpoint

__all__ = ["TRIES", "WAIT", "Pings"]

TRIES = 4
WAIT = 0.25
_IP_RECVERR, _IPV6_RECVERR = 11, 25
"""Of Linux; the socket module does not name them."""


class Pings:
    """Datagrams to a member, and its answers; from wherever, since it may have several addresses."""

    def __init__(self, sock: socket.socket, to: Endpoint, job: str, sealer: Sealer, own: str) -> None:
        self.wait = WAIT
        """Seconds for one answer."""
        self._sock, self._job, self._codec, self._sealer = sock, job, Codec(job), sealer
        self._to = to.sockaddr
        family = to.family is socket.AF_INET
        # "port unreachable" is an error then, though the socket is not connected
        sock.setsockopt(socket.IPPROTO_IP if family else socket.IPPROTO_IPV6, _IP_RECVERR if family else _IPV6_RECVERR, 1)
        self._sender = secrets.token_hex(8)
        self._home: Address = (own, int(sock.getsockname()[1]))
        self._seq = secrets.randbelow(1 << 30)

    def sealed(self, message: Message) -> bytes:
        """The packet for ``message``."""
        return self._sealer.seal(self._codec.encode(Envelope(self._job, self._sender, self._home, message)))

    def ping(self, size: int = 0) -> tuple[int, bytes]:
        """The number and the bytes of a new ping, padded to ``size`` bytes if it has fewer."""
        self._seq += 1
        target, nobody = secrets.token_hex(8), secrets.token_hex(8)
        padding = 0
        while True:
            rumour = (Update(nobody, Status.ALIVE, 0, "x" * padding),) if size else ()
            data = self.sealed(Ping(self._seq, target, 0, NO_VIEW_ID, rumour))
            missing = size - len(data)
            if missing <= 0:
                return self._seq, data
            padding += max(1, missing - 2)  # a longer text may take two bytes more for its length

    def send(self, data: bytes) -> None:
        """One datagram."""
        self._sock.sendto(data, self._to)

    def exchange(self, size: int = 0) -> float | None:
        """Ping until it is answered; seconds from question to answer, None where it never is."""
        asked: set[int] = set()
        for _ in range(TRIES):
            seq, data = self.ping(size)
            asked.add(seq)
            began = time.monotonic()
            self.send(data)
            if self.answered(asked, began + self.wait):
                return time.monotonic() - began
        return None

    def answered(self, asked: set[int], deadline: float) -> bool:
        """Whether one of these pings is answered in time."""
        return any(isinstance(message, Stranger) and message.seq in asked for message in self._received(deadline))

    def _received(self, deadline: float) -> Iterator[Message]:
        while (rest := deadline - time.monotonic()) > 0:
            if select.select([self._sock], [], [], rest)[0]:
                with contextlib.suppress(CodecError):
                    yield self._codec.decode(self._sealer.unseal(self._sock.recv(MAX_DATAGRAM))).message
