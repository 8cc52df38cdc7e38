"""Invariant 11: duplicated, reordered and replayed messages change nothing."""

from __future__ import annotations

from typing import Any, NamedTuple

from ...border import Activated, Freeze, Installed, Stopped
from ...messages import (
    MESSAGES,
    Ack,
    Beliefs,
    Digest,
    Gossip,
    Introduction,
    JoinReply,
    JoinRequest,
    Lease,
    Message,
    Nack,
    Overtaken,
    Piece,
    Ping,
    PingRequest,
    Pull,
    Refused,
    Stranger,
    ViewRecord,
)
from ...protocol.machine import Machine
from ...protocol.state.effects import Effect, Fence, KeepConnections, Quit
from ...view import View
from ..world.host import Host
from ..world.observer import Hears
from .inside import epoch_of, standing, twin
from .invariant import Facts, Invariant

TIMELESS = (
    # Detection: who asks knows by a number which answer it waits for. Rumours, on their own or riding along, are as good later
    # as now (SWIM): an old one about a member's current incarnation is refuted like a new one.
    Ping,
    PingRequest,
    Ack,
    Nack,
    Stranger,
    Gossip,
    Digest,
    Beliefs,
    # From and to those who are in no view yet.
    JoinRequest,
    JoinReply,
    Refused,
    # A question about views: all that comes of it is an answer.
    Pull,
    # Between chains of views, whose epochs do not compare.
    Introduction,
    Overtaken,
    # No machine gets these: they lie in a store, or are put together before.
    ViewRecord,
    Lease,
    Piece,
)
"""Messages that are of no view change."""

CHANGES = tuple(kind for kind in MESSAGES if kind not in TIMELESS)
"""Messages of one view change: of one that is over, they are worth nothing. A new kind of message is taken for such."""

DEEDS = (Freeze, Installed, Activated, Stopped, Quit, Fence, KeepConnections)
"""Effects that a message must not have twice."""

KEPT = 6
"""Messages of view changes that each member keeps to be replayed later."""


class _Letter(NamedTuple):
    sender: Host
    message: Message


class Replays(Invariant):
    """A copy of the receiver gets a message again: it does nothing but answer, and what it decided, promised and holds
    against others (``inside.standing``) stays as it was.

    Two things are replayed: the message that was just handled, and one of an earlier view change. Copies cost time, so this
    is a sample: of the messages of view changes about one in ``every``, of the others one in ``20 * every`` (fewer in larger
    worlds, in proportion to the number of processes). Reordering needs no checker of its own: the network reorders, and all
    others look. Rumours are replayed at once only: an old one about a member's current incarnation is as good as a new one
    (SWIM), and is refuted like one.
    """

    number = 11
    title = "replays change nothing"

    every = 40

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._received = 0
        self._next = 1
        self._letter: tuple[Host, _Letter] | None = None
        self._kept: dict[str, list[_Letter]] = {}
        self._old: dict[str, list[_Letter]] = {}

    def hears(self) -> Hears:
        """See ``Observer``."""
        return {**dict.fromkeys(MESSAGES, self._hear), **dict.fromkeys(CHANGES, self._hear_change)}

    def adopted(self, host: Host, view: View) -> None:  # noqa: ARG002
        """See ``Observer``."""
        kept = self._kept.pop(host.id, None)
        if kept:
            self._old[host.id] = [*self._old.get(host.id, ()), *kept][-2 * KEPT :]

    def _hear_change(self, host: Host, sender: Host, message: Message) -> None:
        kept = self._kept.get(host.id)
        if kept is None:
            kept = self._kept[host.id] = []
        if len(kept) < KEPT:
            kept.append(_Letter(sender, message))
        self._received += 19
        self._hear(host, sender, message)

    def _hear(self, host: Host, sender: Host, message: Message) -> None:
        self._received += 1
        if self._received >= self._next:
            self._next = self._received + 20 * self.every * max(1, len(self.world.hosts) // 4)
            self._letter = (host, _Letter(sender, message))

    def settled(self, host: Host) -> None:
        """See ``Observer``."""
        if self._letter is None:
            return
        (receiver, letter), self._letter = self._letter, None
        if receiver is not host or not host.alive or host.stopped is not None:
            return
        self._replay(host, letter, "again")
        old = self._old.get(host.id, [])
        over = next((each for each in old if self._over(host, each)), None)
        if over is not None:
            old.remove(over)
            self._replay(host, over, "from an earlier view change")

    def _over(self, host: Host, letter: _Letter) -> bool:
        """Whether ``letter`` is about the change to an older view than the one that ``host`` follows now."""
        view, message = host.machine.view, letter.message
        if view is None:
            return False
        epoch = epoch_of(message)
        if epoch is None:
            return bool(getattr(message, "view_id", view.view_id) != view.view_id)
        return epoch < view.epoch

    def _replay(self, host: Host, letter: _Letter, when: str) -> None:
        machine = twin(host.machine)
        before = standing(machine)
        _hand(letter, machine, host.now)
        after, done = standing(machine), _deeds(machine)
        if (before == after and not done) or self._due_anyway(host, letter):
            return
        log = self.log
        changed = {key: (before[key], after[key]) for key in before if before[key] != after[key]}
        self.fail(
            f"{log.name(host.id)} got {letter.message} of {log.name(letter.sender.id)} {when}, and it had an effect: "
            f"{_told(changed)} {done or ''}"
        )

    def _due_anyway(self, host: Host, letter: _Letter) -> bool:
        """Whether the machine does the same at this moment without the replay."""
        replayed, honest = twin(host.machine), twin(host.machine)
        _hand(letter, replayed, host.now)
        for machine in (replayed, honest):
            machine.tick(host.now)
        return standing(replayed) == standing(honest) and _deeds(replayed) == _deeds(honest)


def _hand(letter: _Letter, machine: Machine, now: float) -> None:
    machine.receive(letter.sender.id, letter.sender.machine.member.address, letter.message, now)


def _deeds(machine: Machine) -> list[Effect]:
    return [effect for effect in machine.drain() if isinstance(effect, DEEDS)]


def _told(changed: dict[str, tuple[Any, Any]]) -> str:
    return "; ".join(f"{key} was {before}, is {after}" for key, (before, after) in changed.items())
