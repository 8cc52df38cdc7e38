"""What a program calls: send and recv between two, broadcast among more. Each operation finds its lane and returns a work."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from consensus import Member

from ..links.errors import CollectiveError, Refused, called
from .frames import Sort
from .lane import Lane
from .operations import Receive, Sent
from .values import Classes, Leaf, Message, encode, encode_leaf
from .works import DEFAULT_TIMEOUT, AsyncWork, Outcome, Patience, all_of, limit_of

CLOSE_TIMEOUT = 10.0
"""Seconds that ``close`` waits for peers to take what was sent."""


class CollectiveGroup:
    """Some members and the streams between them. Made by ``Collective.create_collective_group``; any thread.

    Operations with one peer take place in the order in which they are called, each way by itself, synchronous or not. Without
    ``async_op`` they block, and raise CollectiveTimeout after ``timeout`` seconds (default: ten minutes); with it they return a
    work at once. The memory of a tensor that is sent, or received into, is the operation's until its work has ended.

    Refused is raised at the call, and nothing was sent. PeerLost, LinkBroken and GroupClosed are the group's end: every pending
    operation raises it, and every later one. ``timeout`` in seconds.
    """

    def __init__(
        self,
        name: str,
        here: Member,
        members: tuple[Member, ...],
        classes: Classes,
        lane: Callable[[str, Member], Lane],
        closed: Callable[[CollectiveGroup], None],
    ) -> None:
        """``lane`` makes the stream to a peer; ``closed`` is called when this group ends."""
        self.name = name
        self.members = members
        """In seniority order, alike at all of them."""
        self.rank = members.index(here)
        self.here = here
        self._classes = classes
        self._closed = closed
        self._lanes: Mapping[str, Lane] = {peer.id: lane(name, peer) for peer in members if peer.id != here.id}
        self._order = threading.Lock()
        """Held while a broadcast is handed to all lanes, so that two of them cannot cross."""

    def __repr__(self) -> str:
        state = "closed" if self.over is not None else "open"
        return f"<CollectiveGroup {self.name!r} of {len(self.members)}, {state}>"

    @property
    def over(self) -> CollectiveError | None:
        """Why this group can do nothing more, None while it can: make it again then."""
        return next((lane.over for lane in self._lanes.values() if lane.over is not None), None)

    @property
    def peers(self) -> tuple[Member, ...]:
        """The other members."""
        return tuple(lane.peer for lane in self._lanes.values())

    def lane(self, peer_id: str) -> Lane:
        """The stream to that member."""
        return self._lanes[peer_id]

    def send(self, obj: object, async_op: bool = False, timeout: float | None = None) -> AsyncWork | None:
        """Send ``obj`` to the other member. Refused (nothing was sent) names what cannot be.

        It has ended when the memory of its tensors may be used again, which may be before the peer calls ``recv``.
        """
        return self._send("send", Sort.OBJECT, lambda: encode(obj, self._classes), async_op, timeout)

    def recv(self, async_op: bool = False, timeout: float | None = None) -> Any:
        """What the other member sends next, by ``send``, in memory of its own; with ``async_op`` a work of that.

        Mismatch where the peer called another operation: that message is used up, and the next ``recv`` gets the next one.
        """
        return self._recv("recv", Sort.OBJECT, self._only("recv"), async_op, timeout)

    def send_tensor(self, tensor: Leaf, async_op: bool = False, timeout: float | None = None) -> AsyncWork | None:
        """Send one contiguous tensor or numpy array into the memory that the peer gives to ``recv_tensor``.

        Any dtype and shape (of no dimension, and empty, as well), on the host or on a GPU.
        """
        return self._send("send_tensor", Sort.TENSOR, lambda: encode_leaf(tensor), async_op, timeout)

    def recv_tensor(self, tensor: Leaf, async_op: bool = False, timeout: float | None = None) -> Any:
        """Receive into ``tensor``, and return it: contiguous, writable, of the dtype and shape that the peer sends.

        Mismatch where it sends another one, or something else: that message is lost, and the stream goes on.
        """
        return self._recv("recv_tensor", Sort.TENSOR, self._only("recv_tensor"), async_op, timeout, tensor)

    def broadcast(
        self, obj: object = None, src: Member | str | None = None, async_op: bool = False, timeout: float | None = None
    ) -> Any:
        """``obj`` of the member ``src`` at all of them, in the same order as what ``src`` sends otherwise; returned at each.

        ``src``: a member, its name or its id; by default the most senior member. ``obj`` is not looked at elsewhere. Where a
        stream is not there yet, what its peer refuses is known later: the work is Refused, that peer gets Mismatch in its
        order, and the others get ``obj``.
        """
        source = self.members[0] if src is None else self._member(src)
        if source.id != self.here.id:
            return self._recv("broadcast", Sort.BROADCAST, self._lanes[source.id], async_op, timeout)
        limit = limit_of(async_op, timeout)
        message = self._encoded("broadcast", lambda: encode(obj, self._classes))
        with self._order:
            refusal = next((why for lane in self._lanes.values() if (why := lane.refusal(message)) is not None), None)
            if refusal is not None:  # before any of them has it
                raise refusal.about(self.name, "broadcast")
            whom = [Sent(lane, "broadcast", lane.send(Sort.BROADCAST, message, "broadcast")) for lane in self._lanes.values()]
        all_sent = all_of([each.outcome for each in whom], Outcome())
        work = AsyncWork(all_sent, lambda _: obj, patience=_Each(whom), timeout=limit)
        return work if async_op else work.wait()

    def close(self, timeout: float = CLOSE_TIMEOUT) -> None:
        """Wait until what was sent is on its way, at most ``timeout`` seconds, and tell the peers. Idempotent.

        What is pending here and at the peers raises GroupClosed, once what was sent before has been received.
        In a forked child it does nothing.
        """
        if any(lane.inherited for lane in self._lanes.values()):
            return
        deadline = time.monotonic() + timeout
        for lane in self._lanes.values():
            lane.close(deadline)
        self._closed(self)

    def fail(self, error: CollectiveError) -> None:
        """End with ``error`` everywhere: called where a member is lost."""
        for lane in self._lanes.values():
            lane.end(error)
        self._closed(self)

    def describe(self) -> dict[str, Any]:
        """Who is in it, and by which path each stream goes, and why; plain values."""
        return {"group": self.name, "members": [str(each) for each in self.members], "peers": {
            str(lane.peer): lane.facts() for lane in self._lanes.values()
        }}  # fmt: skip

    def _only(self, operation: str) -> Lane:
        if len(self._lanes) != 1:
            raise Refused(f"{operation} is for groups of two, and {self.name!r} has {len(self.members)} members: use broadcast")
        return next(iter(self._lanes.values()))

    def _member(self, who: Member | str) -> Member:
        if (found := find(self.members, who, self.here)) is None:
            raise Refused(f"{who} is no member of group {self.name!r}: its members are {', '.join(map(called, self.members))}")
        return found

    def _encoded(self, operation: str, make: Callable[[], Message]) -> Message:
        try:
            return make()
        except Refused as error:
            raise error.about(self.name, operation) from None

    def _send(
        self, operation: str, sort: Sort, make: Callable[[], Message], async_op: bool, timeout: float | None
    ) -> AsyncWork | None:
        lane, limit = self._only(operation), limit_of(async_op, timeout)
        outcome = lane.send(sort, self._encoded(operation, make), operation)
        if not async_op and outcome.done() and outcome.error is None:
            return None
        work = AsyncWork(outcome, patience=Sent(lane, operation, outcome), timeout=limit)
        if not async_op or isinstance(outcome.error, Refused):
            work.wait()
        return work if async_op else None

    def _recv(self, operation: str, sort: Sort, lane: Lane, async_op: bool, timeout: float | None, into: Leaf = None) -> Any:
        began, limit = time.monotonic(), limit_of(async_op, timeout)
        try:
            receive = Receive(lane, operation, sort, self._classes, into)
        except Refused as error:
            raise error.about(self.name, operation) from None
        lane.receive(receive)
        if async_op:
            return AsyncWork(receive.outcome, receive.finish, patience=receive, timeout=limit)
        until = began + (DEFAULT_TIMEOUT if limit is None else limit)
        try:  # the short way: most often its message is the next one, and this thread reads it
            receive.help(receive.outcome.done, until)
            if receive.outcome.done() and receive.outcome.error is None:
                return receive.finish(receive.outcome.value)
            return AsyncWork(receive.outcome, receive.finish, patience=receive, timeout=until - time.monotonic()).wait()
        except BaseException:  # Ctrl-C, say: nobody else can take it back, and its message is for the next one
            lane.withdraw(receive)
            raise


def find(members: Sequence[Member], who: Member | str, here: Member) -> Member | None:
    """The member called ``who``, by name, id or ``host:port``; of two lifetimes with one name ``here``, or the newer one."""
    wanted = who.id if isinstance(who, Member) else who
    found = [each for each in members if wanted in {each.id, each.fact("name"), "{}:{}".format(*each.address)}]
    return next((each for each in found if each.id == here.id), found[-1] if found else None)


class _Each(Patience):
    """Of a broadcast: it waits for each peer in turn."""

    def __init__(self, sent: list[Sent]) -> None:
        self._sent = sent

    def give_up(self) -> None:
        """See ``Patience``."""
        for each in self._sent:
            each.give_up()

    def late(self) -> Any:
        """See ``Patience``."""
        return next((each for each in self._sent if not each.outcome.done()), self._sent[0]).late()
