"""Named queues that one member serves: items by key, first in first out, for any number of members that put and get.

The server never looks into an item: it keeps the bytes as they came. An answer with items is acknowledged when it has arrived;
an item that was not goes back to the head of its queue when its getter dies.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import operator
import os
import queue
import secrets
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any

import msgpack

from consensus import Member

from ..links.errors import CollectiveError, CollectiveTimeout, GroupClosed, Mismatch, Refused
from .collective import Collective
from .frames import Sort, check_name
from .lane import Lane
from .queues import Ask, Code, QueueAnswer, Queues
from .values import Message, copied, decode, encode, hosted
from .works import CALLBACKS, AsyncChannelWork, Outcome, Patience, limit_of

_NOTHING = Message(b"", [], [])
_SOON = 0.002
"""Seconds after which an item is acknowledged, where the next request does not say so before."""
_TOGETHER = 1000
"""The most answers that are acknowledged together: a header holds them."""
Later = Callable[[float, Callable[[], None]], object]
Reply = Callable[[list[Any], Message], Any]
"""Sends one answer to a client."""


class Verb(IntEnum):
    """What a client asks for."""

    PUT = 0
    GET = 1
    CANCEL = 2
    ACKNOWLEDGE = 3
    GIVE_BACK = 4
    SIZE = 5
    PEEK = 6


class Channel:
    """A queue by name. All members that use it make one of these with the same ``name`` and ``at``; any thread.

    ``at``: the member that keeps the items, by default this one; its death is PeerLost at everybody who waits. ``maxsize``:
    most items of each key, 0 (or less) for any number; that of the server counts.

    ``put`` returns when the server has the item. An item is delivered once, even if getters die: it is lost with the server, or
    with a getter that had it already. Where a connection breaks between two that live it may be delivered twice.

    Every method raises PeerLost, LinkBroken or GroupClosed once the server is over, out of reach, or has closed the channel;
    Refused for an item, key or weight that cannot be sent. ``weight`` is any number, ``timeout`` in seconds.
    """

    def __init__(self, collective: Collective, name: str, *, at: Member | str | None = None, maxsize: int = 0) -> None:
        if not isinstance(name, str):
            raise Refused(f"the name of a channel is a string, not {name!r:.80}")
        check_name("the name of a channel", name)
        try:
            maxsize = max(0, operator.index(maxsize))
        except TypeError:
            raise Refused(f"maxsize is a number of items, not {maxsize!r:.80}") from None
        if maxsize > sys.maxsize:  # no answer could hold it
            raise Refused(f"maxsize is a number of items, at most {sys.maxsize}; 0 for any number")
        self.name = name
        self._process = os.getpid()
        self._classes = collective.classes
        here = collective.here
        self.at = collective.member(here if at is None else at)
        if self.at.id == here.id:
            server = _Server(maxsize)
            self._client = _Client(self.at, None, collective.later)
            self._client.use(server.local(self._client.answered))
            collective.services.serve(name, server.welcome, self._client.ended)
            self._close: Callable[[], None] = lambda: collective.end_channel(name)
        else:
            group = collective.channel_group(self.at, f"{name}#{secrets.token_hex(4)}")
            lane = group.lane(self.at.id)
            self._client = _Client(self.at, lane, collective.later)
            self._client.use(lambda fields, message: lane.send(Sort.CHANNEL, message, "channel", fields))
            lane.serve(self._client.came, self._client.ended, self._client.acknowledge)
            self._close = group.close

    def __repr__(self) -> str:
        return f"<Channel {self.name!r} at {self.at}>"

    def put(
        self, item: object, weight: float = 0, key: str = "default", async_op: bool = False, timeout: float | None = None
    ) -> AsyncChannelWork | None:
        """Add ``item``, waiting for room; queue.Full if there was none for ``timeout`` seconds (default: ten minutes)."""
        work = self._ask([Verb.PUT, key, _weight(weight), True], [self._encoded(item)], lambda _: None, async_op, timeout)
        return work if async_op else work.wait()

    def put_nowait(self, item: object, weight: float = 0, key: str = "default") -> None:
        """Add ``item``, or raise queue.Full."""
        self._ask([Verb.PUT, key, _weight(weight), False], [self._encoded(item)], lambda _: None).wait()

    def get(self, key: str = "default", async_op: bool = False, timeout: float | None = None) -> Any:
        """Take the first item, waiting for one; queue.Empty if none came for ``timeout`` seconds (default: ten minutes)."""
        work = self._ask([Verb.GET, key, None, True], [], lambda items: items[0], async_op, timeout)
        return work if async_op else work.wait()

    def get_nowait(self, key: str = "default") -> Any:
        """Take the first item, or raise queue.Empty."""
        return self._ask([Verb.GET, key, None, False], [], lambda items: items[0]).wait()

    def get_batch(
        self, target_weight: float, key: str = "default", async_op: bool = False, timeout: float | None = None
    ) -> Any:
        """A list of the first items whose weights add up to ``target_weight``, waiting for them; queue.Empty as ``get``."""
        work = self._ask([Verb.GET, key, _weight(target_weight), True], [], list, async_op, timeout)
        return work if async_op else work.wait()

    def qsize(self, key: str = "default") -> int:
        """How many items can be had now."""
        return int(self._sizes(key)[0])

    def empty(self, key: str = "default") -> bool:
        """Whether there is none."""
        return self.qsize(key) == 0

    def full(self, key: str = "default") -> bool:
        """Whether a ``put`` would wait."""
        size, most = self._sizes(key)
        return 0 < most <= size

    def peek_all(self, key: str = "default") -> list[Any]:
        """All items that can be had now, which stay where they are."""
        return list(self._ask([Verb.PEEK, key, None, False], [], list).wait())

    def close(self) -> None:
        """Leave the channel; at its server, end it: others get GroupClosed, and what is in it is lost. Idempotent."""
        close, self._close = self._close, lambda: None  # a newer one may have the name by the next time
        close()

    def _encoded(self, item: object) -> Message:
        """On the host: the server keeps it in memory of its own, whatever devices it has."""
        return hosted(encode(item, self._classes))

    def _sizes(self, key: str) -> list[int]:
        return list(self._ask([Verb.SIZE, key, None, False], [], lambda sizes: sizes).wait())

    def _ask(
        self,
        fields: list[Any],
        items: list[Message],
        finish: Callable[[Any], Any],
        async_op: bool = False,
        timeout: float | None = None,
    ) -> AsyncChannelWork:
        if os.getpid() != self._process:
            raise GroupClosed("this process was forked from the one that has this channel: make another one here")
        if not isinstance(fields[1], str):
            raise Refused(f"the key of an item is a string, not {fields[1]!r}")
        check_name("the key", fields[1])

        def made(answer: tuple[Code, list[int], list[Message]]) -> Any:
            code, sizes, found = answer
            if code == Code.REFUSED:
                raise Refused(f"channel {self.name!r}: {sizes}", peer=self.at)
            if code in {Code.EMPTY, Code.FULL}:
                raise queue.Empty if code is Code.EMPTY else queue.Full
            values = [decode(each.tree, each.leaves, self._classes) for each in found]
            return finish(sizes or values)

        limit = limit_of(async_op, timeout)
        number, outcome = self._client.ask(fields, _packed(items))
        patience = _Asked(self, self._client, number, takes=fields[0] == Verb.GET)
        return AsyncChannelWork(outcome, made, patience=patience, timeout=limit)


class _Client:
    """The requests of one channel here that have no answer yet."""

    def __init__(self, server: Member, lane: Lane | None, later: Later) -> None:
        """``later(seconds, call)`` calls on another thread."""
        self.server = server
        self.lane = lane
        self._later = later
        self._taken: list[int] = []
        """Answers whose items are to be acknowledged."""
        self._timed = False
        self._send: Reply | None = None
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._pending: dict[int, Outcome] = {}
        self._dropped: deque[int] = deque()
        """Requests that the server is still to hear are given up."""
        self._over: CollectiveError | None = None

    def use(self, send: Reply) -> None:
        """``send`` carries requests to the server."""
        self._send = send

    def ask(self, fields: list[Any], message: Message) -> tuple[int, Outcome]:
        """Send a request; its number, and what completes with the answer."""
        while self._dropped:
            with contextlib.suppress(IndexError):  # another thread came first
                self.tell([Verb.CANCEL, self._dropped.popleft(), "", None, False])
        outcome = Outcome()
        with self._lock:
            number = next(self._numbers)
            if self._over is not None:
                outcome.settle(error=self._over.about())
                return number, outcome
            self._pending[number] = outcome
            taken, self._taken = self._taken, []
        sent = self.tell([*fields[:1], number, *fields[1:], taken], message)
        if isinstance(sent, Outcome):
            sent.on_end(lambda: self._not_sent(number, sent.error, taken))
        return number, outcome

    def tell(self, fields: list[Any], message: Message = _NOTHING) -> Any:
        """Send a request that has no answer."""
        assert self._send is not None
        return self._send(fields, message)

    def came(self, fields: list[Any], message: Message) -> None:
        """An answer has arrived over the stream."""
        verb = self.answered(fields, message)
        if verb is Verb.GIVE_BACK:
            self.tell([verb, fields[0], "", None, False])
        elif verb is Verb.ACKNOWLEDGE and self._to_acknowledge([fields[0]]) >= _TOGETHER:
            self.acknowledge()

    def acknowledge(self) -> None:
        """Tell the server which items have arrived, if it does not know."""
        with self._lock:
            taken, self._taken = self._taken, []
        if taken:
            self.tell([Verb.ACKNOWLEDGE, 0, "", None, False, taken])

    def _to_acknowledge(self, taken: Sequence[int]) -> int:
        """These are due with the next request, or soon; returns how many are. Sends nothing."""
        with self._lock:
            self._taken += taken
            count, timed, self._timed = len(self._taken), self._timed, True
        if not timed:
            self._later(_SOON, self._lapse)
        return count

    def _lapse(self) -> None:
        with self._lock:
            self._timed = False
        self.acknowledge()

    def answered(self, fields: list[Any], message: Message) -> Verb | None:
        """An answer has arrived: what to tell the server of its items."""
        number, code, sizes = fields
        found = Code(code), sizes, _unpacked(message)
        with self._lock:
            outcome = self._pending.pop(number, None)
        taken = outcome is not None and outcome.settle(found)  # not where its wait has ended meanwhile
        if code != Code.ITEMS:
            return None
        return Verb.ACKNOWLEDGE if taken else Verb.GIVE_BACK

    def drop(self, number: int) -> None:
        """Nobody waits for the answer any more: its items are given back. By a finalizer: takes no lock, sends nothing."""
        outcome = self._pending.get(number)
        if outcome is not None:
            outcome.settle(error=CollectiveError("nobody waits for it"))
            self._dropped.append(number)

    def ended(self, error: CollectiveError) -> None:
        """The server is gone, or closed."""
        with self._lock:
            self._over = error
            pending, self._pending = self._pending, {}
        for outcome in pending.values():
            outcome.settle(error=error)

    def _not_sent(self, number: int, error: BaseException | None, taken: Sequence[int] = ()) -> None:
        """The request has gone, or ``error`` says why not: then the answers that it was to acknowledge still are due."""
        if error is not None:
            with self._lock:
                outcome = self._pending.pop(number, None)
            if outcome is not None:
                outcome.settle(error=error)
            if taken:
                self._to_acknowledge(taken)


class _Asked(Patience):
    """Of a request: it waits for the server."""

    def __init__(self, channel: Channel, client: _Client, number: int, *, takes: bool) -> None:
        """``takes``: whether the answer is an item, which must not be lost."""
        self._channel, self._client, self._number, self._takes = channel, client, number, takes

    def help(self, ready: Callable[[], bool], deadline: float) -> None:
        """See ``Patience``."""
        if self._client.lane is not None:
            self._client.lane.help(ready, deadline)

    def give_up(self) -> None:
        """See ``Patience``. The server answers, in any case."""
        self._client.tell([Verb.CANCEL, self._number, "", None, False])

    def dropped(self) -> None:
        """See ``Patience``. What was put is put."""
        if self._takes:
            self._client.drop(self._number)

    def late(self) -> CollectiveTimeout:
        """See ``Patience``."""
        lane = self._client.lane
        text = "no answer yet" if lane is None else f"no answer yet: {lane.waits_for()}"
        return CollectiveTimeout(text, peer=self._client.server).about(self._channel.name, "an operation of the channel")


class _Server:
    """The queues, and the clients whose streams have come."""

    def __init__(self, maxsize: int) -> None:
        self._maxsize = maxsize
        self._queues = Queues(maxsize)
        self._lock = threading.Lock()

    def welcome(self, lane: Lane) -> None:
        """A client's stream."""

        def reply(fields: list[Any], message: Message) -> Any:
            return lane.send(Sort.CHANNEL, message, "channel", fields)

        def lost(_: CollectiveError) -> None:
            # Who hears of an end may hold the lock of that stream's sends: what follows sends on others.
            CALLBACKS.submit(lambda: self._lost(reply))

        lane.serve(lambda fields, message: self._handle(reply, fields, message), lost)

    def local(self, answered: Reply) -> Reply:
        """The server's own program as a client: what goes in is copied. What comes out is the program's."""

        def reply(fields: list[Any], message: Message) -> Any:
            return answered(fields, message)

        return lambda fields, message: self._handle(reply, fields, copied(message))

    def _handle(self, reply: Reply, fields: list[Any], message: Message) -> None:
        verb, number, key, amount, wait, *more = fields
        ask: Ask = (reply, int(number))
        taken = [int(each) for each in more[0]] if more else []
        with self._lock:
            for each in taken:
                self._queues.acknowledge((reply, each))
            match verb:
                case Verb.PUT:
                    answers = self._queues.put(ask, str(key), float(amount), _unpacked(message)[0], wait=bool(wait))
                case Verb.GET:
                    answers = self._queues.get(ask, str(key), None if amount is None else float(amount), wait=bool(wait))
                case Verb.CANCEL:
                    answers = self._queues.cancel(ask)
                case Verb.GIVE_BACK:
                    answers = self._queues.give_back(ask)
                case _:
                    answers = []
            sizes = [self._queues.size(str(key)), self._maxsize]
            # A copy, made while the items are here: this program may get one, and write to it, before the answer is sent.
            seen = self._queues.items(str(key)) if verb == Verb.PEEK else ()
            peeked = tuple(dataclasses.replace(item, value=copied(item.value)) for item in seen)
        if verb == Verb.SIZE:
            reply([number, Code.DONE, sizes], _NOTHING)
        elif verb == Verb.PEEK:
            answers = [*answers, QueueAnswer(ask, Code.DONE, peeked)]
        self._send(answers)

    def _lost(self, reply: Reply) -> None:
        with self._lock:
            answers = self._queues.lost(reply)
        self._send(answers)

    def _send(self, answers: list[QueueAnswer]) -> None:
        """Give the answers, and what follows where one is not taken. Holds no lock."""
        left = deque(answers)
        while left:
            answer = left.popleft()
            reply: Any = answer.ask[0]
            said = reply([answer.ask[1], answer.code, []], _packed([item.value for item in answer.items]))
            if isinstance(said, Outcome) and isinstance(said.error, Refused):  # as a pickle, where none may come
                reply([answer.ask[1], Code.REFUSED, str(said.error)], _NOTHING)
                said = Verb.GIVE_BACK
            if said is Verb.GIVE_BACK:
                with self._lock:
                    left.extend(self._queues.give_back(answer.ask))
            elif said is Verb.ACKNOWLEDGE:
                with self._lock:
                    self._queues.acknowledge(answer.ask)


def _weight(value: Any) -> float:
    """Of one item or of a batch, from a number of any kind. Refused if it is none."""
    try:
        weight = float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # the last one is torch's
        weight = math.nan
    if math.isnan(weight):
        raise Refused(f"a weight is a number that a float can hold, not {value!r:.80}")
    return weight


def _packed(items: list[Message]) -> Message:
    """Several messages as one."""
    if not items:
        return _NOTHING
    tree = msgpack.packb([[item.tree, len(item.leaves), item.pickled] for item in items])
    shapes, leaves = (list(itertools.chain(*parts)) for parts in ([i.shapes for i in items], [i.leaves for i in items]))
    return Message(tree, shapes, leaves, pickled=any(item.pickled for item in items))


def _unpacked(message: Message) -> list[Message]:
    """The inverse. Mismatch if it is none."""
    items, at = [], 0
    try:
        for tree, count, pickled in msgpack.unpackb(message.tree) if message.tree else ():
            shapes, leaves = message.shapes[at : at + count], message.leaves[at : at + count]
            items.append(Message(bytes(tree), shapes, leaves, bool(pickled)))
            at += count
    except (ValueError, TypeError) as error:
        raise Mismatch(f"items that cannot be read: {error}") from None
    return items
