"""A message's way from one simulated process to another: all that ``Faults`` says about it happens here.

Real bytes travel: what the codec cannot carry, or a comparison by identity, shows here too. A message to many is encoded once,
and decoded once for all who get it (frozen values; the bytes are the same).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from ...member import Address
from ...messages import Envelope, Message, Piece
from ...wire.codec import Codec
from ...wire.pieces import cut
from .faults import Faults, Link
from .host import Host
from .state import State

BURST = 1e-5
"""Seconds between two messages that a clogged link releases."""

LONG = 2048

KEPT = 8
"""So many of the newest packets of more than ``LONG`` bytes are kept: what is sent to thousands is encoded once, and what came
in pieces decoded once.
"""


class Packet:
    """The bytes of one message, decoded at most once. ``pieces``: what travels instead, where they are too many."""

    __slots__ = ("_envelope", "data", "pieces")

    def __init__(self, data: bytes, pieces: tuple[Packet, ...] = ()) -> None:
        self.data = data
        self.pieces = pieces
        self._envelope: Envelope | None = None

    def envelope(self, codec: Codec) -> Envelope:
        """What the bytes say."""
        if self._envelope is None:
            self._envelope = codec.decode(self.data)
        return self._envelope


@cache
def codec_of(job: str) -> Codec:
    """One for all worlds: its making costs more than many a history."""
    return Codec(job)


class Network:
    """Loses, delays, copies, holds back. Everything random is drawn from the world's generator."""

    def __init__(self, world: State, arrive: Callable[[Address, Host, Packet], None]) -> None:
        """``arrive``: called when a packet reaches an address."""
        self._world = world
        self._arrive = arrive
        self.codec = codec_of(world.config.job)
        self._held: list[tuple[Link, Address, Host, Packet]] = []
        self._encoded: tuple[Host, Message, Packet] | None = None
        self._long: dict[int, tuple[Host, Message, Packet]] = {}
        """The newest long ones, by the identity of the message."""
        self._whole: dict[bytes, Packet] = {}
        """Packets that came in pieces, by their digest."""
        self.largest = 0
        """Bytes of the longest message that was sent, without the seal."""

    def carry(self, sender: Host, target: Host | None, address: Address, message: Message) -> None:
        """``message`` starts on its way to ``address``, where ``target`` is now."""
        world = self._world
        faults = world.faults
        if target is None:
            return
        link = (sender.id, target.id)
        if link in faults.cut:
            world.show("lost", sender, target, message)
            return
        packet = self._packet(sender, message)
        for each in packet.pieces or (packet,):
            self._send(sender, target, address, message, each)

    def _send(self, sender: Host, target: Host, address: Address, message: Message, packet: Packet) -> None:
        """``packet`` is all of ``message``, or a piece of it."""
        world, link = self._world, (sender.id, target.id)
        faults = world.faults
        loss = faults.loss
        if faults.lossy or faults.lossy_links:
            loss = faults.loss_on(*link)
        if loss and world.rng.random() < loss:
            world.show("lost", sender, target, message)
            return
        world.record(target.index, sender, len(packet.data), packet.data)
        if link in faults.clogged:
            world.show("late", sender, target, message)
            self._held.append((link, address, sender, packet))
            return
        if self._schedule(faults, link, address, sender, packet) > world.config.ping_timeout / 2:
            world.show("late", sender, target, message)
        if faults.duplication and world.rng.random() < faults.duplication:
            self._schedule(faults, link, address, sender, packet)
        if faults.replay and world.rng.random() < faults.replay:
            world.at(world.rng.uniform(0.0, faults.replay_late), self._arrive, address, sender, packet)

    def _schedule(self, faults: Faults, link: Link, address: Address, sender: Host, packet: Packet) -> float:
        world = self._world
        delay = faults.spread.draw(*faults.latency, world.rng)
        if faults.reordering and world.rng.random() < faults.reordering:
            delay += world.rng.uniform(0.0, faults.late)
        if faults.slow:
            delay += faults.slow.get(link[0], 0.0) + faults.slow.get(link[1], 0.0)
        world.at(delay, self._arrive, address, sender, packet)
        return delay

    def _packet(self, sender: Host, message: Message) -> Packet:
        known = self._encoded
        if known is None or known[1] is not message or known[0] is not sender:
            known = self._long.get(id(message))
        if known is not None and known[1] is message and known[0] is sender:
            return known[2]
        data = self._encode(sender, message)
        pieces = tuple(Packet(self._encode(sender, piece)) for piece in cut(data))
        packet = Packet(data, pieces)
        self._encoded = (sender, message, packet)
        if len(data) > LONG:
            self._long[id(message)] = self._encoded
            while len(self._long) > KEPT:
                del self._long[next(iter(self._long))]
        self.largest = max(self.largest, *(len(each.data) for each in (*pieces[:1], *pieces[-1:]) or (packet,)))
        return packet

    def _encode(self, sender: Host, message: Message) -> bytes:
        return self.codec.encode(Envelope(self._world.config.job, sender.id, sender.member.address, message))

    def completed(self, host: Host, sender: Host, piece: Piece) -> Packet | None:
        """``host`` gets a piece: the packet of which it was the last."""
        data = host.pieces.add(sender.id, piece, host.now)
        if data is None:
            return None
        if piece.digest not in self._whole:
            self._whole[piece.digest] = Packet(data)
            while len(self._whole) > KEPT:
                del self._whole[next(iter(self._whole))]
        return self._whole[piece.digest]

    def release(self, free: set[Link] | None = None) -> None:
        """Send on what was held back on these links (None: on all), in its order, as one burst."""
        held, self._held = self._held, []
        delay = 0.0
        for link, address, sender, packet in held:
            if free is not None and link not in free:
                self._held.append((link, address, sender, packet))
            else:
                delay += BURST
                self._world.at(delay, self._arrive, address, sender, packet)

    # Connections

    def reachable(self, one: str, other: str) -> bool:
        """Whether packets pass in both directions (loss apart)."""
        faults = self._world.faults
        way, back = (one, other), (other, one)
        return not (way in faults.cut or back in faults.cut or way in faults.clogged or back in faults.clogged)

    def connects(self, asker: str, target: str, patience: float) -> bool:
        """Whether a connection attempt gets through to a host within ``patience`` seconds."""
        faults = self._world.faults
        if not self.reachable(asker, target):
            return False
        if faults.loss or faults.lossy or faults.lossy_links:
            passes = (1.0 - faults.loss_on(asker, target)) * (1.0 - faults.loss_on(target, asker))
            if self._world.rng.random() >= passes:
                return False
        return 2 * (faults.slow.get(asker, 0.0) + faults.slow.get(target, 0.0) + faults.latency[1]) <= patience
