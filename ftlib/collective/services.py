"""The channels that this member serves, and the streams of their clients."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

from ..errors import ConfigError
from ..links.errors import CollectiveError, GroupClosed
from .greeting import FULL, UNCLAIMED, Answer, Caller, Greeter, Word, hear, read
from .lane import Lane, Terms

CHANNEL = "channel:"
"""What the names of groups that carry a channel begin with."""


def channel_of(name: str) -> str:
    """The channel that a group of this name carries, "" for none; each client has a group of its own."""
    return name.removeprefix(CHANNEL).rpartition("#")[0] if name.startswith(CHANNEL) else ""


class Services:
    """Channels by name. Any thread."""

    def __init__(self, greeter: Greeter, terms: Terms, *, seal: bool) -> None:
        self._greeter = greeter
        self._terms = terms
        self._seal = seal
        self._lock = threading.Lock()
        self._handlers: dict[str, Callable[[Lane], None]] = {}
        self._lanes: dict[str, list[Lane]] = {}
        self._waiting: list[Caller] = []
        """Clients of channels that are not served here yet."""

    def serve(self, name: str, handler: Callable[[Lane], None]) -> None:
        """Give every stream to the channel ``name`` here to ``handler``, those that have waited for it as well."""
        with self._lock:
            if name in self._handlers:
                raise ConfigError(f"this member serves a channel {name!r} already: choose another name")
            self._handlers[name] = handler
            self._lanes[name] = []
            ready = [each for each in self._waiting if channel_of(each.opening.key[1]) == name]
            self._waiting = [each for each in self._waiting if each not in ready]
        for each in ready:
            self._take(name, each)

    def stop(self, name: str, deadline: float) -> None:
        """End the channel ``name`` at this member: those who wait for it get GroupClosed."""
        with self._lock:
            self._handlers.pop(name, None)
            lanes = self._lanes.pop(name, [])
        for lane in lanes:
            lane.close(deadline)

    def lanes(self) -> dict[str, list[Lane]]:
        """The streams to channels that are served here, by the channel's name."""
        with self._lock:
            return {name: list(lanes) for name, lanes in self._lanes.items()}

    def come(self, caller: Caller) -> None:
        """A client asks for a channel: it waits, if that is not served here yet."""
        name = channel_of(caller.opening.key[1])
        with self._lock:
            served, full = name in self._handlers, len(self._waiting) >= UNCLAIMED
            if not served and not full:
                self._waiting.append(caller)
        if full and not served:
            self._greeter.decline(caller.link, Word.REFUSED, 0, FULL)
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
            answer = read(Answer.of, fields)
            if answer is None or answer.word is not Word.TAKEN:
                self._greeter.drop(caller.link)
                return
            self._greeter.met(caller.link)
            lane = Lane(CHANNEL + name, caller.link.peer, self._terms, lambda _: None, seal=self._seal)
            lane.attach(caller.link, caller.opening.terms)
            with self._lock:
                handler = self._handlers.get(name)
                if handler is not None:
                    self._lanes[name][:] = [*(each for each in self._lanes[name] if each.over is None), lane]
            if handler is None:
                lane.end(GroupClosed(f"the channel {name!r} was closed", peer=caller.link.peer))
            else:
                handler(lane)

        hear(caller.link, last)
