"""Packets that are too long for one message: cut into pieces by their sender, put together by their receiver.

No message is longer than ``LARGEST`` bytes, so no member reads more at a time for anybody. A view of ten thousand members takes
half a megabyte; who needs it whole (most only learn what is new) gets it so. Each piece is sealed and may be lost like any
message. A packet that is sent again has the same digest, so what came the first time need not come again. What is put together
is decoded like any packet; what is kept meanwhile is bounded, for each sender and in all.
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
"""A packet of so many bytes is sent whole: there is room for a seal."""

PART = 60 * 1024
"""Bytes of the packet in each piece but the last."""

_OPEN = 4
"""So many packets of one sender are put together at a time; the oldest goes first."""

_HELD = 4 * MAX_BYTES
"""Bytes of all pieces that wait for others."""

_PATIENCE = 10.0
"""Seconds after its latest piece in which a packet is forgotten that is not whole."""


def cut(packet: bytes) -> tuple[Piece, ...]:
    """``packet`` in pieces; none where it can be sent whole."""
    if len(packet) <= WHOLE:
        return ()
    digest, count = _digest(packet), -(-len(packet) // PART)
    return tuple(Piece(digest, index, count, packet[index * PART : (index + 1) * PART]) for index in range(count))


def _digest(packet: bytes) -> bytes:
    return hashlib.sha256(packet).digest()


@dataclass(slots=True)
class _Packet:
    """What has come of one packet."""

    count: int
    heard: float
    parts: dict[int, bytes] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return sum(map(len, self.parts.values()))


class Pieces:
    """What one member has got of packets that are not whole yet."""

    def __init__(self) -> None:
        self._packets: dict[tuple[str, bytes], _Packet] = {}
        """By sender and digest; those that were heard of last come last."""

    def __len__(self) -> int:
        return len(self._packets)

    @property
    def held(self) -> int:
        """Bytes that wait for others."""
        return sum(packet.size for packet in self._packets.values())

    def add(self, sender: str, piece: Piece, now: float) -> bytes | None:
        """The packet, once this was its last piece. CodecError for a piece of no packet."""
        last = piece.index == piece.count - 1
        if not 0 <= piece.index < piece.count <= -(-MAX_BYTES // PART) or not 0 < len(piece.part) <= PART:
            raise CodecError("a piece of no packet")
        if not last and len(piece.part) != PART:
            raise CodecError("a piece that is too short")
        key = (sender, piece.digest)
        packet = self._packets.pop(key, None)
        if packet is None or packet.count != piece.count:
            packet = _Packet(piece.count, now)
        packet.heard = now
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
        old = [key for key, packet in self._packets.items() if now - packet.heard > _PATIENCE]
        mine = [key for key in self._packets if key[0] == sender]
        for key in {*old, *mine[:-_OPEN]}:
            del self._packets[key]
        while self.held > _HELD:
            del self._packets[next(iter(self._packets))]
