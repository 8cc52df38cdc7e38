"""A message on the wire: a header, which is sealed always, and the payload. Pure; every bound is checked before memory is made.

The header is msgpack: version, sort, fields, shapes of the leaves, tree; the payload is the leaves' memory. A tree that is too
long for a header travels in front of the leaves, all of it in one piece and sealed; the leaves are views of that piece then.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import msgpack
import numpy as np
import torch

from ..common.devices import HOST
from ..links.errors import Mismatch, Refused
from .values import CARRIED, Leaf, Message, Shape, checked, memories, room_for

VERSION = 1
LONGEST = 60 << 10
"""Bytes of a header, its prefix aside."""
NAME = 4 << 10
"""The most bytes of a name or key that the program gives: a header has it beside all else."""
_ALIGN = 64


class Sort(IntEnum):
    """What a message is: who receives it must have asked for that."""

    HELLO = 0
    OBJECT = 1
    TENSOR = 2
    BROADCAST = 3
    CHANNEL = 4


NAMES = {Sort.OBJECT: "send", Sort.TENSOR: "send_tensor", Sort.BROADCAST: "broadcast"}
"""The operation that sends such a message."""


class Outgoing(NamedTuple):
    """A message as a link takes it. ``sealed``: whether its payload must be."""

    header: bytes
    payload: Sequence[memoryview]
    sealed: bool


def header_of(sort: Sort, fields: list[Any], shapes: list[Shape], tree: bytes) -> bytes:
    """The header of a message that fits into one."""
    packed: bytes = msgpack.packb([VERSION, sort, fields, shapes, tree])
    return packed


def check_name(what: str, name: str) -> None:
    """Refused if ``name`` fits into no header."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError as error:
        raise Refused(f"{what} {name!r:.80} is no text: {error.reason}") from None
    if size > NAME:
        raise Refused(f"{what} {name!r:.80} has {size} bytes; {NAME} are the most")


def outgoing(sort: Sort, fields: list[Any], message: Message) -> Outgoing:
    """The bytes of ``message``; of its leaves, their own memory. Refused if ``fields`` are too long for a header."""
    header = header_of(sort, fields, message.shapes, message.tree)
    if len(header) <= LONGEST:
        return Outgoing(header, memories(message.leaves, message.shapes), sealed=False)
    front = msgpack.packb([message.shapes, message.tree])
    parts, size = [memoryview(front)], len(front)
    for data in memories(message.leaves, message.shapes):
        gap = -size % _ALIGN
        parts += [memoryview(bytes(gap)), data] if gap else [data]
        size += gap + data.nbytes
    header = msgpack.packb([VERSION, sort, fields, len(front), size])
    if len(header) > LONGEST:
        raise Refused(f"names that need {len(header)} bytes in a header; {LONGEST} are the most: give shorter ones")
    return Outgoing(header, parts, sealed=True)


@dataclass(slots=True)
class Incoming:
    """A message that arrives: ``room`` gives the memory for it, and once that is full ``message`` is what it was."""

    sort: Sort
    fields: list[Any]
    shapes: list[Shape]
    tree: bytes
    front: int
    size: int
    leaves: list[Leaf]
    piece: np.ndarray[Any, np.dtype[np.uint8]] | None = None

    @classmethod
    def of(cls, header: bytes) -> Incoming:
        """What ``header`` announces. Mismatch if it is none of this version."""
        try:
            version, sort, fields, shapes, tree = msgpack.unpackb(header, strict_map_key=False)
            if version != VERSION:
                raise Mismatch(f"the peer speaks version {version!r:.20} of this, not {VERSION}: run one version of ftlib")
            if isinstance(shapes, int) and isinstance(tree, int) and isinstance(fields, list) and 0 <= shapes <= tree:
                return cls(Sort(sort), fields, [], b"", shapes, tree, [])
            if not (isinstance(fields, list) and isinstance(shapes, list) and isinstance(tree, bytes)):
                raise Mismatch("a header of the wrong shape")
            return cls(Sort(sort), fields, shapes, tree, 0, 0, [])
        except Mismatch:
            raise
        except Exception as error:  # noqa: BLE001 - a hostile header may raise anything
            raise Mismatch(f"a header that cannot be read: {error!r:.200}") from None

    @property
    def carried(self) -> bool:
        """Whether leaves come beside the message."""
        return any(shape[2] == CARRIED for shape in self.shapes)

    def cargo(self) -> list[Leaf]:
        """Those leaves, once there is ``room``."""
        return [leaf for leaf, shape in zip(self.leaves, self.shapes, strict=False) if shape[2] == CARRIED]

    def room(self, limit: int, into: Leaf = None, place: str = HOST) -> list[memoryview]:
        """The memory for the payload, at most ``limit`` bytes of it; that of ``into`` if the one leaf has its shape.

        ``place``: the device for leaves that come beside the message.
        """
        if self.size:
            if self.size > limit:
                raise Mismatch(f"a message of {self.size} bytes; at most {limit} are accepted here (max_bytes)")
            self.piece = np.empty(self.size, np.uint8)
            return [self.piece.data]
        if not self.shapes:
            return []
        self.leaves = room_for(self.shapes, limit, place) if into is None else [into]
        return memories(self.leaves, self.shapes)

    def message(self) -> Message:
        """What arrived, once the memory is full. Mismatch if it is none."""
        if self.piece is not None:
            piece, self.piece = self.piece, None
            try:
                self.shapes, self.tree = msgpack.unpackb(piece[: self.front].tobytes(), max_array_len=self.front)
                self.leaves = _views(piece, self.front, self.shapes)
            except Exception as error:  # noqa: BLE001 - as above
                raise Mismatch(f"a tree that cannot be read: {error!r:.200}") from None
        return Message(self.tree, self.shapes, self.leaves)


def _views(piece: np.ndarray[Any, np.dtype[np.uint8]], at: int, shapes: list[Shape]) -> list[Leaf]:
    """The leaves that lie in ``piece`` from ``at`` on."""
    leaves: list[Leaf] = []
    for shape in shapes:
        dtype, dims = checked(shape)
        size = dtype.itemsize * math.prod(dims)
        at += -at % _ALIGN if size else 0
        data = piece[at : at + size]
        if len(data) != size:
            raise Mismatch("a tree that promises more than there is")
        at += size
        if isinstance(dtype, torch.dtype):
            given = torch.from_numpy(data).view(dtype) if size else torch.empty(0, dtype=dtype, device="cpu")
            leaves.append(given.reshape(dims))
        else:
            leaves.append(data.view(dtype).reshape(dims) if size else np.empty(dims, dtype))
    return leaves
