"""One peer of a group: what is sent to it and received from it, in order, over a link that is made when it is first needed.

A link may call back in the thread that uses it, so no lock is held in a callback that is held around a call of the link: sends
have one lock, and the state has another one.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgpack

from consensus import Member

from ..common.devices import HOST, Event
from ..common.threads import LONGEST
from ..links.errors import CollectiveError, GroupClosed, LinkBroken, Mismatch, Refused, called
from ..links.link import Link
from .devices.carriers import await_event, failure
from .devices.choice import Facts
from .devices.freight import Freight, Serial
from .frames import Sort, outgoing
from .operations import Arrival, Handle, Receive, Standing
from .order import Order
from .values import Leaf, Message, hosted
from .works import Outcome, all_of

NO_VALUE = Message(b"", [], [])
"""In the place of a broadcast that a peer does not take: its turn comes there all the same."""
_RUN_DRY = 0.25
"""Seconds in which the last bytes of a peer that is over are read."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What one side accepts. A message must fit those of both. ``gpu``: what a peer has said of its GPUs."""

    allow_pickle: bool
    max_bytes: int
    gpu: Facts = field(default_factory=dict)


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
        self._process = os.getpid()
        self._sending = threading.Lock()
        self._state = threading.Lock()
        self._connected = threading.Event()
        """Set by ``attach`` and by ``end``."""
        self._wanted = False
        self._link: Link | None = None
        self._freight: Freight | None = None
        self._leaving, self._arriving = Serial(), Serial()
        """What waits for a device: messages to be handed to the link, and tensors that come beside it."""
        self._outbox: list[tuple[Sort, list[Any], Message, str, Outcome]] = []
        self._owed = 0
        """Messages to ask the link for, once it is there."""
        self._order: Order[Receive, Arrival] = Order()
        self._standing: Standing | None = None
        """Takes all that comes, instead of receives."""
        self._over: CollectiveError | None = None
        self._closing: Callable[[], None] = lambda: None

    @property
    def over(self) -> CollectiveError | None:
        """Why this stream has ended, None while it has not: what a peer has sent before can still be received."""
        if self._over is not None or self._link is None or self._order.kept:
            return self._over
        error = self._link.over
        return None if error is None else self._error(error)

    @property
    def inherited(self) -> bool:
        """Whether this is a forked child's copy, which has no stream."""
        return os.getpid() != self._process

    @property
    def link(self) -> Link | None:
        """The link, None before there is one."""
        return self._link

    @property
    def needed(self) -> bool:
        """Whether operations wait for a link."""
        return self._wanted and self._over is None and self._link is None

    def refusal(self, message: Message) -> Refused | None:
        """Why the peer does not take it; None if it does, or if it is not known yet what it accepts."""
        if self._link is None:
            return None
        most = min(self._terms.max_bytes, self.theirs.max_bytes)
        if message.pickled and not self.theirs.allow_pickle:
            return Refused("it needs pickle, and the peer has not set allow_pickle=True", peer=self.peer)
        if message.nbytes > most:
            why = f"it has {message.nbytes} bytes, and max_bytes is {most}: send it in parts, or raise max_bytes at both sides"
            return Refused(why, peer=self.peer)
        return None

    def send(self, sort: Sort, message: Message, operation: str, fields: list[Any] | None = None) -> Outcome:
        """Queue a message. It has ended when its memory may be used again; with Refused at once if nothing is sent.

        The peer finds a broadcast that it does not take in its order, as a Mismatch: other peers may take it.
        """
        outcome = Outcome()
        if self.inherited:
            outcome.settle(error=_inherited().about(self.group, operation))
            return outcome
        self.operations += 1
        with self._sending:
            if self._over is not None:
                outcome.settle(error=self._over.about(self.group, operation))
            elif self._link is None:
                self._outbox.append((sort, fields or [], message, operation, outcome))
            else:
                self._put(self._link, sort, fields or [], message, operation, outcome)
        self.connect()
        return outcome

    def receive(self, receive: Receive) -> Receive:
        """Post a receive: it gets the next message that no earlier one gets."""
        if self.inherited:
            receive.outcome.settle(error=_inherited().about(self.group, receive.operation))
            return receive
        self.operations += 1
        link = None
        with self._state:
            message, more = self._order.post(receive)
            if more and self._over is None:
                link = self._link
                self._owed += link is None
        if message is not None:
            message.give(receive)
        elif self._over is not None:
            self._fail_pending(self._over)
        elif link is not None:
            self.ask(Arrival(self))
        self.connect()
        return receive

    def serve(
        self, handle: Handle, ended: Callable[[CollectiveError], None], closing: Callable[[], None] = lambda: None
    ) -> None:
        """Give every message to ``handle``, and the end to ``ended``: neither may wait. Once, before any receive.

        ``closing`` is called before this side says goodbye.
        """
        standing = Standing(self, handle, ended)
        self._closing = closing
        with self._state:
            self._standing = standing
            link, over = self._link, self._over
            self._owed += link is None
        if over is not None:
            self._fail_pending(over)
        elif link is not None:
            self.ask(standing)
        self.connect()

    def connect(self) -> None:
        """Make a link, if that has not begun."""
        with self._state:
            begin, self._wanted = not self._wanted and self._over is None, True
        if begin:
            self._connect(self)

    def withdraw(self, receive: Receive) -> None:
        """Take a receive back, as its time is over: its message goes to the next one, and its memory is the program's again."""
        if self.inherited:
            return
        with self._state:
            late, coming = self._order.withdraw(receive)
        if coming is not None and self._link is not None:
            self._link.redirect(coming.done, coming.moved)
        if late:
            receive.outcome.settle(error=receive.late())

    def attach(self, link: Link, theirs: Terms) -> bool:
        """The link is there, and what the peer accepts is known. False if the stream has ended meanwhile, or has a link."""
        with self._sending:
            with self._state:
                if self._over is not None or self._link is not None:
                    return False
                self._wanted = True
                self._link, self.theirs = link, theirs
                freight = self._freight = Freight(theirs.gpu, lambda said: link.talk(msgpack.packb(said)))
                owed, self._owed = self._owed, 0
            link.listen(lambda said: freight.on_message(msgpack.unpackb(said)), freight.end)
            for sort, fields, message, operation, outcome in self._outbox:
                self._put(link, sort, fields, message, operation, outcome)
            self._outbox.clear()
        for _ in range(owed):
            self.ask(self._standing or Arrival(self))
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
        for _, _, _, operation, outcome in outbox:
            outcome.settle(error=error.about(self.group, operation))
        self._connected.set()

    def lost(self, later: Callable[[float, Callable[[], None]], Any], end: Callable[[], None]) -> None:
        """The peer is over: ``end`` is called, at once if the connection broke, else when all that it had sent has come.

        What one had sent that closed its groups before it ended can still be received. Where there is no link yet, the peer's
        last word on its stream may have come, and messages after it: that is waited for, too.
        """
        link = self._link
        if link is None and self._over is None:
            later(_RUN_DRY, lambda: self._run_dry(end))
        elif link is None or link.broken or self.over is not None:
            end()
        elif not link.closed:
            before = link.last_received

            def look() -> None:
                # What has arrived counts, though no thread came to read it: this machine may be busy.
                read = link.catch_up(_RUN_DRY)
                if read and link.last_received == before and not link.closed:
                    end()
                else:  # bytes come still, or are still being read
                    self.lost(later, end)

            later(_RUN_DRY, look)

    def _run_dry(self, end: Callable[[], None]) -> None:
        """Call ``end`` once all that a lost peer had sent has come, where its stream is here by now."""
        if self._link is not None:
            self._link.catch_up(_RUN_DRY)
        end()

    def close(self, deadline: float) -> None:
        """Flush what was sent, tell the peer, and end with GroupClosed. In a forked child it does nothing."""
        if self.inherited:
            return
        self._closing()
        if self._outbox:
            self._connected.wait(_left(deadline))
        if self._over is None:
            self._leaving.rest(_left(deadline))
        if self._link is not None and self._over is None:
            self._link.close(_left(deadline))
        self.end(GroupClosed("the group was closed here", peer=self.peer))

    def facts(self) -> dict[str, Any]:
        """The path and counts, as plain values."""
        if self._link is None:
            return {"path": "none yet", "operations": self.operations, "queued_out": len(self._outbox)}
        gpu = "" if self._freight is None else self._freight.describe()
        why = {"why": self._link.why} if self._link.why else {}
        return {"path": self._link.path, **why, "gpu": gpu, "operations": self.operations, **self._link.stats._asdict()}

    def help(self, ready: Callable[[], bool], deadline: float) -> None:
        """Read the link in this thread."""
        if ready():
            return
        if self._link is None:
            self._connected.wait(_left(deadline))
        if self._link is not None:
            self._link.help(ready, deadline)

    def waits_for(self) -> str:
        """Whom an operation waits for, and since when that one was last heard of."""
        if self._link is None:
            return f"no connection to {called(self.peer)} yet: has it made the group?"
        silent = time.monotonic() - self._link.last_received
        return f"it waits for {called(self.peer)}, last heard of on this stream {silent:.1f} s ago"

    def _put(self, link: Link, sort: Sort, fields: list[Any], message: Message, operation: str, outcome: Outcome) -> None:
        """Give a message to the link, if the peer takes it. Under the lock of sends."""
        refusal = self.refusal(message)
        if refusal is not None:
            outcome.settle(error=refusal.about(self.group, operation))
            if sort is not Sort.BROADCAST:
                return
            message, outcome = NO_VALUE, Outcome()
        if message.after or self._leaving.busy:
            self._leaving.put(lambda: self._load(link, sort, fields, message, operation, outcome))
        else:
            self._hand_on(link, sort, fields, message, operation, outcome)

    def _hand_on(self, link: Link, sort: Sort, fields: list[Any], message: Message, operation: str, outcome: Outcome) -> bool:
        """Give it to the link. Returns False if it cannot be sent: those behind it go on."""
        try:
            frame = outgoing(sort, fields, message)
        except Exception as error:  # noqa: BLE001 - whatever a subclass of tensors or arrays raises
            why = error if isinstance(error, Refused) else Refused(f"it cannot be sent: {error!r:.200}")
            outcome.settle(error=Refused(str(why), peer=self.peer).about(self.group, operation))
            if sort is Sort.BROADCAST:
                self._hand_on(link, sort, [], NO_VALUE, operation, Outcome())
            return False

        def done(error: BaseException | None, message: Message | None = message) -> None:  # noqa: ARG001 - kept until then
            outcome.settle(error=None if error is None else self._error(error).about(self.group, operation))

        link.send(frame.header, frame.payload, done, sealed=self._seal or frame.sealed)
        return True

    def _load(self, link: Link, sort: Sort, fields: list[Any], message: Message, operation: str, outcome: Outcome) -> None:
        """Hand on a message with tensors on devices, or one behind it, on the thread of ``_leaving``."""
        try:
            for event in message.after:
                await_event(event, "what was launched before the send")
            freight, cargo = self._freight, list[Leaf]()
            if message.after and freight is not None and sort is not Sort.CHANNEL and message.fits_header:
                message, cargo = message.split(lambda leaf: not self._seal and freight.takes(leaf))
            message = hosted(message)
            if not cargo or freight is None:
                self._hand_on(link, sort, fields, message, operation, outcome)
                return
            parts = [Outcome(), Outcome()]
            all_of(parts, outcome)
            if not self._hand_on(link, sort, fields, message, operation, parts[0]):
                parts[1].settle()
                return
            try:
                freight.send(cargo)
            except Exception as error:  # noqa: BLE001 - the peer waits for these tensors: the stream cannot go on
                why = freight.over or failure(error)
                self._fail_link(link, why)
                parts[1].settle(error=self._error(why).about(self.group, operation))
            else:
                parts[1].settle()
        except Exception as error:  # noqa: BLE001 - a device may raise anything
            outcome.settle(error=self._error(failure(error)).about(self.group, operation))

    def _fail_link(self, link: Link, error: BaseException) -> None:
        if not (link.closed or link.broken):
            link.fail(LinkBroken(str(error), peer=self.peer))

    def ask(self, arrival: Arrival | Standing) -> None:
        """Ask the link, which is there, for the next message."""
        assert self._link is not None
        self._link.receive(arrival.place, arrival.done)

    # Called by the link

    def begins(self, arrival: Arrival) -> Receive | None:
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

    @property
    def place(self) -> str:
        """The device on which tensors arrive that come beside the link, ``HOST`` for none."""
        return HOST if self._freight is None else self._freight.place

    def fetch(self, cargo: list[Leaf], after: list[Event], done: Callable[[CollectiveError | None], None]) -> None:
        """Fill these tensors, once the device has come to ``after``; then call ``done``."""

        def bring() -> None:
            try:
                assert self._freight is not None
                for event in after:
                    await_event(event, "what was launched before the receive")
                self._freight.receive(cargo)
            except Exception as error:  # noqa: BLE001 - whatever a device raises
                why = (self._freight and self._freight.over) or failure(error)
                done(self._error(why))
                if self._link is not None:
                    self._fail_link(self._link, why)
            else:
                done(None)

        self._arriving.put(bring)

    def _fail_pending(self, error: CollectiveError) -> None:
        with self._state:
            pending = self._order.clear(keep=isinstance(error, GroupClosed))
            standing, self._standing = self._standing, None
        if standing is not None:
            standing.ended(error.about(self.group, "channel"))
        for receive in pending:
            receive.outcome.settle(error=error.about(self.group, receive.operation))

    def _error(self, error: BaseException) -> CollectiveError:
        if isinstance(error, CollectiveError):
            return error if self._over is None or isinstance(error, (Mismatch, Refused)) else self._over
        return LinkBroken(f"the connection to {called(self.peer)} failed: {error}", peer=self.peer)


def _left(deadline: float) -> float:
    """Seconds until then, as far as one wait may be."""
    return min(max(0.0, deadline - time.monotonic()), LONGEST)


def _inherited() -> GroupClosed:
    return GroupClosed("this process was forked from the one that has the streams: make a Collective of its own here")
