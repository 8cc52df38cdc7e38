"""The few bytes that ride on every call: a slot per rank with its weight, samples, flags, pace and signature check.

The first operation of a call carries them, so a healthy step needs no control message. Each byte is one element (0 to 255) of
the buffer's dtype: exact in every dtype that holds 0..255. Every rank writes its own slot and the operation's neutral element
elsewhere.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntFlag
from typing import Any, NamedTuple

import numpy as np
import torch

Region = np.ndarray[Any, Any]
"""Of a buffer, as numpy sees it: torch takes longer to look at a few bytes than to reduce them."""

_SLOT = struct.Struct("<dIBB HHBH 4s")
SLOT_BYTES = _SLOT.size
"""Elements a rank takes in the buffer."""
_BUSY = struct.calcsize("<dIB")
"""Where ``RankRecord.busy`` is in a slot."""

CARRIERS = frozenset(
    {
        torch.uint8,
        torch.int32,
        torch.int64,
        torch.float32,
        torch.float64,
    }
)
"""Those dtypes of the wire (see ``dtypes``) that hold 0..255 exactly."""

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


class RankRecord(NamedTuple):
    """What one rank says. ``check``: four bytes of the call's signature."""

    weight: float
    samples: int
    """Samples of the elastic sampler's that this call uses up, 0 to 2**32 - 1."""
    flags: int
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
    """How long this rank was outside of calls before this one, as ``step_times.coded``; 0: unknown. In what was read 0 always:
    that is in ``TrailerCodec.busy``, as it differs from call to call."""

    def pack(self) -> bytes:
        """``SLOT_BYTES`` bytes."""
        sampling = (self.ahead, self.dropped, self.data_epoch, self.deal)
        return _SLOT.pack(self.weight, self.samples, self.flags, self.busy, *sampling, self.check)

    @classmethod
    def unpack(cls, data: bytes) -> tuple[RankRecord, ...]:
        """As many as ``data`` holds."""
        return tuple(
            cls(weight, samples, Flag(flags), check, ahead, dropped, data_epoch, deal, busy)
            for weight, samples, flags, busy, ahead, dropped, data_epoch, deal, check in _SLOT.iter_unpack(data)
        )


@dataclass(frozen=True, slots=True)
class Trailer:
    """All slots in rank order, and what follows from them alike at every rank."""

    slots: tuple[RankRecord, ...]
    weight: float
    """Sum of the weights, added in rank order."""
    freeze: bool
    leaving: tuple[int, ...]
    """Ranks that leave after this call."""
    tainted: tuple[int, ...] = ()
    """Ranks whose contribution to the call before held inf or nan."""
    draws: bool = False
    """Whether any rank draws samples."""

    @classmethod
    def of(cls, slots: tuple[RankRecord, ...]) -> Trailer:
        """Derive the sums from the slots."""
        total = 0.0
        for slot in slots:  # not sum(): from Python 3.12 on it rounds differently, and workers may run different versions
            total += slot.weight
        leaving = tuple(rank for rank, slot in enumerate(slots) if slot.flags & Flag.LEAVING)
        freeze = bool(leaving) or any(slot.flags & Flag.FREEZE for slot in slots)
        tainted = tuple(rank for rank, slot in enumerate(slots) if slot.flags & Flag.NONFINITE)
        return cls(slots, total, freeze, leaving, tainted, any(slot.data_epoch for slot in slots))

    @classmethod
    def unpack(cls, data: bytes) -> Trailer:
        """From ``SLOT_BYTES`` bytes a rank."""
        return cls.of(RankRecord.unpack(data))


class TrailerCodec:
    """Writes and reads trailers of one rank. Keeps the last one each way: in a steady run all are equal, but for the pace."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        self.elements = SLOT_BYTES * size
        self.busy = bytes(size)
        """What the slots that were read last say as ``RankRecord.busy``, by rank."""
        self._start = rank * SLOT_BYTES
        self._said: tuple[object, ...] = ()
        """What ``_row`` says, but for the pace, and in which dtype and operation."""
        self._row = np.empty(0)
        self._bytes = b""
        self._trailer = Trailer((), 0.0, False, ())
        self._silence = bytes(size)

    def write(self, region: Region, slot: RankRecord, op: str) -> None:
        """Fill ``region`` (``elements`` elements of a dtype in ``CARRIERS``) with the own slot and neutral elements."""
        said = (slot[:-1], region.dtype, op)
        if said != self._said:
            self._said, self._row = said, np.full(self.elements, NEUTRAL[op], dtype=region.dtype)
            self._row[self._start : self._start + SLOT_BYTES] = np.frombuffer(slot.pack(), dtype=np.uint8)
        region[:] = self._row
        region[self._start + _BUSY] = slot.busy

    def read(self, region: Region) -> Trailer:
        """What all ranks wrote, from the reduced ``region``; ``busy`` apart."""
        data = bytearray(region.astype(np.uint8).tobytes())
        self.busy = bytes(data[_BUSY::SLOT_BYTES])
        data[_BUSY::SLOT_BYTES] = self._silence
        if data != self._bytes:
            self._bytes = bytes(data)
            self._trailer = Trailer.of(RankRecord.unpack(self._bytes))
        return self._trailer
