"""Seals each packet as a whole before it is sent, and unseals it before it is decoded: ``codec`` only sees bytes that
``unseal`` has let through.

A sealed packet is ``magic | kind | key id | sender's boot nonce | sequence | AES-256-GCM``; the header, the job and the
protocol version are associated data. UDP and ``POST /message`` carry the same bytes.

*Cookies.* A replay window alone leaves two holes: a receiver that has restarted has forgotten what it saw, and so has a
receiver that dropped an old window to make room. So a member that wants to send to B asks B first: its ``HELLO`` carries a
random echo. B's ``COOKIE`` answers that echo and carries a random cookie, which B remembers together with the sender's window.
Packets are sealed with a key derived from the secret, both boot nonces and the cookie. Hence a packet

* can be opened only by the lifetime it was sealed for: sent back to its sender or on to a third member it is noise;
* recorded before B started, or before B forgot its sender, is noise: that cookie is gone;
* is otherwise in the window, which lets each sequence number through once.

Only a replayed hello may be answered again: by a cookie that only its sender can read, and no message is delivered. A cookie is
bound to the address that was asked; otherwise a redirected hello could send a member's packets to another member. Only
introducers are exempt, because the user may know them by any name. Hello and cookie are DTLS's words (RFC 9147); status
and metrics count these packets under older names, ``Knock`` and ``Ticket``.

No wall clock takes part: neither skew nor a jump can lock a member out.
"""

from __future__ import annotations

import hashlib
import os
import struct
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from ..config import PROTOCOL_VERSION
from ..errors import SealError
from ..member import Address, format_address
from .keys import KEY_ID, Key, KeyRing
from .replay_window import ReplayWindow
from .throttle import Throttle

_MAGIC = 0xF6
_DATA, _HELLO, _COOKIE = 0x10, 0x11, 0x12
"""Kinds; the high half is the envelope's version."""
_HEADER = struct.Struct(f">BB{KEY_ID}s16sQ")
_TAG = 16
_GREETING = struct.Struct(">16s16s16s")
"""A hello: echo and padding, so that the cookie is no longer than the hello. A cookie: echo, cookie, digest of the address."""

OVERHEAD = _HEADER.size + _TAG
"""Bytes that sealing adds."""

_HELLO_EVERY = 0.05
"""Seconds between two hellos at an address that has not answered."""
_DOUBT = 0.25
_UNANSWERED = 3
"""A peer that has sent nothing authentic for so many seconds (``_DOUBT``) and packets to it may have forgotten us: say hello
again. Two packets can be normal: an ack of ours, which nobody answers, and the next ping."""
_DOUBT_EVERY = 1.0
_RENEW = 60.0
"""Say hello again after so many seconds in any case; a cookie that was not used for so long is not used again."""
_FORGET = 150.0
"""A sender that has been silent for so many seconds is forgotten, with its cookie: longer than it would use that cookie."""


@dataclass(frozen=True, slots=True)
class Opened:
    """The content of an authentic packet: a packet for the codec, or a part of an introduction."""

    packet: bytes | None = None
    reply: bytes | None = None
    """To be sent to the source of the packet."""
    introduced: Address | None = None
    """Packets can now be sealed for this address."""


class Sealer(Protocol):
    """Wraps packets for the network."""

    overhead: int
    """How many bytes ``seal`` adds."""

    def seal(self, packet: bytes, address: Address) -> bytes | None:
        """The bytes to send for ``packet``; None if ``hello`` must first introduce us at ``address``."""
        ...

    def hello(self, address: Address) -> bytes | None:
        """A hello to send to ``address`` as well, to be introduced there (again); None if none is due."""
        ...

    def promising(self, head: bytes) -> bool:
        """Whether a packet that begins with ``head`` (``overhead`` bytes) may be authentic; asked before a long one is read."""
        ...

    def unseal(self, sealed: bytes, source: str) -> Opened:
        """The content of ``sealed``; raises CodecError if it is not authentic or was seen before. ``source``: who sent it."""
        ...


class Open:
    """No protection at all."""

    overhead = 0

    def seal(self, packet: bytes, address: Address) -> bytes:  # noqa: ARG002 - the same for everybody
        """``packet`` itself."""
        return packet

    def hello(self, address: Address) -> None:
        """Nothing."""

    def promising(self, head: bytes) -> bool:  # noqa: ARG002
        """True."""
        return True

    def unseal(self, sealed: bytes, source: str) -> Opened:  # noqa: ARG002
        """``sealed`` itself."""
        return Opened(sealed)


@dataclass(slots=True)
class _Peer:
    """A lifetime that has said hello here: its cookie, and the sequence numbers that it has used."""

    cookie: bytes
    received_at: float
    """When its latest data arrived (at first: its hello)."""
    hellos: ReplayWindow = field(default_factory=lambda: ReplayWindow(64))
    data: ReplayWindow = field(default_factory=lambda: ReplayWindow(4096))
    """Wide, because the sender's numbers also count what it sends to others."""
    ciphers: dict[bytes, AESGCM] = field(default_factory=dict)
    """Ciphers that open its data, by key id."""


