"""Invariant 12: queues, tables, datagrams and messages per change are bounded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...messages import (
    Accept,
    Accepted,
    Ack,
    Activate,
    FlushReply,
    FlushRequest,
    Gossip,
    Install,
    Ping,
    PingRequest,
    Prepare,
    Promise,
    Promised,
    Ready,
)
from ...protocol.detection.detection import PIGGYBACK
from ...protocol.detection.probe import RELAYS
from ...protocol.state.history import LIMIT
from ...view import View
from ..world.host import Host
from ..world.observer import Sees
from .inside import epoch_of, sizes
from .invariant import Facts, Invariant

EVERY = 61
"""Tables are measured after every so many events, and whenever a member follows a new view."""

PROGRESS = 32
"""Bytes of a ping that tell where the data plane is."""

TABLES: dict[str, tuple[int, int, int]] = {
    "rumours": (5, 0, 0),  # by each of a suspect's first k + 1 = 4 accusers, and its own word
    "probes": (9, 11, 0),  # unanswered ones live for at most 9 stretched timeouts, applicants' for a second
    "relays": (0, 0, RELAYS),
    "acked": (1, 1, 0),
    "applicants": (0, 1, 0),
    "proofs": (1, 0, 0),
    "silent": (1, 0, 0),
    "unready": (1, 0, 0),
    "cut_off": (1, 0, 0),
    "links": (16, 0, 0),  # pairs, up to mesh_limit members
    "leaving": (1, 0, 1),  # itself, though it may be out already
    "checking": (1, 0, 0),
    "reported": (6, 0, 0),  # one of each kind
    "shunned": (1, 0, 0),
    "flush": (0, 0, 2),  # this epoch and the next
    "votes": (1, 0, 0),
    "waiting": (1, 0, 0),
    "history": (0, 0, LIMIT),
}
"""Entries of each table of a member (see ``inside.sizes``): ``(x, y, z)`` stands for ``x * n + y * others + z``.

n: members of its view; others: processes that are not in it, applicants and earlier lifetimes.
"""

PER_CHANGE = 9
"""Messages of one proposer for one epoch are at most ``PER_CHANGE * n * (1 + t / resend)``, t: seconds since the first of them,
n: members of the largest view of anybody who has sent one of them.

Without faults that is PREPARE, PROMISE, ACCEPT, ACCEPTED, INSTALL, READY, ACTIVATE, once for each member, and a FLUSH-REQUEST
with its reply for who was late.
"""


@dataclass(slots=True)
class _Change:
    """The messages for one epoch so far: since when, how many, and what its largest sender's view may become."""

    since: float
    messages: int = 0
    size: int = 1


class Bounds(Invariant):
    """``TABLES`` and ``PER_CHANGE`` say how much; pings, acks and gossip carry at most ``PIGGYBACK`` rumours, so they fit a
    datagram.

    (What grows with n, INSTALL and the like, goes over HTTP where it does not fit; the codec refuses more than ``MAX_BYTES``.)
    """

    number = 12
    title = "everything is bounded"

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._events = 0
        self._changes: dict[int, _Change] = {}
        self._proposers: dict[int, set[str]] = {}
        self._adopted: dict[str, list[int]] = {}
        """By member: the sizes of the newest two views that it has adopted."""

    def sees(self) -> Sees:
        """See ``Observer``."""
        small = dict.fromkeys((Ping, Ack, Gossip, PingRequest), self._small)
        changes = (Prepare, Promise, Accept, Accepted, Promised, FlushRequest, FlushReply, Install, Ready, Activate)
        return {**small, **dict.fromkeys(changes, self._count)}

    def _small(self, host: Host, target: Host | None, message: Any) -> None:  # noqa: ARG002
        if len(message.updates) > PIGGYBACK or len(getattr(message, "progress", b"")) > PROGRESS:
            name = self.log.name(host.id)
            self.fail(f"{name} sends a {type(message).__name__} with {len(message.updates)} rumours")

    def _count(self, host: Host, target: Host | None, message: Any) -> None:  # noqa: ARG002
        epoch = epoch_of(message)
        if epoch is None:
            return
        if isinstance(message, (Prepare, Accept, Install, FlushRequest)):
            self._proposers.setdefault(epoch, set()).add(host.id)
        self._add(host, epoch)

    def _add(self, host: Host, epoch: int) -> None:
        change = self._changes.setdefault(epoch, _Change(self.now))
        change.messages += 1
        view = host.machine.view
        if view is not None:
            # A view may double. Who tells those that it has removed is in a smaller one by then.
            change.size = max(change.size, 2 * len(view), *self._adopted.get(host.id, ()))
        proposers = len(self._proposers.get(epoch, ())) or 1
        took = self.now - change.since
        limit = PER_CHANGE * change.size * proposers * (1 + took / self.world.config.resend)
        if change.messages > limit:
            self.fail(f"{change.messages} messages for epoch {epoch} in {took:.3f} s; the bound is {limit:.0f}")

    def adopted(self, host: Host, view: View) -> None:
        """See ``Observer``."""
        self._adopted[host.id] = [*self._adopted.get(host.id, ())[-1:], len(view)]
        self._measure(host)

    def settled(self, host: Host) -> None:
        """See ``Observer``."""
        self._events += 1
        if self._events % EVERY == 0:
            self._measure(host)

    def _measure(self, host: Host) -> None:
        view = host.machine.view
        if view is None or host.stopped is not None:
            return
        size = len(view)
        others = max(0, len(self.world.hosts) - size)
        for name, entries in sizes(host.machine).items():
            per_member, per_other, more = TABLES[name]
            limit = per_member * size + per_other * others + more
            if entries > limit:
                self.fail(f"{self.log.name(host.id)} has {entries} {name} in a view of {size}; the bound is {limit}")
