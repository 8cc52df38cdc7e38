"""How both sides of an HTTP exchange show that they know the secret, without a clock and without sending it.

::

    GET /status      Authorization: Ftlib <client nonce, padded>
    401              WWW-Authenticate: Ftlib <challenge>                     (the server's, for this connection, once)
    GET /status      Authorization: Ftlib <client nonce>.<key id>.<token>
    200 or 204       X-Ftlib-Member, -Job, -Version, -Address, -Proof  and a sealed body

The token is a MAC over method, path, query, nonce and challenge: a recorded request is worthless on another connection or at
another member. The proof is a MAC over the same and over the answering member's identity, so nobody else can say "another
lifetime lives here". Bodies are frames of AES-256-GCM under a key of this exchange, numbered, the last one marked, bound to the
status.

Everything here is pure; ``authenticator`` and ``liveness_connection`` use it on the loop, ``tools/client`` in blocking code.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import struct
from collections.abc import Callable, Mapping
from urllib.parse import quote

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from ..config import PROTOCOL_VERSION
from ..errors import SealError
from ..member import Address, format_address
from .keys import Key, KeyRing

SCHEME = "Ftlib"
PROOF_HEADER = "x-ftlib-proof"
IDENTITY = ("x-ftlib-member", "x-ftlib-job", "x-ftlib-version", "x-ftlib-address")
"""Headers that identify an agent. Fixed for all protocol versions."""
NONCE = 16
_FRAME = struct.Struct(">I")
"""The length of a frame, in front of each frame of a body."""
PIECE = 1 << 20
"""The most bytes of data in a frame."""
_MAX_FRAME = PIECE + 16
_LAST = 1 << 31
"""Set in the length of the last frame; only the mark under the seal is authentic."""
LEAST = 300
"""Bytes of a first request: no challenge may be longer than the request for it. With aiohttp's headers it takes about 220."""


def identity(member_id: str, job: str, address: Address) -> dict[str, str]:
    """The headers by which an agent says who it is. ``member_id``: "" for who is no member."""
    values = (member_id, quote(job), str(PROTOCOL_VERSION), quote(format_address(address), safe=":[]"))
    return dict(zip(IDENTITY, values, strict=True))


def encode(data: bytes) -> str:
    """``data`` as header text."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def decode(text: str) -> bytes:
    """The inverse of ``encode``; raises SealError for other text."""
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise SealError("unauthentic", "malformed credentials") from None


def greeting(nonce: bytes) -> str:
    """The ``Authorization`` of a first request."""
    return f"{SCHEME} {encode(nonce)}".ljust(LEAST, ".")


class Exchange:
    """One request and its answer under one key; both sides use this class."""

    def __init__(self, key: Key, nonce: bytes, challenge: bytes, target: str, method: str = "GET") -> None:
        """``target``: path and query as in the request line."""
        self._key = key
        self._nonce = nonce
        self._salt = nonce + challenge
        self._target = f"{method} {target}".encode("utf-8", "surrogateescape")

    def credentials(self) -> str:
        """The ``Authorization`` of the second request."""
        return f"{SCHEME} {encode(self._nonce)}.{self._key.id.hex()}.{encode(self._mac('request'))}"

    def admits(self, token: bytes) -> bool:
        """Whether ``token`` is the token of this exchange."""
        return hmac.compare_digest(token, self._mac("request"))

    def proof(self, identity: Mapping[str, str]) -> str:
        """The MAC by which a holder of the secret answers this request. ``identity``: the headers that say who answers."""
        return encode(self._mac("answer", "\0".join(identity.get(name, "") for name in IDENTITY).encode()))

    def proves(self, answer: Mapping[str, str]) -> bool:
        """Whether the proof in the headers ``answer`` is right for the identity in them."""
        proof = answer.get(PROOF_HEADER, "")
        return hmac.compare_digest(proof.encode(errors="replace"), self.proof(answer).encode())

    def body_key(self) -> bytes:
        """The key of this exchange's body, for the side that makes the body (see ``Frames``)."""
        return self._key.derive("body", self._salt, self._target)

    def stream_key(self) -> bytes:
        """The key of the stream that this exchange opens (see ``streams``)."""
        return self._key.derive("stream", self._salt, self._target)

    def frames(self, status: int) -> Frames:
        """The frames of a body that goes with ``status``."""
        return Frames(self.body_key(), status)

    def _mac(self, purpose: str, text: bytes = b"") -> bytes:
        return hmac.digest(self._key.derive(purpose, self._salt, self._target), text, hashlib.sha256)


class Frames:
    """Seals, or opens, the frames of one body in order."""

    def __init__(self, key: bytes, status: int) -> None:
        """``key``: of the exchange; each ``status`` gets a key of its own, derived from this one."""
        self._cipher = AESGCM(HKDF(SHA256(), 32, None, b"ftlib 1 frames %d" % status).derive(key))
        self._number = 0

    def seal(self, data: bytes | memoryview, *, last: bool = False) -> bytes:
        """A frame with its length before it. At most ``PIECE`` bytes of data."""
        sealed = self._cipher.encrypt(self._next(), data, self._context(last=last))
        return _FRAME.pack(len(sealed) | (_LAST if last else 0)) + sealed

    def whole(self, body: bytes) -> bytes:
        """A whole body in frames."""
        pieces = [self.seal(body[start : start + PIECE]) for start in range(0, len(body), PIECE)]
        return b"".join([*pieces, self.seal(b"", last=True)])

    def open(self, sealed: bytes, *, last: bool) -> bytes:
        """The data of a frame (``sealed``: without its length); raises SealError if it is not the next frame, or if the mark of
        the last frame is not ``last``.
        """
        try:
            return self._cipher.decrypt(self._next(), sealed, self._context(last=last))
        except InvalidTag:
            raise SealError("unauthentic", "a part of the answer is not authentic") from None

    def read(self, read: Callable[[int], bytes]) -> tuple[bytes, bool]:
        """The next frame's data, and whether it is the last. ``read(count)``: exactly so many bytes, fewer at the end.

        Raises SealError if the body is forged, EOFError if it breaks off.
        """
        head = read(_FRAME.size)
        if len(head) != _FRAME.size:
            raise EOFError("the answer breaks off")
        (size,) = _FRAME.unpack(head)
        last = bool(size & _LAST)
        size &= ~_LAST
        if not 16 <= size <= _MAX_FRAME:
            raise SealError("unauthentic", "a part of the answer has a wrong length")
        sealed = read(size)
        if len(sealed) != size:
            raise EOFError("the answer breaks off")
        return self.open(sealed, last=last), last

    def _next(self) -> bytes:
        self._number += 1
        return self._number.to_bytes(12, "big")

    def _context(self, *, last: bool) -> bytes:
        return b"%d" % last


def exchange_of(ring: KeyRing, text: str, challenge: bytes, target: str, method: str = "GET") -> Exchange:
    """The exchange to which the credentials ``text`` (without the scheme) belong; raises SealError if they are wrong."""
    nonce, _, rest = text.partition(".")
    key_id, _, token = rest.partition(".")
    try:
        key = ring.find(bytes.fromhex(key_id))
    except ValueError:
        key = None
    found = decode(nonce)
    if key is None or len(found) != NONCE:
        raise SealError("unauthentic", "signed with another secret")
    exchange = Exchange(key, found, challenge, target, method)
    if not exchange.admits(decode(token)):
        raise SealError("unauthentic", "a wrong token")
    return exchange


def fresh_nonce() -> bytes:
    """A random nonce for one exchange."""
    return os.urandom(NONCE)
