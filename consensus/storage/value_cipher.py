"""The values in a shared store as bytes and back: encoded like messages, and sealed if the job has a secret.

A sealed value is ``magic | key id | nonce | AES-256-GCM``. The job and the name of the key are associated data: a value cannot
be passed off as the value of another key or another job. The key is derived from the secret by HKDF for this one purpose; the
first secret of the ring seals, all of them open. Somebody with write access to the store but no secret can still remove values
and put old ones back: a shared store is trusted to keep what it was given.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from typing import TypeVar

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from ..config import Config
from ..errors import CodecError, SealError, UnreadableError
from ..member import Member
from ..messages import Envelope, Lease, ViewRecord
from ..wire.codec import Codec
from ..wire.keys import KEY_ID, Key, KeyRing
from .store import MAX_VALUE, Unreadable, Value

_MAGIC = 0xF5
_NONCE = 12
_TAG = 16
_HEADER = struct.Struct(f">B{KEY_ID}s{_NONCE}s")

OVERHEAD = _HEADER.size + _TAG
"""Bytes that sealing adds."""

T = TypeVar("T", ViewRecord, Lease)


class ValueCipher:
    """Wraps and unwraps values for one member. ``ring``: None without a secret; it may change while the cipher is used."""

    def __init__(self, config: Config, member: Member, ring: KeyRing | None = None) -> None:
        """Wraps values in the name of ``member``."""
        self._job = config.job
        self._member = member
        self._ring = ring
        self._codec = Codec(config.job, max_members=config.max_members)
        self._ciphers: dict[bytes, AESGCM] = {}

    def wrap(self, key: str, message: ViewRecord | Lease) -> bytes:
        """The value for ``key``; raises CodecError if no member could decode it, or no store would take it."""
        packet = self._codec.encode(Envelope(self._job, self._member.id, self._member.address, message))
        if len(packet) + OVERHEAD > MAX_VALUE:
            raise CodecError(f"{key} would take {len(packet)} bytes; a store takes {MAX_VALUE}")
        if self._ring is None:
            return packet
        first, nonce = self._ring.first, os.urandom(_NONCE)
        header = _HEADER.pack(_MAGIC, first.id, nonce)
        return header + self._cipher(first).encrypt(nonce, packet, header + self._context(key))

    def unwrap(self, key: str, value: Value, kind: type[T]) -> T:
        """The message of that ``kind`` in the ``value`` of ``key``; raises UnreadableError if it is anything else."""
        if isinstance(value, Unreadable):
            raise UnreadableError(f"{key} cannot be read: {value.why}")
        try:
            message = self._codec.decode(self._opened(key, value), limit=MAX_VALUE).message
        except CodecError as error:
            raise UnreadableError(f"{key} cannot be read: {error}") from None
        if not isinstance(message, kind):
            raise UnreadableError(f"{key} holds a {type(message).__name__} where a {kind.__name__} belongs")
        return message

    def _opened(self, key: str, value: bytes) -> bytes:
        sealed = value[:1] == bytes([_MAGIC]) and len(value) >= OVERHEAD
        if self._ring is None:
            if sealed:
                raise SealError("sealed", "it is sealed and this member has no secret: give it the secret of the job")
            return value
        if not sealed:
            raise SealError("open", "it is not sealed, and members of this job have a secret: give all of them the same")
        _, key_id, nonce = _HEADER.unpack_from(value)
        found = self._ring.find(key_id)
        if found is None:
            raise SealError("unknown_key", f"it is sealed with {key_id.hex()}, a secret that this member does not have")
        try:
            return self._cipher(found).decrypt(nonce, value[_HEADER.size :], value[: _HEADER.size] + self._context(key))
        except InvalidTag:
            raise SealError("unauthentic", "it was not sealed by a member of this job for this place") from None

    def _cipher(self, key: Key) -> AESGCM:
        cipher = self._ciphers.get(key.id)
        if cipher is None:
            assert self._ring is not None
            self._ciphers = {each: known for each, known in self._ciphers.items() if self._ring.find(each) is not None}
            cipher = self._ciphers[key.id] = AESGCM(key.derive("store", context=self._job.encode()))
        return cipher

    def _context(self, key: str) -> bytes:
        return b"%s\0%s" % (self._job.encode(), key.encode())


_MOST_NAMED = 100
"""The most values named: nobody with write access to the store shall fill a member's log and memory."""


class UnreadableLog:
    """Names unreadable values of a store in the log: each only once."""

    def __init__(self, store: str, say: Callable[[str], None]) -> None:
        """``store``: its URL. ``say`` is given each line."""
        self._store = store
        self._say = say
        self._named: set[str] = set()

    def name(self, key: str, text: str) -> None:
        """Say ``text`` about ``key``, but only once for each key."""
        if key in self._named or len(self._named) > _MOST_NAMED:
            return
        self._named.add(key)
        if len(self._named) > _MOST_NAMED:
            text = f"more than {_MOST_NAMED} values cannot be read; the others are not named"
        self._say(f"the store {self._store}: {text}")
