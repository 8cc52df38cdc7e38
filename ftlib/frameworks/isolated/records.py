"""What the training process and the child that has its group say to each other: short binary records, one a packet.

Nothing is pickled, and nothing that a record says makes its reader take more memory than the record has. Descriptors travel
beside a record (SCM_RIGHTS). Numbers are little-endian.
"""

from __future__ import annotations

import json
import struct
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Protocol, Self

import torch

from ftlib.common.threads import LONGEST
from ftlib.frameworks.base import GroupSpec, OperationKind

LIMIT = 1 << 16
"""Bytes of a record."""
_TEXT = 4000
"""Bytes of an error's text that are told; the rest is cut off."""
_PEERS = 4096
"""Ranks that an error may blame."""

KINDS = tuple(OperationKind)
REDUCTIONS = ("", "SUM", "MIN", "MAX", "PRODUCT")
DTYPES = (
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
)


class RecordError(ValueError):
    """Bytes that are no record, or not of this version."""


class Packed(Protocol):
    """Any record."""

    def pack(self) -> bytes:
        """As a record."""


@dataclass(frozen=True, slots=True)
class Run:
    """Begin an operation on ``count`` elements at byte ``offset`` of a segment."""

    CODE: ClassVar[int] = 1
    _FORM: ClassVar = struct.Struct("<BBBBiqQIQQ")

    number: int
    kind: OperationKind
    reduction: str
    dtype: torch.dtype
    peer: int
    tag: int
    segment: int
    offset: int
    count: int

    def pack(self) -> bytes:
        """As a record."""
        kind, reduction, dtype = KINDS.index(self.kind), REDUCTIONS.index(self.reduction), DTYPES.index(self.dtype)
        numbers = (self.peer, self.tag, self.number, self.segment, self.offset, self.count)
        return self._FORM.pack(self.CODE, kind, reduction, dtype, *numbers)

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        """RecordError for anything else than ``pack`` returns."""
        try:
            _, kind, reduction, dtype, peer, tag, number, segment, offset, count = cls._FORM.unpack(data)
            return cls(number, KINDS[kind], REDUCTIONS[reduction], DTYPES[dtype], peer, tag, segment, offset, count)
        except (struct.error, IndexError) as error:
            raise RecordError(f"no operation: {error}") from None


@dataclass(frozen=True, slots=True)
class Build:
    """Build the group of ``spec``, listening at an interface address."""

    CODE: ClassVar[int] = 2

    spec: GroupSpec
    host: str

    def pack(self) -> bytes:
        """As a record."""
        return bytes([self.CODE]) + json.dumps([asdict(self.spec), self.host]).encode()

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        """RecordError for anything else than ``pack`` returns."""
        values = decoded(data)
        if not isinstance(values, list) or len(values) != 2 or not isinstance(values[1], str):
            raise RecordError("no group to build: wrong types")
        return cls(spec_from(values[0]), values[1])


@dataclass(frozen=True, slots=True)
class Segment:
    """Memory of ``nbytes`` comes with this record, and is called ``number``. 0 bytes: it is not used any more."""

    CODE: ClassVar[int] = 3
    _FORM: ClassVar = struct.Struct("<BIQ")

    number: int
    nbytes: int

    def pack(self) -> bytes:
        """As a record."""
        return self._FORM.pack(self.CODE, self.number, self.nbytes)

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        """RecordError for anything else than ``pack`` returns."""
        try:
            _, number, nbytes = cls._FORM.unpack(data)
        except struct.error as error:
            raise RecordError(f"no segment: {error}") from None
        return cls(number, nbytes)


@dataclass(frozen=True, slots=True)
class Ping:
    """Are you there? The answer is the same."""

    CODE: ClassVar[int] = 4

    def pack(self) -> bytes:
        """As a record."""
        return bytes([self.CODE])

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        """RecordError for anything else than ``pack`` returns."""
        if len(data) != 1:
            raise RecordError("no ping")
        return cls()


@dataclass(frozen=True, slots=True)
class Ended:
    """An operation has physically ended, or the group is built (number 0): well where ``text`` is empty."""

    CODE: ClassVar[int] = 5
    _FORM: ClassVar = struct.Struct("<BQ?H")

    number: int
    text: str = ""
    peers: tuple[int, ...] = ()
    told: bool = True
    """Of a build that failed: whether other ranks may know its address."""

    def pack(self) -> bytes:
        """As a record."""
        peers = self.peers[:_PEERS]
        head = self._FORM.pack(self.CODE, self.number, self.told, len(peers))
        return head + struct.pack(f"<{len(peers)}I", *peers) + self.text.encode(errors="replace")[:_TEXT]

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        """RecordError for anything else than ``pack`` returns."""
        try:
            _, number, told, count = cls._FORM.unpack_from(data)
            peers = struct.unpack_from(f"<{count}I", data, cls._FORM.size)
        except struct.error as error:
            raise RecordError(f"no end of an operation: {error}") from None
        text = data[cls._FORM.size + 4 * count :]
        if count > _PEERS or len(text) > _TEXT:
            raise RecordError("no end of an operation: too long")
        return cls(number, text.decode(errors="replace"), peers, told)


@dataclass(frozen=True, slots=True)
class Close:
    """Cut the group's connections; nothing more is asked of it."""

    CODE: ClassVar[int] = 6

    def pack(self) -> bytes:
        """As a record."""
        return bytes([self.CODE])

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        """RecordError for anything else than ``pack`` returns."""
        if len(data) != 1:
            raise RecordError("no end")
        return cls()


@dataclass(frozen=True, slots=True)
class Warm:
    """There is nothing to do for a while: do once what takes long the first time."""

    CODE: ClassVar[int] = 7

    def pack(self) -> bytes:
        """As a record."""
        return bytes([self.CODE])

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        """RecordError for anything else than ``pack`` returns."""
        if len(data) != 1:
            raise RecordError("no time to warm up")
        return cls()


Record = Run | Build | Segment | Ping | Ended | Close | Warm
_BY_CODE: dict[int, type[Record]] = {each.CODE: each for each in (Run, Build, Segment, Ping, Ended, Close, Warm)}


def unpack(data: bytes) -> Record:
    """Any record. RecordError for anything else."""
    kind = _BY_CODE.get(data[0]) if data else None
    if kind is None or len(data) > LIMIT:
        raise RecordError(f"no record: {data[:16]!r}")
    return kind.unpack(data)


def decoded(data: bytes) -> Any:
    """The JSON after a record's code. RecordError if it is none."""
    try:
        return json.loads(data[1:])
    except (ValueError, RecursionError) as error:
        raise RecordError(f"no JSON: {error}") from None


def spec_from(values: Any) -> GroupSpec:
    """A spec of its fields. RecordError if it is none."""
    try:
        spec = GroupSpec(**values)
    except TypeError as error:
        raise RecordError(f"no group to build: {error}") from None
    if not _is_right(spec):
        raise RecordError("no group to build: wrong types")
    return spec


def _is_right(spec: GroupSpec) -> bool:
    """Whether all of it is what it should be: it may have come from anywhere."""
    numbers = all(type(number) is int for number in (spec.epoch, spec.rank, spec.size)) and 0 <= spec.rank < spec.size
    texts = isinstance(spec.view_id, str) and isinstance(spec.store, dict)
    stored = texts and all(isinstance(value, str) for value in spec.store.values())
    return numbers and stored and type(spec.timeout) in (int, float) and 0 <= spec.timeout <= LONGEST


def carried(dtype: torch.dtype) -> bool:
    """Whether an operation on this dtype can be told as it is; others go as bytes."""
    return dtype in DTYPES
