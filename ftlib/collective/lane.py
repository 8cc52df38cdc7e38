"""One peer of a group: what is sent to it and received from it, in order, over a link that is made when it is first needed.

A link may call back in the thread that uses it, so no lock is held in a callback that is held around a call of the link: sends
have one lock, and the state has another one.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass
from typing import Any

from consensus import Member

from ..links.errors import CollectiveError, CollectiveTimeout, GroupClosed, LinkBroken, Mismatch, Refused
from ..links.link import Link
from .frames import NAMES, Incoming, Sort, outgoing
from .order import Order
from .values import Classes, Leaf, Message, Shape, decode, placed, shape_of
from .works import Patience, begun

_RUN_DRY = 0.25
"""Seconds in which the last bytes of a peer that is over are read."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What one side accepts. A message must fit those of both."""

    allow_pickle: bool
    max_bytes: int


class Lane:
    """Both directions of the stream with one peer. Any thread; nothing here waits but ``close``."""

    def __init__(self, group: str, peer: Member, terms: Terms, connect: Callable[[Lane], None], *, seal: bool) -> None:
        """``connect`` begins to make a link, once: it ends in ``attach`` or ``end``. ``seal``: whether payloads are sealed."""
        self.group = group
        self.peer = peer
        self.operations = 0
        self._terms = terms
        """What this side accepts."""
        self.theirs = terms
        self._connect = connect
        self._seal = seal
        self._sending = threading.Lock()
        self._state = threading.Lock()
        self._connected = threading.Event()
        """Set by ``attach`` and by ``end``."""
        self._wanted = False
        self._link: Link | None = None
        self._outbox: list[tuple[Sort, list[Any], Message, str, Future[Any]]] = []
        self._owed = 0
        """Messages to ask the link for, once it is there."""
        self._order: Order[Receive, _Arrival] = Order()
        self._over: CollectiveError | None = None

    @property
    def over(self) -> CollectiveError | None:
        """Why this stream has ended, None while it has not."""
        return self._over

    @property
    def link(self) -> Link | None:
        """The link, None before there is one."""
        return self._link

    @property
    def needed(self) -> bool:
        """Whether operations wait for a link."""
        return self._wanted and self._over is None and self._link is None

    def send(self, sort: Sort, message: Message, operation: str, fields: list[Any] | None = None) -> Future[Any]:
        """Queue a message. The future ends when its memory may be used again; it has Refused at once if nothing is sent."""
        future = begun()
        self.operations += 1
        with self._sending:
            if self._over is not None:
                settle(future, error=self._over.about(self.group, operation))
            elif self._link is None:
                self._outbox.append((sort, fields or [], message, operation, future))
            else:
                self._put(self._link, sort, fields or [], message, operation, future)
        self.connect()
        return future

    def receive(self, receive: Receive) -> Receive:
        """Post a receive: it gets the next message that no earlier one gets."""
        self.operations += 1
        link = None
        with self._state:
            message, more = self._order.post(receive)
            if more and self._over is None:
                link = self._link
                self._owed += link is None
        if message is not None:
            settle(receive.future, message)
        elif self._over is not None:
            self._fail_pending(self._over)
        elif link is not None:
            self._ask(link)
        self.connect()
        return receive

    def connect(self) -> None:
        """Make a link, if that has not begun."""
        with self._state:
            begin, self._wanted = not self._wanted and self._over is None, True
        if begin:
            self._connect(self)

    def withdraw(self, receive: Receive) -> None:
        """Take a receive back, as its time is over: its message goes to the next one."""
        with self._state:
            late = self._order.withdraw(receive)
        if late:
            settle(receive.future, error=receive.late())

    def attach(self, link: Link, theirs: Terms) -> bool:
        """The link is there, and what the peer accepts is known. False if the stream has ended meanwhile, or has a link."""
        with self._sending:
            with self._state:
                if self._over is not None or self._link is not None:
                    return False
                self._wanted = True
                self._link, self.theirs = link, theirs
                owed, self._owed = self._owed, 0
            for sort, fields, message, operation, future in self._outbox:
                self._put(link, sort, fields, message, operation, future)
            self._outbox.clear()
        for _ in range(owed):
            self._ask(link)
        self._connected.set()
        return True

    def end(self, error: CollectiveError) -> None:
        """All that is pending, and all that comes later, fails with ``error``. The first error holds."""
        with self._state:
            if self._over is not None:
                return
            self._over = error
        if self._link is not None:
            self._link.fail(error)
        self._fail_pending(error)
        with self._sending:  # who sends looks at ``_over`` under this lock
            outbox, self._outbox = self._outbox, []
        for _, _, _, operation, future in outbox:
            settle(future, error=error.about(self.group, operation))
        self._connected.set()

    def lost(self, later: Callable[[float, Callable[[], None]], Any], end: Callable[[], None]) -> None:
        """The peer is over: ``end`` is called, at once if the connection broke, else when all that it had sent has come.

        What one had sent that closed its groups before it ended can still be received.
        """
        link = self._link
        if link is None or link.broken:
            end()
        elif not link.closed:
            later(_RUN_DRY, lambda: None if link.closed else end())

    def close(self, deadline: float) -> None:
        """Flush what was sent, tell the peer, and end with GroupClosed."""
        if self._outbox:
            self._connected.wait(max(0.0, deadline - time.monotonic()))
        if self._link is not None and self._over is None:
            self._link.close(max(0.0, deadline - time.monotonic()))
        self.end(GroupClosed("the group was closed here", peer=self.peer))

    def facts(self) -> dict[str, Any]:
        """The path and counts, as plain values."""
        if self._link is None:
            return {"path": "none yet", "operations": self.operations, "queued_out": len(self._outbox)}
        return {"path": self._link.path, "operations": self.operations, **self._link.stats._asdict()}

    def help(self, ready: Callable[[], bool], deadline: float) -> None:
        """Read the link in this thread."""
        self._connected.wait(max(0.0, deadline - time.monotonic()))
        if self._link is not None:
            self._link.help(ready, deadline)

    def heard(self) -> str:
        """Whom an operation waits for, and since when that one was last heard of."""
        if self._link is None:
            return f"no connection to {self.peer} yet: has it made the group?"
        return f"it waits for {self.peer}, last heard of on this stream {time.monotonic() - self._link.heard:.1f} s ago"

    def _put(self, link: Link, sort: Sort, fields: list[Any], message: Message, operation: str, future: Future[Any]) -> None:
        """Give a message to the link, if the peer takes it. Under the lock of sends."""
        most = min(self._terms.max_bytes, self.theirs.max_bytes)
        why = None
        if message.pickled and not self.theirs.allow_pickle:
            why = "it needs pickle, and the peer has not set allow_pickle=True"
        elif message.nbytes > most:
            why = f"it has {message.nbytes} bytes, and max_bytes is {most}: send it in parts, or raise max_bytes at both sides"
        if why is not None:
            settle(future, error=Refused(why, peer=self.peer).about(self.group, operation))
            return
        frame = outgoing(sort, fields, message)

        def done(error: BaseException | None, message: Message | None = message) -> None:  # noqa: ARG001 - kept until then
            settle(future, error=None if error is None else self._error(error).about(self.group, operation))

        link.send(frame.header, frame.payload, done, sealed=self._seal or frame.sealed)

    def _ask(self, link: Link) -> None:
        arrival = _Arrival(self)
        link.receive(arrival.place, arrival.done)

    # Called by the link

    def begins(self, arrival: _Arrival) -> Receive | None:
        """A message begins to arrive."""
        with self._state:
            return self._order.begin(arrival)

    def ends(self) -> Receive | None:
        """It is complete."""
        with self._state:
            return self._order.end()

    def fails(self, error: BaseException) -> None:
        """The link has ended, as one of its receives says."""
        with self._state:
            self._over = self._over or self._error(error)
        self._fail_pending(self._over)

    @property
    def limit(self) -> int:
        """Bytes of the largest message that is accepted."""
        return self._terms.max_bytes

    def _fail_pending(self, error: CollectiveError) -> None:
        with self._state:
            pending = self._order.clear(keep=isinstance(error, GroupClosed))
        for receive in pending:
            settle(receive.future, error=error.about(self.group, receive.operation))

    def _error(self, error: BaseException) -> CollectiveError:
        if isinstance(error, CollectiveError):
            return error if self._over is None or isinstance(error, (Mismatch, Refused)) else self._over
        return LinkBroken(f"the connection to {self.peer} failed: {error}", peer=self.peer)


