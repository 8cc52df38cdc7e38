"""The vectors of docs/wire.md, computed by code that knows only that page, and compared with what the product sends.

After a deliberate change of the format: ``python -m tests.documents.test_wire`` writes them anew.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import itertools
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from consensus.config import PROTOCOL_VERSION
from consensus.messages import MESSAGES, Envelope, Stranger
from consensus.wire.codec import Codec
from consensus.wire.envelope import Sealed
from consensus.wire.keys import KeyRing
from consensus.wire.proofs import IDENTITY, Exchange

PAGE = Path(__file__).resolve().parents[2] / "docs" / "wire.md"
BLOCK = re.compile(r"(?s)(<!-- vectors -->\n```json\n)(.*?)(\n```)")

SECRET, JOB = "a secret for test vectors", "lab"
SENDER, OWN, PEER = "0123456789abcdef", ("10.0.0.1", 7000), ("10.0.0.2", 7001)
ALICE, BOB, ECHO, COOKIE = (bytes([number] * 16) for number in (1, 2, 3, 4))
NONCE, CHALLENGE = bytes([5] * 16), bytes([6] * 16)
TARGET, BODY = "/status?full=1", b'{"epoch": 3}'
ANSWERS = dict(zip(IDENTITY, (SENDER, JOB, str(PROTOCOL_VERSION), "10.0.0.1:7000"), strict=True))


# By the page alone


def derive(purpose: bytes, salt: bytes = b"", context: bytes = b"", size: int = 32) -> bytes:
    return HKDF(SHA256(), size, salt, b"ftlib 1 " + purpose + b"\0" + context).derive(SECRET.encode())


def sealed(kind: int, key: bytes, boot: bytes, number: int, text: bytes, to: bytes = b"") -> bytes:
    header = bytes([0xF6, kind]) + derive(b"key id", size=4) + boot + number.to_bytes(8, "big")
    return header + AESGCM(key).encrypt(number.to_bytes(12, "big"), text, header + context() + to)


def context() -> bytes:
    return str(PROTOCOL_VERSION).encode() + b"|" + JOB.encode()


def frames(status: int, body: bytes) -> bytes:
    base = derive(b"body", NONCE + CHALLENGE, b"GET " + TARGET.encode())
    cipher = AESGCM(HKDF(SHA256(), 32, None, b"ftlib 1 frames %d" % status).derive(base))
    first = cipher.encrypt((1).to_bytes(12, "big"), body, b"0")
    last = cipher.encrypt((2).to_bytes(12, "big"), b"", b"1")
    return len(first).to_bytes(4, "big") + first + (len(last) | 1 << 31).to_bytes(4, "big") + last


def text_of(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def by_the_page() -> dict[str, Any]:
    body = msgpack.packb([SENDER, *OWN, MESSAGES.index(Stranger), 7, "fedcba9876543210"])
    packet = bytes([0xF7, PROTOCOL_VERSION]) + len(JOB).to_bytes(2, "big") + JOB.encode() + body
    place = hashlib.blake2b(b"10.0.0.2:7001", digest_size=16).digest()
    salt, about = NONCE + CHALLENGE, b"GET " + TARGET.encode()
    token = hmac.digest(derive(b"request", salt, about), b"", "sha256")
    proof = hmac.digest(derive(b"answer", salt, about), "\0".join(ANSWERS.values()).encode(), "sha256")
    return {
        "protocol version": PROTOCOL_VERSION,
        "job": JOB,
        "secret": SECRET,
        "key id": derive(b"key id", size=4).hex(),
        "bearer token for metrics": derive(b"bearer metrics").hex(),
        "sender": {"id": SENDER, "address": "10.0.0.1:7000", "boot": ALICE.hex()},
        "receiver": {"address": "10.0.0.2:7001", "boot": BOB.hex()},
        "message": {"type": "Stranger", "fields": [7, "fedcba9876543210"]},
        "packet": packet.hex(),
        "hello": {
            "echo": ECHO.hex(),
            "number": 0,
            "sealed": sealed(0x11, derive(b"greeting", ALICE, context()), ALICE, 0, ECHO + bytes(32)).hex(),
        },
        "cookie": {
            "cookie": COOKIE.hex(),
            "number": 0,
            "sealed": sealed(0x12, derive(b"greeting", BOB, context()), BOB, 0, ECHO + COOKIE + place, ALICE).hex(),
        },
        "data": {
            "number": 1,
            "sealed": sealed(0x10, derive(b"data", ALICE + BOB + COOKIE, context()), ALICE, 1, packet).hex(),
        },
        "request": {
            "method": "GET",
            "target": TARGET,
            "nonce": NONCE.hex(),
            "challenge": CHALLENGE.hex(),
            "authorization": f"Ftlib {text_of(NONCE)}.{derive(b'key id', size=4).hex()}.{text_of(token)}",
            "headers of the answer": ANSWERS,
            "proof": text_of(proof),
            "body": BODY.decode(),
            "frames": frames(200, BODY).hex(),
        },
    }


# By the product


def drawn(*values: bytes) -> Iterator[bytes]:
    yield from values
    yield from (bytes([number % 251]) * 16 for number in itertools.count(100))


@pytest.fixture
def vectors() -> dict[str, Any]:
    found = BLOCK.search(PAGE.read_text(encoding="utf-8"))
    assert found is not None
    return dict(json.loads(found[2]))


def test_the_page_says_how_they_are_made(vectors: dict[str, Any]) -> None:
    assert vectors == by_the_page()


def test_the_product_makes_the_same(vectors: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    random = drawn(ALICE, BOB, ECHO, COOKIE)
    monkeypatch.setattr(os, "urandom", lambda size: next(random)[:size])
    ring = KeyRing([SECRET])
    message = Stranger(7, "fedcba9876543210")
    packet = Codec(JOB).encode(Envelope(JOB, SENDER, OWN, message))
    alice, bob = Sealed(ring, JOB, OWN), Sealed(ring, JOB, PEER)
    hello = alice.hello(PEER)
    assert hello is not None
    cookie = bob.unseal(hello, "10.0.0.1").reply
    assert cookie is not None
    assert alice.unseal(cookie, "10.0.0.2").introduced == PEER
    data = alice.seal(packet, PEER)
    assert data is not None
    assert bob.unseal(data, "10.0.0.1").packet == packet
    assert ring.first.id.hex() == vectors["key id"]
    assert ring.first.bearer("metrics") == vectors["bearer token for metrics"]
    made = packet.hex(), hello.hex(), cookie.hex(), data.hex()
    assert made == (vectors["packet"], vectors["hello"]["sealed"], vectors["cookie"]["sealed"], vectors["data"]["sealed"])


def test_the_product_signs_the_same(vectors: dict[str, Any]) -> None:
    wanted = vectors["request"]
    exchange = Exchange(KeyRing([SECRET]).first, NONCE, CHALLENGE, TARGET)
    assert exchange.credentials() == wanted["authorization"]
    assert exchange.proof(ANSWERS) == wanted["proof"]
    assert exchange.frames(200).whole(BODY).hex() == wanted["frames"]


def _write() -> None:
    text = PAGE.read_text(encoding="utf-8")
    made = json.dumps(by_the_page(), indent=2)
    PAGE.write_text(BLOCK.sub(lambda found: found[1] + made + found[3], text), encoding="utf-8")


if __name__ == "__main__":
    _write()
