"""How a member asks another for a stream: one GET with ``Upgrade: ftlib-stream``, answered by 101 and a duplex connection.

The query says which lifetime is meant (``to``), of which job, and who asks. With a secret it is signed as every request is (see
``proofs``), and the stream gets a key that only its two ends can derive. Without one the key comes from the query: it keeps
streams apart, and hides nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlencode

import msgpack

from ..errors import CodecError, SealError
from ..member import Member
from .proofs import Exchange, decode, encode, fresh_nonce

PROTOCOL = "ftlib-stream"
"""The value of the header ``Upgrade``."""
KEY = 32
"""Bytes of a stream's key."""
LONGEST = 60.0
"""The most seconds that a request may wait at its peer until its path is accepted there."""
ENDED = 409
"""The status for a path that the peer's program accepted once, and does not any more."""
_MOST = 16384
"""The most bytes of a member, as text of a query."""


@dataclass(frozen=True, slots=True)
class Dialled:
    """What a request for a stream says. ``within``: seconds after which the asking side gives up."""

    to: str
    job: str
    here: Member
    within: float
    nonce: str

    def target(self, path: str) -> str:
        """Path and query of the request."""
        member = encode(msgpack.packb([self.here.id, self.here.host, self.here.port, [list(pair) for pair in self.here.meta]]))
        facts = {"to": self.to, "job": self.job, "from": member, "within": f"{self.within:.3f}", "nonce": self.nonce}
        return f"{path}?{urlencode(facts)}"

    def key(self, exchange: Exchange | None) -> bytes:
        """The key of the stream; ``exchange``: the signed one, None without a secret."""
        if exchange is not None:
            return exchange.stream_key()
        return hashlib.sha256(f"ftlib stream {self.nonce} {self.here.id} {self.to}".encode()).digest()


def dialled(to: str, job: str, here: Member, within: float) -> Dialled:
    """A new request."""
    return Dialled(to, job, here, min(within, LONGEST), fresh_nonce().hex())


def read_query(query: Mapping[str, str]) -> Dialled:
    """The request in a query; raises CodecError if there is none."""
    try:
        text = query["from"]
        if len(text) > _MOST:
            raise CodecError("a member with too many facts asks for a stream")
        found = msgpack.unpackb(decode(text))
        within = float(query["within"])
        nonce = query["nonce"]
        to, job = query["to"], query["job"]
    except (KeyError, ValueError, SealError, msgpack.UnpackException) as error:
        raise CodecError(f"no request for a stream: {type(error).__name__}") from None
    match found:
        case [str(member_id), str(host), int(port), list(meta)] if all(
            isinstance(pair, list) and [*map(type, pair)] == [str, str] for pair in meta
        ):
            member = Member(member_id, host, port, tuple((name, value) for name, value in meta))
        case _:
            raise CodecError("no member asks for a stream")
    if not (0 <= within <= LONGEST and len(nonce) <= 64):
        raise CodecError("a request for a stream that waits too long")
    return Dialled(to, job, member, within, nonce)