class Sent(Patience):
    """Of a send: it waits for the peer to take the bytes."""

    def __init__(self, lane: Lane, operation: str, future: Future[Any]) -> None:
        self._lane, self._operation, self._future = lane, operation, future
        self._began = time.monotonic()

    def give_up(self) -> None:
        """See ``Patience``. What is queued stays so: half a message would end the stream."""
        settle(self._future, error=self.late())

    def late(self) -> CollectiveTimeout:
        """See ``Patience``."""
        text = f"not ended in {time.monotonic() - self._began:.3g} s: {self._lane.heard()}"
        return CollectiveTimeout(text, peer=self._lane.peer).about(self._lane.group, self._operation)


class Receive(Sent):
    """One receive: what it accepts, and where to."""

    def __init__(self, lane: Lane, operation: str, sort: Sort, classes: Classes | None, into: Leaf = None) -> None:
        self.future: Future[Any] = begun()
        super().__init__(lane, operation, self.future)
        self.operation = operation
        self._sort = sort
        self._classes = classes
        self._into = into
        self._shape: Shape = [] if into is None else shape_of(into)

    def help(self, ready: Callable[[], bool], deadline: float) -> None:
        """See ``Patience``."""
        self._lane.help(ready, deadline)

    def give_up(self) -> None:
        """See ``Patience``."""
        self._lane.withdraw(self)

    def memory(self, frame: Incoming) -> Leaf:
        """The program's own memory, if the message goes there as it is. Mismatch if it is not what was asked for."""
        self._check(frame)
        return self._into if self._into is not None and not self._shape[2] else None

    def finish(self, arrival: _Arrival) -> Any:
        """What the program gets: a value, or the tensor that was given."""
        try:
            frame, message = arrival.complete()
            self._check(frame)
            if self._into is None:
                leaves = [placed(leaf, shape) for leaf, shape in zip(message.leaves, message.shapes, strict=True)]
                return decode(message.tree, leaves, self._classes) if self._classes else leaves[0]
            if message.leaves[0] is not self._into:
                _copy(self._into, message.leaves[0])
        except CollectiveError as error:
            raise type(error)(str(error), peer=self._lane.peer).about(self._lane.group, self.operation) from None
        return self._into

    def _check(self, frame: Incoming) -> None:
        if frame.sort is not self._sort:
            sent = NAMES.get(frame.sort, frame.sort.name)
            raise Mismatch(f"the peer called {sent}: the operations of both sides must pair up, in the same order")
        if self._shape and [_bare(shape) for shape in frame.shapes] != [_bare(self._shape)]:
            raise Mismatch(f"a tensor {self._shape} was given, and the peer sent {frame.shapes}: use equal dtypes and shapes")


