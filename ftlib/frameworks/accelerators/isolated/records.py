"""What the training process and the child that has its communicator say to each other.

As in ``ftlib.frameworks.isolated.records``, some of which are used here, too: short binary records, one a packet.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Self

import torch

from ftlib.errors import GroupError
from ftlib.frameworks.base import GroupSpec, OperationKind
from ftlib.frameworks.isolated.records import (
    DTYPES,
    KINDS,
    LIMIT,
    REDUCTIONS,
    Ended,
    Packed,
    Ping,
    RecordError,
    Segment,
    decoded,
    spec_from,
)

HANDLE = 64
"""Bytes of a ``cudaIpcMemHandle_t`` (``CUDA_IPC_HANDLE_SIZE`` of driver_types.h)."""
PIECES = 2000
"""Operations in a record."""
_FACTS = 1 << 13
"""Bytes of one rank's facts at most."""
_REASON = 600
"""Characters of the reason for having none."""
_TEXT = 4000
"""Bytes of a text that are told; the rest is cut off."""

Facts = Mapping[str, str]
"""Of one rank: see ``Accelerator.facts``."""


@dataclass(frozen=True, slots=True)
class Start:
    """Start the accelerator on an interface address; with tensors on the device ``place``, empty where there is no choice."""

    CODE: ClassVar[int] = 20

    host: str
    place: str

    def pack(self) -> bytes:
        """As a record."""
        return _json(self.CODE, [self.host, self.place])

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        """RecordError for anything else than ``pack`` returns."""
        return cls(*_texts(decoded(data), 2))


@dataclass(frozen=True, slots=True)
class Started:
    """The accelerator has started: well where ``text`` is empty. ``mistaken``: because of its configuration."""

    CODE: ClassVar[int] = 21

    text: str = ""
    mistaken: bool = False

    def pack(self) -> bytes:
        """As a record."""
        return bytes([self.CODE, self.mistaken]) + _cut(self.text)

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        """RecordError for anything else than ``pack`` returns."""
        if len(data) < 2 or data[1] > 1:
            raise RecordError("no start")
        return cls(_text(data[2:]), bool(data[1]))


@dataclass(frozen=True, slots=True)
class _OfView:
    """What is about the view of ``spec``, and says no more."""

    CODE: ClassVar[int]

    spec: GroupSpec

    def pack(self) -> bytes:
        """As a record."""
        return _json(self.CODE, asdict(self.spec))

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        """RecordError for anything else than ``pack`` returns."""
        return cls(spec_from(decoded(data)))


class Ask(_OfView):
    """Ask for this rank's facts for that view."""

    __slots__ = ()
    CODE = 22


@dataclass(frozen=True, slots=True)
class ChildFacts:
    """The facts asked for; or why there are none."""

    CODE: ClassVar[int] = 23

    facts: Facts
    text: str = ""

    def pack(self) -> bytes:
        """As a record. Facts that are too long are none."""
        data = _json(self.CODE, [dict(self.facts), self.text[:_REASON]])
        return data if len(data) <= _FACTS else _json(self.CODE, [{}, "the accelerator's facts are too long"])

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        """RecordError for anything else than ``pack`` returns."""
        values = decoded(data)
        if len(data) > _FACTS or not isinstance(values, list) or len(values) != 2 or not isinstance(values[1], str):
            raise RecordError("no facts")
        return cls(_facts(values[0]), values[1])


@dataclass(frozen=True, slots=True)
class Told:
    """Facts of the next ranks: for the communicator that is to be begun."""

    CODE: ClassVar[int] = 24

    facts: tuple[Facts, ...]

    def pack(self) -> bytes:
        """As a record."""
        return _json(self.CODE, [dict(each) for each in self.facts])

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        """RecordError for anything else than ``pack`` returns."""
        values = decoded(data)
        if not isinstance(values, list):
            raise RecordError("no facts of ranks")
        return cls(tuple(_facts(each) for each in values))


class Begin(_OfView):
    """Begin to build a communicator with the ranks whose facts were told."""

    __slots__ = ()
    CODE = 25


@dataclass(frozen=True, slots=True)
class Decided:
    """The communicator is ready, or will never be for the reason ``text``."""

    CODE: ClassVar[int] = 26

    text: str = ""

    def pack(self) -> bytes:
        """As a record."""
        return bytes([self.CODE]) + _cut(self.text)

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        """RecordError for anything else than ``pack`` returns."""
        return cls(_text(data[1:]))


@dataclass(frozen=True, slots=True)
class Piece:
    """One operation of a launch, on ``count`` elements at byte ``offset`` of shared memory."""

    kind: OperationKind
    reduction: str
    dtype: torch.dtype
    peer: int
    segment: int
    offset: int
    count: int


