"""How both sides of an HTTP exchange show that they know the secret, without a clock and without sending it.

::

    GET /status      Authorization: Ftlib <client nonce, padded>
    401              WWW-Authenticate: Ftlib <challenge>                     (the server's, for this connection, once)
    GET /status      Authorization: Ftlib <client nonce>.<key id>.<token>
    200 or 204       X-Ftlib-Member, -Job, -Version, -Address, -Proof  and a sealed body

The token is a MAC over method, path, query, nonce and challenge: recorded requests are worth nothing, on another connection or
at another member. The proof is a MAC over the same and over who answers, so nobody else can say "another lifetime lives here".
Bodies are frames of AES-256-GCM under a key of this exchange, numbered, the last one marked, bound to the status.

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

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from ..errors import SealError
from .keys import Key, KeyRing

SCHEME = "Ftlib"
PROOF_HEADER = "x-ftlib-proof"
IDENTITY = ("x-ftlib-member", "x-ftlib-job", "x-ftlib-version", "x-ftlib-address")
"""Headers by which an agent says who it is. Fixed for all protocol versions."""
NONCE = 16
_FRAME = struct.Struct(">I")
"""Before each frame of a body: its length."""
PIECE = 1 << 20
"""Bytes that a frame holds at most."""
_MAX_FRAME = PIECE + 16
_LAST = 1 << 31
"""Set in the length of the last frame; what counts is the mark under the seal."""
_PAD = 300
"""Length of the first request's credentials: the challenge must not be longer than what asked for it."""


def encode(data: bytes) -> str:
    """As header text."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def decode(text: str) -> bytes:
    """The inverse of ``encode``; SealError for other text."""
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise SealError("unauthentic", "malformed credentials") from None


def greeting(nonce: bytes) -> str:
    """The ``Authorization`` of a first request."""
    return f"{SCHEME} {encode(nonce)}".ljust(_PAD, ".")


class Exchange:
    """One request and its answer under one key; the same object at both sides."""

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
        """Whether ``token`` is this exchange's."""
        return hmac.compare_digest(token, self._mac("request"))

    def proof(self, identity: Mapping[str, str]) -> str:
        """What only a holder of the secret can say to this request. ``identity``: the headers that tell who answers."""
        return encode(self._mac("answer", "\0".join(identity.get(name, "") for name in IDENTITY).encode()))

    def proves(self, answer: Mapping[str, str]) -> bool:
        """Whether the proof in the ``answer``'s headers is right for who it says it is from."""
        proof = answer.get(PROOF_HEADER, "")
        return hmac.compare_digest(proof.encode(errors="replace"), self.proof(answer).encode())

    def body_key(self) -> bytes:
        """What seals this exchange's body, for whoever makes it (see ``Frames``)."""
        return self._key.derive("body", self._salt, self._target)

    def frames(self, status: int) -> Frames:
        """For a body that goes with ``status``."""
        return Frames(self.body_key(), status)

    def _mac(self, purpose: str, text: bytes = b"") -> bytes:
        return hmac.digest(self._key.derive(purpose, self._salt, self._target), text, hashlib.sha256)


class Frames:
    """Seals, or opens, the frames of one body in order."""

    def __init__(self, key: bytes, status: int) -> None:
        """``key``: of the exchange; a key of its own for each ``status`` is derived from it."""
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
        """What is in a frame (without its length); SealError where it is not the next one, or (not) the ``last``."""
        try:
            return self._cipher.decrypt(self._next(), sealed, self._context(last=last))
        except InvalidTag:
            raise SealError("unauthentic", "a part of the answer is not authentic") from None

    def read(self, read: Callable[[int], bytes]) -> tuple[bytes, bool]:
        """The next frame's data, and whether it is the last. ``read(count)``: exactly so many bytes, fewer at the end.

        SealError where the body is forged; EOFError where it breaks off.
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


def exchange_of(ring: KeyRing, text: str, challenge: bytes, target: str) -> Exchange:
    """The exchange that credentials (what follows the scheme) are right for; SealError where they are not."""
    nonce, _, rest = text.partition(".")
    key_id, _, token = rest.partition(".")
    try:
        key = ring.find(bytes.fromhex(key_id))
    except ValueError:
        key = None
    found = decode(nonce)
    if key is None or len(found) != NONCE:
        raise SealError("unauthentic", "signed with another secret")
    exchange = Exchange(key, found, challenge, target)
    if not exchange.admits(decode(token)):
        raise SealError("unauthentic", "a wrong token")
    return exchange


def fresh_nonce() -> bytes:
    """For one exchange."""
    return os.urandom(NONCE)
