"""A message's way from one simulated process to another: all that ``Faults`` says about it happens here.

Real bytes travel: what the codec cannot carry, or a comparison by identity, shows here too. A message to many is encoded once,
and decoded once for all who get it (frozen values; the bytes are the same).
"""

from __future__ import annotations

from functools import cache
from hashlib import blake2b
from struct import Struct
from typing import TYPE_CHECKING

from ..codec import Codec
from ..member import Address
from ..messages import Envelope, Message

if TYPE_CHECKING:
    from .faults import Faults, Link
    from .host import Host
    from .world import World

__all__ = ["Network", "Packet"]

BURST = 1e-5
"""Seconds between two messages that a clogged link releases."""

_EVENT = Struct("<dIII")


class Packet:
    """The bytes of one message, decoded at most once."""

    __slots__ = ("_envelope", "data")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self._envelope: Envelope | None = None

    def envelope(self, codec: Codec) -> Envelope:
        """What the bytes say."""
        if self._envelope is None:
            self._envelope = codec.decode(self.data)
        return self._envelope


@cache
def _codec(job: str) -> Codec:
    """One for all worlds: its making costs more than many a history."""
    return Codec(job)


class Network:
    """Loses, delays, copies, holds back. Everything random is drawn from the world's generator."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.codec = _codec(world.config.job)
        self.digest = blake2b(digest_size=16)
        """Of every message sent and delivered, and of every timer, in order (see ``World.digest``)."""
        self._held: list[tuple[Link, Address, Host, Packet]] = []
        self._encoded: tuple[Host, Message, Packet] | None = None

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
        loss = faults.loss
        if faults.lossy or faults.lossy_links:
            loss = faults.loss_on(*link)
        if loss and world.rng.random() < loss:
            world.show("lost", sender, target, message)
            return
        packet = self._packet(sender, message)
        self.digest.update(_EVENT.pack(world.now, sender.index, target.index, len(packet.data)))
        self.digest.update(packet.data)
        if link in faults.clogged:
            world.show("late", sender, target, message)
            self._held.append((link, address, sender, packet))
            return
        if self._schedule(faults, link, address, sender, packet) > world.config.ping_timeout / 2:
            world.show("late", sender, target, message)
        if faults.duplication and world.rng.random() < faults.duplication:
            self._schedule(faults, link, address, sender, packet)
        if faults.replay and world.rng.random() < faults.replay:
            world.at(world.rng.uniform(0.0, faults.replay_late), world.driver.arrive, address, sender, packet)

    def _schedule(self, faults: Faults, link: Link, address: Address, sender: Host, packet: Packet) -> float:
        world = self._world
        delay = faults.spread.draw(*faults.latency, world.rng)
        if faults.reordering and world.rng.random() < faults.reordering:
            delay += world.rng.uniform(0.0, faults.late)
        if faults.slow:
            delay += faults.slow.get(link[0], 0.0) + faults.slow.get(link[1], 0.0)
        world.at(delay, world.driver.arrive, address, sender, packet)
        return delay

    def _packet(self, sender: Host, message: Message) -> Packet:
        known = self._encoded
        if known is not None and known[1] is message and known[0] is sender:
            return known[2]
        envelope = Envelope(self._world.config.job, sender.id, sender.member.address, message)
        packet = Packet(self.codec.encode(envelope))
        self._encoded = (sender, message, packet)
        return packet

    def record(self, kind: int, host: Host, size: int = 0) -> None:
        """One event of a host, for the digest."""
        self.digest.update(_EVENT.pack(self._world.now, host.index, kind, size))

    def release(self, free: set[Link] | None = None) -> None:
        """Send on what was held back on these links (None: on all), in its order, as one burst."""
        held, self._held = self._held, []
        delay = 0.0
        for link, address, sender, packet in held:
            if free is not None and link not in free:
                self._held.append((link, address, sender, packet))
            else:
                delay += BURST
                self._world.at(delay, self._world.driver.arrive, address, sender, packet)

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
