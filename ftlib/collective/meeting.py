"""How two members find into one stream. Either side may ask for it first, or both at once: then that of the smaller id holds.

A stream that comes before its group was made here waits for it, as do the messages on it; one for a channel goes to who serves
that channel here.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from consensus import Consensus, ConsensusError, DialError, Stream

from ..errors import ConfigError
from ..links.errors import CollectiveError, GroupClosed, Mismatch, PeerLost, Refused
from ..links.link import Link
from ..links.loop import LinkLoop
from .frames import Incoming, Sort, outgoing
from .lane import Lane, Terms
from .values import Message
from .works import CALLBACKS

PATH = "/collective"
CHANNEL = "channel:"
"""What the names of groups that carry a channel begin with."""
_DIAL = 10.0
"""Seconds of one try: between two it is looked whether anybody still waits for the stream."""
_AGAIN = 0.2
"""Seconds after a try that failed at once."""
_TOKENS = 4096
"""Of lanes of peers, that are remembered."""
_UNCLAIMED = 256
"""Streams that may wait for their group to be made here."""
Key = tuple[frozenset[str], str]
"""Of a group: the ids of its members, and its name."""


class Meeting:
    """All streams of a collective, from the first word to the lane that uses them. Any thread."""

    def __init__(
        self,
        consensus: Callable[[], Consensus],
        loop: LinkLoop,
        terms: Terms,
        find: Callable[[Key, str], Lane | None],
        *,
        seal: bool,
    ) -> None:
        """``consensus``: the current one; ``find``: the lane of a group that is open here, to the peer of that id."""
        self._current = consensus
        self._loop = loop
        self._terms = terms
        self._find = find
        self._seal = seal
        self._lock = threading.Lock()
        self._unclaimed: deque[tuple[Key, Link, Terms]] = deque()
        """Links whose group was not made here yet, or not made again, in the order in which they came."""
        self._held: dict[Lane, tuple[Link, Terms]] = {}
        """Links that came while this side, with the smaller id, was dialling."""
        self._dialling: set[Lane] = set()
        self._used: deque[str] = deque(maxlen=_TOKENS)
        """Tokens of peers' lanes that have a stream: what else they have dialled, both at once, may come after its end."""
        self._services: dict[str, Callable[[Lane], None]] = {}
        self._served: dict[str, list[Lane]] = {}

    def serve(self, name: str, handler: Callable[[Lane], None]) -> None:
        """Give every stream to the channel ``name`` here to ``handler``, those that have waited for it as well."""
        with self._lock:
            if name in self._services:
                raise ConfigError(f"this member serves a channel {name!r} already: choose another name")
            self._services[name] = handler
            self._served[name] = []
            waiting = [each for each in self._unclaimed if channel_of(each[0][1]) == name]
            self._unclaimed = deque(each for each in self._unclaimed if each not in waiting)
        for _, link, theirs in waiting:
            self._serve(name, link, theirs)

    def stop_serving(self, name: str, deadline: float) -> None:
        """End the channel ``name`` at this member: those who wait for it get GroupClosed."""
        with self._lock:
            self._services.pop(name, None)
            lanes = self._served.pop(name, [])
        for lane in lanes:
            lane.close(deadline)

    def served(self) -> dict[str, list[Lane]]:
        """The streams to channels that are served here, by the channel's name."""
        with self._lock:
            return {name: list(lanes) for name, lanes in self._served.items()}

    def lost(self, member_id: str, error: CollectiveError) -> None:
        """That member is over."""
        with self._lock:
            lanes = [lane for served in self._served.values() for lane in served if lane.peer.id == member_id]
            links = [link for _, link, _ in self._unclaimed if link.peer.id == member_id]
            self._unclaimed = deque(each for each in self._unclaimed if each[1] not in links)
        for lane in lanes:
            lane.lost(self._loop.later, functools.partial(lane.end, error))
        for link in links:
            link.fail(error)

    def end(self, error: CollectiveError) -> None:
        """End everything with the members so far."""
        with self._lock:
            links = [*(link for _, link, _ in self._unclaimed), *(link for link, _ in self._held.values())]
            self._unclaimed.clear()
            self._held.clear()
            lanes = [lane for served in self._served.values() for lane in served]
        for lane in lanes:
            lane.end(error)
        for link in links:
            link.fail(error)

    def connect(self, key: Key, lane: Lane) -> None:
        """Find the stream of ``lane``: one that waits here, or a new one."""
        with self._lock:
            waiting = next((each for each in self._unclaimed if each[0] == key and each[1].peer.id == lane.peer.id), None)
            if waiting is None:
                self._dialling.add(lane)
            else:
                self._unclaimed.remove(waiting)
        if waiting is not None:
            lane.attach(*waiting[1:])
        else:
            CALLBACKS.submit(lambda: self._find_stream(key, lane))

    def _find_stream(self, key: Key, lane: Lane) -> None:
        """On a thread of its own. A stream that comes once this collective is closed is dropped: nobody waits for it."""
        try:
            self._dial(key, lane)
        except CollectiveError as error:
            lane.end(error)
        except Exception as error:  # noqa: BLE001 - who waits for the stream must hear of it, whatever it was
            lane.end(CollectiveError(f"no stream to {lane.peer}: {error!r}", peer=lane.peer))
        finally:
            with self._lock:
                self._dialling.discard(lane)

    def _dial(self, key: Key, lane: Lane) -> None:
        while _wanted(lane):
            try:
                link = self._loop.connect(self._current().dial(lane.peer, PATH, timeout=_DIAL))
            except (ConsensusError, OSError) as error:
                if isinstance(error, DialError) and error.gone:
                    lane.end(PeerLost(f"{lane.peer} is gone: {error}", peer=lane.peer))
                elif not isinstance(error, DialError):
                    lane.end(CollectiveError(f"no stream to {lane.peer}: {error}", peer=lane.peer))
                else:
                    time.sleep(_AGAIN)
                continue
            if not _wanted(lane):
                link.close(0.0)  # nobody needs it any more, and the peer has not heard what it is for
                break
            ids, name = key
            self._hello(link, [sorted(ids), name, lane.token])
            answer = _hear(link).wait(_DIAL)
            if answer is None:
                link.fail(GroupClosed("the peer did not answer, or uses another stream", peer=lane.peer))
            if self._answered(lane, link, answer):
                return
            time.sleep(_AGAIN)

    def _answered(self, lane: Lane, link: Link, fields: list[Any] | None) -> bool:
        """The peer has taken this stream (or none is needed any more), or not: then try again."""
        if fields is not None:
            why, token, pickles, most = fields
            if token:
                self._used.append(token)
            if why:
                lane.end(Refused(f"{lane.peer} refuses the stream: {why}", peer=lane.peer))
            elif not lane.attach(link, Terms(pickles, most, token)):
                link.close(0.0)
        with self._lock:  # only now: until the lane has its link, a stream of the peer's must find that this side was dialling
            held = self._held.pop(lane, None)
            done = fields is not None or held is not None or lane.link is not None
            if done:
                self._dialling.discard(lane)
        if held is not None and fields is not None:
            held[0].close(0.0)
        elif held is not None:
            self._take(lane, *held)
        return done

    def incoming(self, stream: Stream) -> None:
        """A member has dialled: on the connection thread of the consensus, so what it says is heard elsewhere."""
        try:
            link = self._loop.connect(stream)
        except GroupClosed:
            return  # this collective was closed meanwhile; the peer hears the end of the stream
        _hear(link, lambda fields: self._greeted(link, fields))

    def _greeted(self, link: Link, fields: list[Any] | None) -> None:
        """Somebody says which group its stream is for."""
        here, peer = self._current().member, link.peer
        try:
            ids, name, token, pickles, most = [] if fields is None else fields
            key, theirs = (frozenset(map(str, ids)), str(name)), Terms(bool(pickles), int(most), str(token))
        except (TypeError, ValueError):
            link.close(0.0)
            return
        if theirs.token in self._used:  # both have dialled, and the other stream is used, or was
            link.close(0.0)
            return
        if not {peer.id, here.id} <= key[0]:
            self._refuse(link, "it is for other members")
            return
        lane = self._find(key, peer.id)
        with self._lock:
            served = channel_of(name) in self._services
            free = lane is not None and lane.link is None
            holds = free and lane in self._dialling and here.id < peer.id
            full = len(self._unclaimed) >= _UNCLAIMED
            if lane is not None and holds:
                self._held[lane] = (link, theirs)
            elif not served and not free and not full:
                self._hello(link, ["", ""])
                self._unclaimed.append((key, link, theirs))
                return
        if served:
            self._hello(link, ["", ""])
            self._serve(channel_of(name), link, theirs)
        elif lane is not None and free and not holds:
            self._take(lane, link, theirs)
        elif not holds:
            self._refuse(link, f"{_UNCLAIMED} streams wait there for groups that were not made")

    def _take(self, lane: Lane, link: Link, theirs: Terms) -> None:
        self._used.append(theirs.token)
        self._hello(link, ["", lane.token])
        if not lane.attach(link, theirs):
            link.close(0.0)

    def _refuse(self, link: Link, why: str) -> None:
        self._hello(link, [why, ""])
        link.close(1.0)

    def _hello(self, link: Link, fields: list[Any]) -> None:
        """The first message each way ends with what this side accepts."""
        fields = [*fields, self._terms.allow_pickle, self._terms.max_bytes]
        link.send(outgoing(Sort.HELLO, fields, Message(b"", [], [])).header, (), lambda _: None, sealed=False)

    def _serve(self, name: str, link: Link, theirs: Terms) -> None:
        lane = Lane(CHANNEL + name, link.peer, self._terms, lambda _: None, seal=self._seal)
        lane.attach(link, theirs)
        with self._lock:
            handler = self._services.get(name)
            self._served.setdefault(name, [])[:] = [*(each for each in self._served[name] if each.over is None), lane]
        if handler is None:
            lane.end(GroupClosed(f"the channel {name!r} was closed", peer=link.peer))
        else:
            handler(lane)


