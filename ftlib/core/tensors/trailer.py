"""The few bytes that every call carries along: a slot per rank with its weight, samples, flags, pace and signature check.

They travel in the first operation of a call, so a healthy step needs no control message. Each byte is one element (0 to 255) of
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
"""Part of a buffer as a numpy array: torch takes longer to look at a few bytes than to reduce them."""

_SLOT = struct.Struct("<dIBB HHBHQ 4s")
SLOT_BYTES = _SLOT.size
"""Number of elements per rank in the buffer."""
_BUSY = struct.calcsize("<dIB")
"""Offset of ``RankRecord.busy`` in a slot."""

CARRIERS = frozenset(
    {
        torch.uint8,
        torch.int32,
        torch.int64,
        torch.float32,
        torch.float64,
    }
)
"""The wire dtypes (see ``dtypes``) that hold 0..255 exactly."""

NEUTRAL = {"SUM": 0, "MAX": 0, "MIN": 255, "PRODUCT": 1}
"""The neutral element, which leaves the other ranks' bytes as they are, by operation."""


class Flag(IntFlag):
    """Bits of a slot."""

    FREEZE = 1
    """Joins or leaves wait: all members freeze after this call. Sampled once per attempt, by the coordinator."""
    LEAVING = 2
    """This rank leaves after this call."""
    NONFINITE = 4
    """This rank contributed inf or nan to the previous call, which was vetoed because of it."""
    FOLLOWING = 8
    """This rank takes part in the others' call, with nothing of its own: its ``check`` has no meaning."""
    LATE = 16
    """This rank follows because its program is late: it has the state, except for these calls (see ``backup_worker``)."""
    READY = 32
    """This rank's accelerator works. If all ranks say so, the call's bulk goes by it."""
    DECLINES = 64
    """This rank follows, and wants the call to have no result at any member, whatever it is."""


class RankRecord(NamedTuple):
    """One rank's slot. ``check``: four bytes of the call's signature."""

    weight: float
    samples: int
    """Samples of the elastic sampler that this call uses up, 0 to 2**32 - 1."""
    flags: int
    check: bytes
    ahead: int = 0
    """Batches drawn from the sampler beyond this call's, 0 to 65535."""
    dropped: int = 0
    """Batches drawn before this call's that were never used, and are given back, 0 to 65535."""
    data_epoch: int = 0
    """The data epoch modulo 255, plus 1; 0: this rank draws no samples."""
    deal: int = 0
    """16 bits of a checksum of this rank's view of how the samples are dealt."""
    end: int = 0
    """Where a shard of a stream was found to end, as in ``Share.end``: below 2**64; 0: nothing was found."""
    busy: int = 0
    """How long this rank was outside of calls before this one, as ``step_times.coded``; 0: unknown. Always 0 in a record that
    was read: the values read are in ``TrailerCodec.busy``, as they differ from call to call."""

    @property
    def lacks_state(self) -> bool:
        """True if this rank follows because it has yet to get the state. Who declines, or is late, follows too, and has it."""
        return self.flags & (Flag.FOLLOWING | Flag.LATE | Flag.DECLINES) == Flag.FOLLOWING

    def pack(self) -> bytes:
        """``SLOT_BYTES`` bytes."""
        sampling = (self.ahead, self.dropped, self.data_epoch, self.deal, self.end)
        return _SLOT.pack(self.weight, self.samples, self.flags, self.busy, *sampling, self.check)

    @classmethod
    def unpack(cls, data: bytes) -> tuple[RankRecord, ...]:
        """All records in ``data``."""
        return tuple(
            cls(weight, samples, Flag(flags), check, ahead, dropped, data_epoch, deal, end, busy)
            for weight, samples, flags, busy, ahead, dropped, data_epoch, deal, end, check in _SLOT.iter_unpack(data)
        )


@dataclass(frozen=True, slots=True)
class Trailer:
    """All slots in rank order, and values derived from them, equal at every rank."""

    slots: tuple[RankRecord, ...]
    weight: float
    """Sum of the weights, added in rank order."""
    freeze: bool
    leaving: tuple[int, ...]
    """Ranks that leave after this call."""
    tainted: tuple[int, ...] = ()
    """Ranks whose contribution to the previous call held inf or nan."""
    draws: bool = False
    """True if any rank draws samples."""
    accelerated: bool = False
    """True if the accelerators of all ranks work."""
    declined: bool = False
    """True if any rank declines: then the call has no result."""

    @property
    def divisor(self) -> float:
        """The sum of the weights; 1.0 if that is 0, as the call then has no result."""
        return self.weight or 1.0

    @classmethod
    def of(cls, slots: tuple[RankRecord, ...]) -> Trailer:
        """Derive the sums from the slots."""
        total = 0.0
        for slot in slots:  # not sum(): from Python 3.12 on it rounds differently, and workers may run different versions
            total += slot.weight
        leaving = tuple(rank for rank, slot in enumerate(slots) if slot.flags & Flag.LEAVING)
        freeze = bool(leaving) or any(slot.flags & Flag.FREEZE for slot in slots)
        tainted = tuple(rank for rank, slot in enumerate(slots) if slot.flags & Flag.NONFINITE)
        ready = all(slot.flags & Flag.READY for slot in slots)
        draws = any(slot.data_epoch for slot in slots)
        declined = any(slot.flags & Flag.DECLINES for slot in slots)
        return cls(slots, total, freeze, leaving, tainted, draws, ready, declined)

    @classmethod
    def unpack(cls, data: bytes) -> Trailer:
        """The trailer in ``data``, ``SLOT_BYTES`` bytes per rank."""
        return cls.of(RankRecord.unpack(data))


class TrailerCodec:
    """Writes and reads trailers at one rank. Keeps the last one each way: in a steady run all are equal, except the pace."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        self.elements = SLOT_BYTES * size
        self.busy = bytes(size)
        """``RankRecord.busy`` of the slots that were read last, by rank."""
        self._start = rank * SLOT_BYTES
        self._said: tuple[object, ...] = ()
        """The content of ``_row`` without the pace, and its dtype and operation."""
        self._row = np.empty(0)
        self._bytes = b""
        self._trailer = Trailer((), 0.0, False, ())
        self._silence = bytes(size)

    def write(self, region: Region, slot: RankRecord, op: str) -> None:
        """Fill ``region`` (``elements`` elements of a dtype in ``CARRIERS``) with this rank's slot and neutral elements."""
        said = (slot[:-1], region.dtype, op)
        if said != self._said:
            self._said, self._row = said, np.full(self.elements, NEUTRAL[op], dtype=region.dtype)
            self._row[self._start : self._start + SLOT_BYTES] = np.frombuffer(slot.pack(), dtype=np.uint8)
        region[:] = self._row
        region[self._start + _BUSY] = slot.busy

    def read(self, region: Region) -> Trailer:
        """The slots of all ranks, from the reduced ``region``; ``busy`` is kept apart."""
        data = bytearray(region.astype(np.uint8).tobytes())
        self.busy = bytes(data[_BUSY::SLOT_BYTES])
        data[_BUSY::SLOT_BYTES] = self._silence
        if data != self._bytes:
            self._bytes = bytes(data)
            self._trailer = Trailer.of(RankRecord.unpack(self._bytes))
        return self._trailer
