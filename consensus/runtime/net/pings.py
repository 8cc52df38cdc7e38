"""Pings from outside the job for a lifetime that never existed: a member answers ``Stranger``. For ``diagnosis``."""

from __future__ import annotations

import contextlib
import secrets
import select
import socket
import time
from collections.abc import Iterator

from ...errors import CodecError
from ...member import Address
from ...messages import Envelope, Message, Ping, Status, Stranger, Update
from ...view import NO_VIEW_ID
from ...wire.codec import MAX_DATAGRAM, Codec
from ...wire.envelope import Open, Sealed, Sealer
from ...wire.keys import KeyRing
from .names import Endpoint, sockaddr_address

TRIES = 4
WAIT = 0.25
_IP_RECVERR, _IPV6_RECVERR = 11, 25
"""Constants of Linux, which the socket module does not name."""


class Pings:
    """Datagrams to a member, and its answers from any address, since it may have several."""

    def __init__(self, sock: socket.socket, to: Endpoint, job: str, ring: KeyRing | None, own: str) -> None:
        self.wait = WAIT
        """Seconds for one answer."""
        self._sock, self._job, self._codec = sock, job, Codec(job)
        self._to, self._there = to.sockaddr, sockaddr_address(to.sockaddr)
        family = to.family is socket.AF_INET
        # makes "port unreachable" an error, though the socket is not connected
        sock.setsockopt(socket.IPPROTO_IP if family else socket.IPPROTO_IPV6, _IP_RECVERR if family else _IPV6_RECVERR, 1)
        self._sender = secrets.token_hex(8)
        self._home: Address = (own, int(sock.getsockname()[1]))
        self._seq = secrets.randbelow(1 << 30)
        self._sealer: Sealer = Open() if ring is None else Sealed(ring, job, self._home, known_as=lambda _address: True)

    def sealed(self, message: Message) -> bytes:
        """The packet for ``message``. Raises OSError if the member has not answered our hellos."""
        packet = self._sealer.seal(self._codec.encode(Envelope(self._job, self._sender, self._home, message)), self._there)
        if packet is None:
            raise OSError("no introduction")
        return packet

    def introduced(self) -> bool:
        """Whether we can send to the member; with a secret this first sends hellos until the member has answered one."""
        for _ in range(TRIES):
            if self._sealer.seal(b"", self._there) is not None:
                return True
            if (hello := self._sealer.hello(self._there)) is not None:
                self.send(hello)
            for _message in self._received(time.monotonic() + self.wait, once=True):
                pass
        return self._sealer.seal(b"", self._there) is not None

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
        """Send one datagram."""
        self._sock.sendto(data, self._to)

    def exchange(self, size: int = 0) -> float | None:
        """Ping until an answer arrives. Returns the seconds from question to answer, None without an answer."""
        if not self.introduced():
            return None
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

    def _received(self, deadline: float, *, once: bool = False) -> Iterator[Message]:
        """The arriving messages; ``once``: only until we are introduced."""
        while (rest := deadline - time.monotonic()) > 0:
            if select.select([self._sock], [], [], rest)[0]:
                with contextlib.suppress(CodecError):
                    opened = self._sealer.unseal(self._sock.recv(MAX_DATAGRAM), "")
                    if opened.reply is not None:
                        self.send(opened.reply)
                    if opened.packet is not None:
                        yield self._codec.decode(opened.packet).message
                    if once and opened.introduced is not None:
                        return
