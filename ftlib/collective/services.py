"""The channels that this member serves, and the streams of their clients."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..errors import ConfigError
from ..links.errors import CollectiveError, GroupClosed
from .greeting import Caller, Greeter, GreetingReply, Word, hear, no_room, read
from .lane import Lane, Terms

CHANNEL = "channel:"
"""What the names of groups that carry a channel begin with."""


def channel_of(name: str) -> str:
    """The channel that a group of this name carries, "" for none; each client has a group of its own."""
    return name.removeprefix(CHANNEL).rpartition("#")[0] if name.startswith(CHANNEL) else ""


@dataclass(frozen=True, slots=True)
class _Served:
    """A channel: who takes the streams of its clients, who hears that it was closed here, and those streams."""

    handler: Callable[[Lane], None]
    ended: Callable[[CollectiveError], None]
    lanes: list[Lane] = field(default_factory=list)


class Services:
    """Channels by name. Any thread."""

    def __init__(self, greeter: Greeter, terms: Terms, *, seal: bool) -> None:
        self._greeter = greeter
        self._terms = terms
        self._seal = seal
        self._lock = threading.Lock()
        self._served: dict[str, _Served] = {}
        self._waiting: list[Caller] = []
        """Clients of channels that are not served here yet."""

    def serve(self, name: str, handler: Callable[[Lane], None], ended: Callable[[CollectiveError], None]) -> None:
        """Give every stream to the channel ``name`` here to ``handler``, those that have waited for it as well.

        ``ended`` is called when the channel is closed here.
        """
        with self._lock:
            if name in self._served:
                raise ConfigError(f"this member serves a channel {name!r} already: choose another name")
            self._served[name] = _Served(handler, ended)
            ready = [each for each in self._waiting if channel_of(each.opening.key[1]) == name]
            self._waiting = [each for each in self._waiting if each not in ready]
        for each in ready:
            self._take(name, each)

    def stop(self, name: str, deadline: float) -> None:
        """End the channel ``name`` at this member: those who wait for it get GroupClosed, here and elsewhere."""
        with self._lock:
            served = self._served.pop(name, None)
        if served is None:
            return
        served.ended(GroupClosed(f"the channel {name!r} was closed here"))
        for lane in served.lanes:
            lane.close(deadline)

    def lanes(self) -> dict[str, list[Lane]]:
        """The streams to channels that are served here, by the channel's name."""
        with self._lock:
            return {name: list(served.lanes) for name, served in self._served.items()}

    def come(self, caller: Caller) -> None:
        """A client asks for a channel: it waits, if that is not served here yet."""
        name = channel_of(caller.opening.key[1])
        with self._lock:
            served = name in self._served
            over = [each for each in self._waiting if each.over]  # nobody would get an answer
            self._waiting = [each for each in self._waiting if each not in over]
            full = "" if served else no_room(self._waiting, caller)
            if not served and not full:
                self._waiting.append(caller)
        for each in over:
            self._greeter.drop(each.link)
        if full:
            self._greeter.decline(caller.link, Word.REFUSED, 0, full)
            return
        self._greeter.answer(caller.link, Word.TAKEN, 0)
        if served:
            self._take(name, caller)

    def lost(self, member_id: str, later: Callable[[float, Callable[[], None]], Any], error: CollectiveError) -> None:
        """That member is over; what it had sent is read all the same."""
        with self._lock:
            self._waiting = [each for each in self._waiting if each.link.peer.id != member_id]
        for lane in self._all():
            if lane.peer.id == member_id:
                lane.lost(later, functools.partial(lane.end, error))

    def end(self, error: CollectiveError) -> None:
        """End the streams of all clients."""
        with self._lock:
            self._waiting = []
        for lane in self._all():
            lane.end(error)

    def _all(self) -> list[Lane]:
        return [lane for lanes in self.lanes().values() for lane in lanes]

    def _take(self, name: str, caller: Caller) -> None:
        """The channel is there: its client has the last word."""

        def last(fields: list[Any] | None) -> None:
            answer = read(GreetingReply.of, fields)
            if answer is None or answer.word is not Word.TAKEN:
                self._greeter.drop(caller.link)
                return
            self._greeter.met(caller.link)
            lane = Lane(CHANNEL + name, caller.link.peer, self._terms, lambda _: None, seal=self._seal)
            lane.attach(caller.link, caller.opening.terms)
            with self._lock:
                served = self._served.get(name)
                if served is not None:
                    served.lanes[:] = [*(each for each in served.lanes if each.over is None), lane]
            if served is None:
                lane.end(GroupClosed(f"the channel {name!r} was closed", peer=caller.link.peer))
            else:
                served.handler(lane)

        hear(caller.link, last)
