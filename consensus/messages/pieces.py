"""What is too long for one message travels in several."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Piece:
    """Part ``index`` of ``count`` of a packet with that ``digest``, which is too long to be sent whole.

    Put together before any machine sees it: see ``consensus/wire/pieces.py``.
    """

    digest: bytes
    index: int
    count: int
    part: bytes
