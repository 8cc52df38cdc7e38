"""The seam for authentication: what is done to a packet as a whole before it is sent and before it is decoded.

``codec`` never sees bytes that ``unseal`` has not let through. Today's only implementation lets everything through,
so a cluster must be on loopback or on a network that is trusted.
"""

from __future__ import annotations

from typing import Protocol

__all__ = ["Open", "Sealer"]


class Sealer(Protocol):
    """Wraps packets for the network."""

    overhead: int
    """How many bytes ``seal`` adds."""

    def seal(self, packet: bytes) -> bytes:
        """The bytes to send for ``packet``."""
        ...

    def unseal(self, sealed: bytes) -> bytes:
        """The packet in ``sealed``; CodecError where it is not authentic or was seen before."""
        ...


class Open:
    """No protection at all."""

    overhead = 0

    def seal(self, packet: bytes) -> bytes:
        """``packet`` itself."""
        return packet

    def unseal(self, sealed: bytes) -> bytes:
        """``sealed`` itself."""
        return sealed
