"""The bytes of a link: what stands before a message, the bounds that are checked before anything is allocated, the seals.

A message is ``prefix | header | payload``. Prefix and header are authentic (AES-256-GCM, the prefix as associated data), the
payload where its sender wants it, in frames. The nonce is the number of the message in its direction and that of the frame in
it: so nothing can be left out, repeated or moved. Pure: no socket, no thread.
"""

from __future__ import annotations

import itertools
import struct
from collections import deque
from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

_MAGIC = b"L1"
_PREFIX = struct.Struct(">2sBBIQ")
PREFIX = _PREFIX.size
TAG = 16
"""Bytes that sealing adds to a header or frame."""
HEADER = 1 << 16
"""The most bytes of a header."""
FRAME = 1 << 18
"""Bytes of a sealed payload's frames; the last one may be shorter."""
_SEALED = 1
_NONCE = struct.Struct(">QI")


class WireError(ValueError):
    """Bytes that no link of this version sends."""


class Kind(IntEnum):
    """What a message is."""

    MEETING = 1
    """How the two ends agree on their path (see ``meeting``)."""
    MESSAGE = 2
    GOODBYE = 3
    """The last one: its sender has closed the link."""
    CONTROL = 4
    """A word beside the messages, which nobody has to ask for (see ``Link.listen``)."""


class Prefix(NamedTuple):
    """What stands in front of each message. ``header``, ``payload``: bytes, before sealing."""

    kind: Kind
    sealed: bool
    header: int
    payload: int

    def pack(self) -> bytes:
        """The bytes on the wire."""
        return _PREFIX.pack(_MAGIC, self.kind, _SEALED if self.sealed else 0, self.header, self.payload)


def read_prefix(data: bytes | memoryview, most: int) -> Prefix:
    """The prefix that ``data`` begins with; raises WireError for any other bytes, and for a payload above ``most`` bytes."""
    magic, kind, flags, header, payload = _PREFIX.unpack_from(data)
    if magic != _MAGIC:
        raise WireError("what arrived is no message of this version")
    if kind not in _KINDS or flags & ~_SEALED or header > HEADER:
        raise WireError("a message with a wrong prefix")
    if payload > most or (payload and kind != Kind.MESSAGE):
        raise WireError(f"a message of {payload} bytes is announced; max_bytes allows {most}")
    return Prefix(_KINDS[kind], bool(flags & _SEALED), header, payload)


_KINDS = {int(kind): kind for kind in Kind}


class Seal:
    """Seals, or opens, all that goes one way on one link."""

    def __init__(self, key: bytes, direction: bytes) -> None:
        """``key``: of the stream; each ``direction`` gets one of its own."""
        self._cipher = AESGCM(HKDF(SHA256(), 32, None, b"ftlib 1 link " + direction).derive(key))
        self._message = 0

    def next(self) -> int:
        """The number of the next message."""
        self._message += 1
        return self._message

    def close(self, number: int, frame: int, data: bytes | memoryview, about: bytes = b"") -> bytes:
        """``data`` sealed; ``about`` is bound to it."""
        return self._cipher.encrypt(_NONCE.pack(number, frame), data, about)

    def open(self, number: int, frame: int, sealed: bytes | memoryview, about: bytes = b"") -> bytes:
        """What was sealed; raises WireError if it was not sealed just so."""
        try:
            return self._cipher.decrypt(_NONCE.pack(number, frame), sealed, about)
        except InvalidTag:
            raise WireError("what arrived was not sealed by this peer") from None


class Cursor:
    """A place in several pieces of memory, from the first byte to the last."""

    __slots__ = ("_views", "left")

    def __init__(self, views: Iterable[memoryview]) -> None:
        """``views``: contiguous; those that are to be filled writable."""
        flat = [view if view.format == "B" and view.ndim == 1 else view.cast("B") for view in views if view.nbytes]
        self._views = deque(flat)
        self.left = sum([len(view) for view in flat])
        """Bytes to go."""

    def begin_with(self, data: bytes) -> None:
        """``data`` comes before all the rest."""
        self._views.appendleft(memoryview(data))
        self.left += len(data)

    def first(self) -> memoryview:
        """The rest of the current piece."""
        return self._views[0]

    def some(self, pieces: int) -> list[memoryview]:
        """The next pieces, at most so many."""
        return list(self._views) if len(self._views) <= pieces else list(itertools.islice(self._views, pieces))

    def advance(self, count: int) -> None:
        """So many bytes are done."""
        self.left -= count
        views = self._views
        while count:
            view = views[0]
            if count < len(view):
                views[0] = view[count:]
                return
            count -= len(view)
            views.popleft()

    def put(self, data: bytes | memoryview) -> None:
        """Fill in ``data``, which fits."""
        view = memoryview(data)
        while view:
            room = self._views[0]
            count = min(len(room), len(view))
            room[:count] = view[:count]
            self.advance(count)
            view = view[count:]

    def take(self, count: int) -> bytes | memoryview:
        """The next ``count`` bytes, or all that are left."""
        view = self._views[0]
        if len(view) >= min(count, self.left):
            piece: bytes | memoryview = view[:count]
        else:
            parts, missing = [], min(count, self.left)
            for each in self._views:
                parts.append(each[:missing])
                missing -= len(parts[-1])
                if not missing:
                    break
            piece = b"".join(parts)
        self.advance(len(piece))
        return piece
