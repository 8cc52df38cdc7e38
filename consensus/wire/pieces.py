"""Packets that are too long for one message: cut into pieces by their sender, put together by their receiver.

No message is longer than ``LARGEST`` bytes, so a member never reads more at a time. A view of ten thousand members takes half a
megabyte; a member that needs the whole view gets it in pieces (most members only get the delta). Each piece is sealed and may
be lost like any message. A packet that is sent again has the same digest, so pieces that arrived the first time need not arrive
again. The whole packet is decoded like any other; the pieces held meanwhile are bounded, for each sender and in all.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from ..errors import CodecError
from ..messages.pieces import Piece
from .codec import MAX_BYTES

LARGEST = 64 * 1024
"""Bytes of the longest message, with its envelope and seal."""

WHOLE = LARGEST - 512
"""The most bytes of a packet that is sent whole; the rest of ``LARGEST`` is room for the seal."""

PART = 60 * 1024
"""Bytes of the packet in each piece but the last."""

_OPEN = 4
"""The most incomplete packets held of one sender; the oldest is dropped first."""

_HELD = 4 * MAX_BYTES
"""The most bytes of all pieces that wait for others."""

_PATIENCE = 10.0
"""An incomplete packet is forgotten so many seconds after its latest piece."""


def cut(packet: bytes) -> tuple[Piece, ...]:
    """``packet`` in pieces; empty if it can be sent whole."""
    if len(packet) <= WHOLE:
        return ()
    digest, count = _digest(packet), -(-len(packet) // PART)
    return tuple(Piece(digest, index, count, packet[index * PART : (index + 1) * PART]) for index in range(count))


def _digest(packet: bytes) -> bytes:
    return hashlib.sha256(packet).digest()


@dataclass(slots=True)
class _Packet:
    """The parts of one packet that have arrived."""

    count: int
    received_at: float
    parts: dict[int, bytes] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return sum(map(len, self.parts.values()))


class Pieces:
    """The incomplete packets that one member has received."""

    def __init__(self) -> None:
        self._packets: dict[tuple[str, bytes], _Packet] = {}
        """By sender and digest; the packet with the latest piece comes last."""

    def __len__(self) -> int:
        return len(self._packets)

    @property
    def held(self) -> int:
        """Bytes of the pieces that wait for others."""
        return sum(packet.size for packet in self._packets.values())

    def add(self, sender: str, piece: Piece, now: float) -> bytes | None:
        """The packet if ``piece`` completes it, else None. Raises CodecError for a malformed piece."""
        last = piece.index == piece.count - 1
        if not 0 <= piece.index < piece.count <= -(-MAX_BYTES // PART) or not 0 < len(piece.part) <= PART:
            raise CodecError("a piece of no packet")
        if not last and len(piece.part) != PART:
            raise CodecError("a piece that is too short")
        key = (sender, piece.digest)
        packet = self._packets.pop(key, None)
        if packet is None or packet.count != piece.count:
            packet = _Packet(piece.count, now)
        packet.received_at = now
        packet.parts[piece.index] = piece.part
        if len(packet.parts) < packet.count:
            self._packets[key] = packet
            self._forget(sender, now)
            return None
        whole = b"".join(packet.parts[index] for index in range(packet.count))
        if _digest(whole) != piece.digest:
            raise CodecError("pieces that do not belong together")
        return whole

    def _forget(self, sender: str, now: float) -> None:
        old = [key for key, packet in self._packets.items() if now - packet.received_at > _PATIENCE]
        mine = [key for key in self._packets if key[0] == sender]
        for key in {*old, *mine[:-_OPEN]}:
            del self._packets[key]
        while self.held > _HELD:
            del self._packets[next(iter(self._packets))]
