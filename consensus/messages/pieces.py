"""A packet that is too long for one message is sent in several."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Piece:
    """Part ``index`` of ``count`` of the packet with that ``digest``, which is too long to be sent whole.

    The parts are put together before a machine sees the packet: see ``consensus/wire/pieces.py``.
    """

    digest: bytes
    index: int
    count: int
    part: bytes