@dataclass(frozen=True, slots=True)
class Launch:
    """Launch these operations, in this order. Their end is told with the same number."""

    CODE: ClassVar[int] = 27
    _HEAD: ClassVar = struct.Struct("<BQH")
    _PIECE: ClassVar = struct.Struct("<BBBiIQQ")

    number: int
    pieces: tuple[Piece, ...]

    def pack(self) -> bytes:
        """As a record."""
        parts = [self._HEAD.pack(self.CODE, self.number, len(self.pieces))]
        for piece in self.pieces:
            codes = KINDS.index(piece.kind), REDUCTIONS.index(piece.reduction), DTYPES.index(piece.dtype)
            parts.append(self._PIECE.pack(*codes, piece.peer, piece.segment, piece.offset, piece.count))
        return b"".join(parts)

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        """RecordError for anything else than ``pack`` returns."""
        try:
            _, number, count = cls._HEAD.unpack_from(data)
            if count > PIECES or len(data) != cls._HEAD.size + count * cls._PIECE.size:
                raise RecordError("no launch: wrong length")
            pieces = [cls._piece(*values) for values in cls._PIECE.iter_unpack(data[cls._HEAD.size :])]
        except (struct.error, IndexError) as error:
            raise RecordError(f"no launch: {error}") from None
        return cls(number, tuple(pieces))

    @staticmethod
    def _piece(kind: int, reduction: int, dtype: int, peer: int, segment: int, offset: int, count: int) -> Piece:
        return Piece(KINDS[kind], REDUCTIONS[reduction], DTYPES[dtype], peer, segment, offset, count)


@dataclass(frozen=True, slots=True)
class Trouble:
    """The communicator has failed; its operations may still be under way."""

    CODE: ClassVar[int] = 28

    text: str

    def pack(self) -> bytes:
        """As a record."""
        return bytes([self.CODE]) + _cut(self.text or "it has failed")

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        """RecordError for anything else than ``pack`` returns."""
        if len(data) < 2:
            raise RecordError("no trouble")
        return cls(_text(data[1:]))


@dataclass(frozen=True, slots=True)
class Block:
    """Memory of ``nbytes`` on a device, to be opened by its handle, is called ``number``."""

    CODE: ClassVar[int] = 29
    _FORM: ClassVar = struct.Struct(f"<BIiQ{HANDLE}s")

    number: int
    device: int
    nbytes: int
    handle: bytes

    def pack(self) -> bytes:
        """As a record."""
        return self._FORM.pack(self.CODE, self.number, self.device, self.nbytes, self.handle)

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        """RecordError for anything else than ``pack`` returns."""
        try:
            _, number, device, nbytes, handle = cls._FORM.unpack(data)
        except struct.error as error:
            raise RecordError(f"no memory of a device: {error}") from None
        return cls(number, device, nbytes, handle)


Record = Start | Started | Ask | ChildFacts | Told | Begin | Decided | Launch | Trouble | Block | Segment | Ping | Ended
_KINDS: tuple[type[Record], ...] = (
    *(Start, Started, Ask, ChildFacts, Told, Begin, Decided, Launch, Trouble, Block),
    *(Segment, Ping, Ended),
)
_BY_CODE: dict[int, type[Record]] = {each.CODE: each for each in _KINDS}


def unpack(data: bytes) -> Record:
    """Any record. RecordError for anything else."""
    kind = _BY_CODE.get(data[0]) if data else None
    if kind is None or len(data) > LIMIT:
        raise RecordError(f"no record: {data[:16]!r}")
    return kind.unpack(data)


def telling(facts: Sequence[Facts]) -> Iterator[Packed]:
    """The facts of all ranks, in as few records as they need. GroupError if those of one rank are too long."""
    room, few = LIMIT - 16, list[Facts]()
    for rank, each in enumerate(facts):
        size = len(json.dumps(dict(each)).encode()) + 2
        if size > _FACTS:
            raise GroupError(f"the facts of rank {rank} have {size} bytes, {_FACTS} at most can be told")
        if size > room:
            yield Told(tuple(few))
            room, few = LIMIT - 16, []
        room -= size
        few.append(each)
    yield Told(tuple(few))


def _json(code: int, values: Any) -> bytes:
    return bytes([code]) + json.dumps(values).encode()


def _cut(text: str) -> bytes:
    """Without half a character at its end."""
    return text.encode(errors="replace")[:_TEXT].decode(errors="ignore").encode()


def _text(data: bytes) -> str:
    if len(data) > _TEXT:
        raise RecordError("a text is too long")
    try:
        return data.decode()
    except UnicodeDecodeError as error:  # what it says may be that all is well
        raise RecordError(f"no text: {error}") from None


def _texts(values: Any, count: int) -> list[str]:
    if not isinstance(values, list) or len(values) != count or not all(isinstance(each, str) for each in values):
        raise RecordError("no texts")
    return values


def _facts(values: Any) -> Facts:
    if not isinstance(values, dict) or not all(isinstance(each, str) for each in values.values()):
        raise RecordError("no facts of a rank")
    return values