def _wanted(lane: Lane) -> bool:
    """Whether it still needs a stream."""
    return lane.over is None and lane.link is None


class _Heard:
    """The first message on a link: its fields, or None if the link ended before."""

    def __init__(self, tell: Callable[[list[Any] | None], None] | None) -> None:
        self._tell = tell
        self._came = threading.Event()
        self._fields: list[Any] | None = None

    def place(self, header: bytes) -> list[memoryview] | None:
        """See ``Link.receive``."""
        with contextlib.suppress(Mismatch):
            frame = Incoming.of(header)
            self._fields = frame.fields if frame.sort is Sort.HELLO else None
        return None

    def done(self, _header: bytes | None, _error: BaseException | None) -> None:
        """See ``Link.receive``."""
        self._came.set()
        if self._tell is not None:
            self._tell(self._fields)

    def wait(self, timeout: float) -> list[Any] | None:
        """Block until it is here, the link has ended, or so many seconds have passed."""
        self._came.wait(timeout)
        return self._fields


def channel_of(name: str) -> str:
    """The channel that a group of this name carries, "" for none; each client has a group of its own."""
    return name.removeprefix(CHANNEL).rpartition("#")[0] if name.startswith(CHANNEL) else ""


def _hear(link: Link, tell: Callable[[list[Any] | None], None] | None = None) -> _Heard:
    heard = _Heard(tell)
    link.receive(heard.place, heard.done)
    return heard
