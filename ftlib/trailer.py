"""The few bytes that ride on every call: a slot per rank with its weight, samples, flags, pace and signature check.

The first operation of a call carries them, so a healthy step needs no control message. Each byte is one element (0 to 255) of
the buffer's dtype: exact in every dtype that holds 0..255. Every rank writes its own slot and the operation's neutral element
elsewhere.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntFlag

import torch

__all__ = ["CARRIERS", "NEUTRAL", "SLOT_BYTES", "Flag", "Slot", "Trailer", "TrailerCodec"]

_SLOT = struct.Struct("<dIBB HHBH 4s")
SLOT_BYTES = _SLOT.size
"""Elements a rank takes in the buffer."""

CARRIERS = frozenset(
    {
        torch.uint8,
        torch.int32,
        torch.int64,
        torch.float32,
        torch.float64,
    }
)
"""Those dtypes of the wire (see ``wire``) that hold 0..255 exactly."""

NEUTRAL = {"SUM": 0, "MAX": 0, "MIN": 255, "PRODUCT": 1}
"""What leaves the other ranks' bytes as they are, by operation."""


class Flag(IntFlag):
    """Bits of a slot."""

    FREEZE = 1
    """Joins or leaves wait: everyone freezes after this call. Sampled once an attempt, by the coordinator."""
    LEAVING = 2
    """This rank leaves after this call."""
    NONFINITE = 4
    """This rank contributed inf or nan to the call before, which was vetoed because of it."""
    FOLLOWING = 8
    """This rank takes part in whatever the others do, with nothing of its own: its ``check`` says nothing."""
    LATE = 16
    """It follows since its program is late: it has the state, but for the calls that it follows (see ``deputy``)."""


@dataclass(frozen=True, slots=True)
class Slot:
    """What one rank says. ``check``: four bytes of the call's signature."""

    weight: float
    samples: int
    """Samples of the elastic sampler's that this call uses up, 0 to 2**32 - 1."""
    flags: Flag
    check: bytes
    ahead: int = 0
    """Batches drawn from the sampler beyond this call's, 0 to 65535."""
    dropped: int = 0
    """Batches drawn before this call's that were never used, and go back, 0 to 65535."""
    data_epoch: int = 0
    """The data epoch modulo 255, plus 1; 0: this rank draws no samples."""
    deal: int = 0
    """16 bits of a checksum of how this rank believes the samples to be dealt."""
    busy: int = 0
    """How long this rank was outside of calls before this one, as ``tempo.coded``; 0: unknown."""

    def pack(self) -> bytes:
        """``SLOT_BYTES`` bytes."""
        sampling = (self.ahead, self.dropped, self.data_epoch, self.deal)
        return _SLOT.pack(self.weight, self.samples, self.flags, self.busy, *sampling, self.check)

    @classmethod
    def unpack(cls, data: bytes) -> tuple[Slot, ...]:
        """As many as ``data`` holds."""
        return tuple(
            cls(weight, samples, Flag(flags), check, ahead, dropped, data_epoch, deal, busy)
            for weight, samples, flags, busy, ahead, dropped, data_epoch, deal, check in _SLOT.iter_unpack(data)
        )


@dataclass(frozen=True, slots=True)
class Trailer:
    """All slots in rank order, and what follows from them alike at every rank."""

    slots: tuple[Slot, ...]
    weight: float
    """Sum of the weights, added in rank order."""
    freeze: bool
    leaving: tuple[int, ...]
    """Ranks that leave after this call."""
    tainted: tuple[int, ...] = ()
    """Ranks whose contribution to the call before held inf or nan."""

    @classmethod
    def of(cls, slots: tuple[Slot, ...]) -> Trailer:
        """Derive the sums from the slots."""
        total = 0.0
        for slot in slots:  # not sum(): from Python 3.12 on it rounds differently, and workers may run different versions
            total += slot.weight
        leaving = tuple(rank for rank, slot in enumerate(slots) if slot.flags & Flag.LEAVING)
        freeze = bool(leaving) or any(slot.flags & Flag.FREEZE for slot in slots)
        tainted = tuple(rank for rank, slot in enumerate(slots) if slot.flags & Flag.NONFINITE)
        return cls(slots, total, freeze, leaving, tainted)

    @classmethod
    def unpack(cls, data: bytes) -> Trailer:
        """From ``SLOT_BYTES`` bytes a rank."""
        return cls.of(Slot.unpack(data))


class TrailerCodec:
    """Writes and reads trailers of one rank. Keeps the last one each way: in a steady run all are equal."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        self.elements = SLOT_BYTES * size
        self._key: tuple[bytes, torch.dtype, str] | None = None
        self._row = torch.empty(0)
        self._bytes = b""
        self._trailer = Trailer((), 0.0, False, ())

    def write(self, region: torch.Tensor, slot: Slot, op: str) -> None:
        """Fill ``region`` (``elements`` elements of a dtype in ``CARRIERS``) with the own slot and neutral elements."""
        key = (slot.pack(), region.dtype, op)
        if key != self._key:
            row = torch.full((self.elements,), NEUTRAL[op], dtype=region.dtype, device="cpu")
            start = self.rank * SLOT_BYTES
            row[start : start + SLOT_BYTES] = torch.frombuffer(bytearray(key[0]), dtype=torch.uint8)
            self._key, self._row = key, row
        region.copy_(self._row)

    def read(self, region: torch.Tensor) -> Trailer:
        """What all ranks wrote, from the reduced ``region``."""
        data = region.to(torch.uint8).numpy().tobytes()
        if data != self._bytes:
            self._bytes, self._trailer = data, Trailer.unpack(data)
        return self._trailer