@dataclass(slots=True)
class _Session:
    """The cookie that the lifetime at one address gave us."""

    boot: bytes
    cookie: bytes
    asked: float
    """When we sent the oldest packet that may be unanswered."""
    used: float
    renewed: float
    unanswered: int = 0
    """Packets sent since ``asked``."""
    cipher: tuple[bytes, AESGCM] | None = None


@dataclass(slots=True)
class _Hello:
    """An introduction under way."""

    echo: bytes
    sent: float


class Sealed:
    """Authenticates and encrypts everything with a key ring. Belongs to one thread."""

    overhead = OVERHEAD

    def __init__(
        self,
        ring: KeyRing,
        job: str,
        own: Address,
        *,
        known_as: Callable[[Address], bool] = lambda _address: False,
        peers: int = 8192,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``own``: the address that this member advertises. ``known_as(address)``: whether the member that answers at
        ``address`` may advertise another address (an introducer). ``peers``: the most windows kept; a new sender replaces the
        longest silent one, which then has to say hello again. Half of ``peers`` is the limit of our own sessions, and of
        hellos under way; the longest unused are forgotten, and asked again.
        """
        self._ring = ring
        self._context = b"%d|%s" % (PROTOCOL_VERSION, job.encode())
        self._own = _digest(own)
        self._known_as = known_as
        self._limit = peers
        self._clock = clock
        self.boot = os.urandom(16)
        """Identifies this lifetime to the windows of other members."""
        self.throttle = Throttle()
        # One counter for everything that this lifetime seals: under one key no number may be used twice, and a new session may
        # get a cookie that an earlier session used.
        self._number = 0
        self._peers: OrderedDict[bytes, _Peer] = OrderedDict()
        self._sessions: OrderedDict[Address, _Session] = OrderedDict()
        self._hellos: OrderedDict[Address, _Hello] = OrderedDict()
        self._echoes: dict[bytes, Address] = {}

    # Out

    def seal(self, packet: bytes, address: Address) -> bytes | None:
        """See ``Sealer``."""
        session, now = self._sessions.get(address), self._clock()
        if session is None:
            return None
        if now - session.used > _RENEW:
            del self._sessions[address]
            return None
        session.used = now
        self._sessions.move_to_end(address)
        key = self._ring.first
        if session.cipher is None or session.cipher[0] != key.id:
            session.cipher = (key.id, self._data_cipher(key, session.cookie, self.boot, session.boot))
        peer = self._peers.get(session.boot)
        if peer is not None and peer.received_at > session.asked:
            session.asked, session.unanswered = now, 0
        session.unanswered += 1
        return self._sealed(session.cipher[1], _DATA, key, packet)

    def hello(self, address: Address) -> bytes | None:
        """See ``Sealer``."""
        now = self._clock()
        session, hello = self._sessions.get(address), self._hellos.get(address)
        if session is not None and now - session.renewed < _RENEW:
            peer = self._peers.get(session.boot)
            answered = peer is not None and peer.received_at > session.asked
            if answered or session.unanswered < _UNANSWERED or now - session.asked < _DOUBT:
                return None
        if hello is not None and now - hello.sent < (_HELLO_EVERY if session is None else _DOUBT_EVERY):
            return None
        if hello is None:
            hello = self._hellos[address] = _Hello(os.urandom(16), now)
            self._echoes[hello.echo] = address
        hello.sent = now
        self._hellos.move_to_end(address)
        while len(self._hellos) > self._limit // 2 or now - next(iter(self._hellos.values())).sent > _RENEW:
            _, oldest = self._hellos.popitem(last=False)
            del self._echoes[oldest.echo]
        return self._greet(_HELLO, _GREETING.pack(hello.echo, bytes(16), bytes(16)))

    def _greet(self, kind: int, text: bytes, to: bytes = b"") -> bytes:
        key = self._ring.first
        return self._sealed(self._greeting_cipher(key, self.boot), kind, key, text, to)

    def _sealed(self, cipher: AESGCM, kind: int, key: Key, text: bytes, to: bytes = b"") -> bytes:
        number = self._number
        self._number += 1
        header = _HEADER.pack(_MAGIC, kind, key.id, self.boot, number)
        return header + cipher.encrypt(_nonce(number), text, header + self._context + to)

    # In

    def promising(self, head: bytes) -> bool:
        """See ``Sealer``."""
        if len(head) < OVERHEAD or head[0] != _MAGIC or head[1] != _DATA:
            return False
        _, _, key_id, boot, number = _HEADER.unpack_from(head)
        peer = self._peers.get(boot)
        return peer is not None and self._ring.find(key_id) is not None and peer.data.fresh(number)

    def unseal(self, sealed: bytes, source: str) -> Opened:
        """See ``Sealer``."""
        if len(sealed) < OVERHEAD or sealed[0] != _MAGIC:
            raise SealError("unauthentic", "no sealed packet")
        _, kind, key_id, boot, number = _HEADER.unpack_from(sealed)
        if boot == self.boot:
            raise SealError("replayed", "this member's own packet came back")
        key = self._ring.find(key_id)
        if key is None:
            raise SealError("unauthentic", "sealed with another secret")
        if kind == _DATA:
            return self._open_data(sealed, key, boot, number)
        if kind not in (_HELLO, _COOKIE) or len(sealed) != OVERHEAD + _GREETING.size:
            raise SealError("unauthentic", "a packet of an unknown kind")
        return self._open_greeting(sealed, key, boot, number, source)

    def _open_data(self, sealed: bytes, key: Key, boot: bytes, number: int) -> Opened:
        peer = self._peers.get(boot)
        if peer is None:
            raise SealError("unauthentic", "its sender was never introduced to this lifetime")
        if not peer.data.fresh(number):
            raise SealError("replayed", "seen before")
        cipher = peer.ciphers.get(key.id)
        if cipher is None:
            peer.ciphers = {key_id: each for key_id, each in peer.ciphers.items() if self._ring.find(key_id) is not None}
            cipher = peer.ciphers[key.id] = self._data_cipher(key, peer.cookie, boot, self.boot)
        packet = self._decrypt(cipher, sealed, number)
        peer.data.note(number)
        peer.received_at = self._clock()
        self._peers.move_to_end(boot)
        return Opened(packet)

    def _open_greeting(self, sealed: bytes, key: Key, boot: bytes, number: int, source: str) -> Opened:
        """A hello or a cookie. All senders at one source that have no session yet share its throttle."""
        now = self._clock()
        if not self.throttle.allow(source, now):
            raise SealError("throttled", "its source has failed too often")
        kind = sealed[1]
        peer = self._peers.get(boot)
        if kind == _HELLO and peer is not None and not peer.hellos.fresh(number):
            raise SealError("replayed", "seen before")
        if kind == _COOKIE and not self._echoes:
            raise SealError("replayed", "nobody was asked")
        try:
            text = self._decrypt(self._greeting_cipher(key, boot), sealed, number, b"" if kind == _HELLO else self.boot)
        except SealError:
            self.throttle.failed(source, now)
            raise
        echo, cookie, place = _GREETING.unpack(text)
        if kind == _HELLO:
            peer = peer or self._admit(boot, now)
            peer.hellos.note(number)
            return Opened(reply=self._greet(_COOKIE, _GREETING.pack(echo, peer.cookie, self._own), boot))
        self.throttle.forgive(source)
        return Opened(introduced=self._introduce(boot, echo, cookie, place, now))

    def _admit(self, boot: bytes, now: float) -> _Peer:
        """Make a cookie for a sender. A forgotten sender's cookie is gone too: nothing that it sent is ever accepted again."""
        while self._peers and (len(self._peers) >= self._limit or now - next(iter(self._peers.values())).received_at > _FORGET):
            self._peers.popitem(last=False)
        peer = self._peers[boot] = _Peer(os.urandom(16), now)
        return peer

    def _introduce(self, boot: bytes, echo: bytes, cookie: bytes, place: bytes, now: float) -> Address:
        address = self._echoes.get(echo)
        if address is None:
            raise SealError("replayed", "an answer to no question")
        if place != _digest(address) and not self._known_as(address):
            raise SealError("unauthentic", "a member that advertises another address")
        del self._echoes[echo]
        del self._hellos[address]
        session = self._sessions.get(address)
        if session is None or (session.boot, session.cookie) != (boot, cookie):
            session = self._sessions[address] = _Session(boot, cookie, now, now, now)
        session.asked = session.used = session.renewed = now
        session.unanswered = 0
        self._sessions.move_to_end(address)
        while len(self._sessions) > self._limit // 2 or now - next(iter(self._sessions.values())).used > _FORGET:
            self._sessions.popitem(last=False)
        return address

    # Keys

    def _greeting_cipher(self, key: Key, boot: bytes) -> AESGCM:
        return AESGCM(key.derive("greeting", boot, self._context))

    def _data_cipher(self, key: Key, cookie: bytes, sender: bytes, receiver: bytes) -> AESGCM:
        return AESGCM(key.derive("data", sender + receiver + cookie, self._context))

    def _decrypt(self, cipher: AESGCM, sealed: bytes, number: int, to: bytes = b"") -> bytes:
        try:
            view = memoryview(sealed)
            return cipher.decrypt(_nonce(number), view[_HEADER.size :], sealed[: _HEADER.size] + self._context + to)
        except InvalidTag:
            raise SealError("unauthentic", "not sealed by a member of this job for this lifetime") from None


def _nonce(number: int) -> bytes:
    return number.to_bytes(12, "big")


def _digest(address: Address) -> bytes:
    return hashlib.blake2b(format_address(address).encode(), digest_size=16).digest()