class _Arrival:
    """One message that the link was asked for: its callbacks, and what came."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._frame: Incoming | None = None
        self._error: Mismatch | None = None
        self._message: Message | None = None

    def place(self, header: bytes) -> list[memoryview] | None:
        """The memory for a message with this header; None: it is thrown away."""
        receive = self._lane.begins(self)
        try:
            self._frame = Incoming.of(header)
            return self._frame.room(self._lane.limit, None if receive is None else receive.memory(self._frame))
        except Mismatch as error:
            self._error = error
        except Exception as error:  # noqa: BLE001 - a hostile header may raise anything
            self._error = Mismatch(f"a header that cannot be read: {error!r:.200}")
        return None

    def done(self, header: bytes | None, error: BaseException | None) -> None:  # noqa: ARG002 - as links call it
        """All is there, or the link has ended."""
        if error is not None and self._error is None:
            self._lane.fails(error)
        elif (receive := self._lane.ends()) is not None:
            settle(receive.future, self)

    def complete(self) -> tuple[Incoming, Message]:
        """What came, which is given away. Mismatch if it was thrown away."""
        if self._error is not None or self._frame is None:
            raise self._error or Mismatch("the message was thrown away")
        return self._frame, self._frame.message()


def _bare(shape: Shape) -> Shape:
    """Without the device: a tensor may go from a GPU to a host."""
    return [*shape[:2], *shape[3:]]


def _copy(into: Leaf, leaf: Leaf) -> None:
    if hasattr(into, "copy_"):
        into.detach().copy_(leaf)
    else:
        into[...] = leaf


def settle(future: Future[Any], value: Any = None, error: BaseException | None = None) -> None:
    """End ``future``, unless it has ended: a time-out may have come first."""
    with contextlib.suppress(InvalidStateError):
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)
