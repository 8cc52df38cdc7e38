"""A process's part in groups and channels: who may be in one, and what ends them. ``Meeting`` finds their streams."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import re
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from consensus import ConfigError as ConsensusConfigError
from consensus import Consensus, ConsensusError, Member

from ..errors import ConfigError
from ..ftlib import FTLib
from ..links.errors import CollectiveError, GroupClosed, PeerLost, Refused, called
from ..links.loop import LinkLoop
from .frames import check_name
from .greeting import Greeter, Key
from .group import CLOSE_TIMEOUT, CollectiveGroup, find
from .lane import Lane, Terms
from .meeting import PATH, Meeting
from .services import CHANNEL, Services
from .values import Classes

_UNITS = {"": 1, "B": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40, "KB": 10**3, "MB": 10**6, "GB": 10**9}
_T = TypeVar("_T")


class Collective:
    """Groups and channels with other members. One for each FTLib or consensus; thread-safe; a context manager that closes.

    ``x``: an FTLib, or a started ``consensus.Consensus`` for a process that averages nothing. ``allow_pickle``: send and take
    objects that are no plain data; both sides must say so, since who may send a pickle may run code here. ``max_bytes``: of one
    message. ``buffer``: bytes that are taken from each peer before a receive asks for them. ``seal``: "headers" seals headers
    and objects, "all" tensors as well. Sizes are numbers of bytes, or such as "64 MiB". ConfigError: a setting is wrong, or
    this member has a Collective already.
    """

    def __init__(
        self,
        x: FTLib | Consensus,
        *,
        allow_pickle: bool = False,
        max_bytes: int | str = "16 GiB",
        buffer: int | str = "64 MiB",
        seal: str = "headers",
    ) -> None:
        if seal not in {"headers", "all"}:
            raise ConfigError(f"seal={seal!r}: choose 'headers' or 'all'")
        if not isinstance(x, (FTLib, Consensus)):
            raise ConfigError(f"a Collective is of an FTLib, or of a started consensus, not of {x!r:.80}")
        if isinstance(x, Consensus) and not hasattr(x, "member"):
            raise ConfigError("a Collective needs a started consensus: call its start() before")
        self._x = x
        self.terms = Terms(allow_pickle, _size("max_bytes", max_bytes))
        self.classes = Classes(allow_pickle=allow_pickle)
        self._seal = seal == "all"
        trusts = (x.consensus if isinstance(x, FTLib) else x).trust_refused
        size = _size("buffer", buffer)
        self._loop = LinkLoop("ftlib-collective", buffer=size, max_bytes=self.terms.max_bytes, trust_refused=trusts)
        self._lock = threading.RLock()
        self._groups: dict[Key, CollectiveGroup] = {}
        greeter = Greeter(self._loop, self.terms)
        self.services = Services(greeter, self.terms, seal=self._seal)
        self.meeting = Meeting(self._current, self._loop, greeter, self.services)
        self._ends: list[Callable[[], None]] = []
        self._closed = False
        self._process = os.getpid()
        self._consensus: Consensus | None = None
        try:
            self._current()
        except ConsensusConfigError:
            self._loop.close()
            raise ConfigError("there is a Collective of this member already: use that one, or close it first") from None
        reference = weakref.ref(self)
        if isinstance(x, FTLib):
            x.add_metrics("collective", lambda: {} if (found := reference()) is None else found.facts())
        self._at_exit = lambda: _close(reference)
        atexit.register(self._at_exit)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @property
    def here(self) -> Member:
        """This member."""
        return self._current().member

    def register(self, cls: type[_T], name: str | None = None) -> type[_T]:
        """Let the dataclass ``cls`` be sent and received under ``name``; only needed where its module is not imported."""
        return self.classes.register(cls, name)

    def create_collective_group(self, addresses: Sequence[Member | str], group_name: str | None = None) -> CollectiveGroup:
        """The group of the members at ``addresses`` (names, ids, ``host:port`` or Members; any order), this one among them.

        The same group for the same members and name, until it is closed or broken: then a new one. Nothing is sent before it
        is used. Refused names who is no member. At a joiner the first group asks for admission, and waits for it.
        """
        name = group_name or ""
        if not isinstance(name, str) or name.startswith(CHANNEL):
            raise Refused(f"a group cannot be called {group_name!r}: give a string that does not begin with {CHANNEL!r}")
        check_name("the name of a group", name)
        if isinstance(addresses, str):
            raise Refused(f"{addresses!r} is one string: give a list of the members")
        return self._group(addresses, name)

    def channel_group(self, at: Member, name: str) -> CollectiveGroup:
        """The stream of a channel's client to the member that serves it."""
        return self._group([self.here, at], CHANNEL + name)

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        """Call on the thread of the streams after so many seconds; it must not wait."""
        self._loop.later(seconds, call)

    def end_channel(self, name: str) -> None:
        """End the channel that is served here under that name."""
        if os.getpid() == self._process:
            self.services.stop(name, time.monotonic() + 1.0)

    def member(self, who: Member | str) -> Member:
        """The member called ``who``, by name, id or ``host:port``. Refused if there is none."""
        return self._resolve(self._members(self._current()), who)

    def _group(self, addresses: Sequence[Member | str], name: str) -> CollectiveGroup:
        consensus = self._current()
        here = consensus.member
        members = self._members(consensus)
        chosen = {member.id for member in (self._resolve(members, each) for each in addresses)}
        if here.id not in chosen or len(chosen) < 2:
            raise Refused(f"a group needs this member, {called(here)}, and another one: {list(map(str, addresses))}")
        key = (frozenset(chosen), name)
        with self._lock:
            self._check_open()
            group = self._groups.get(key)
            if group is not None and group.over is None:
                return group
            known = {member.id for member in members}
            # Peers that left, and whose last words have been received since: nobody can ask for these groups again.
            left = [each for of, each in self._groups.items() if not of[0] <= known and each.over is not None]
            group = self._make(key, here, tuple(member for member in members if member.id in chosen))
        for each in left:
            each.close(0.0)
        return group

    def close(self, timeout: float = CLOSE_TIMEOUT) -> None:
        """Close all groups and channels: what was sent is flushed, at most ``timeout`` seconds. Idempotent.

        In a forked child it does nothing: the streams are its parent's.
        """
        if os.getpid() != self._process:
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
        atexit.unregister(self._at_exit)
        deadline = time.monotonic() + timeout
        for group in list(self._groups.values()):
            group.close(max(0.0, deadline - time.monotonic()))
        for name in self.services.lanes():
            self.services.stop(name, deadline)
        self._leave(GroupClosed("the collective was closed here"), deadline)
        self._loop.close(max(0.5, deadline - time.monotonic()))

    def facts(self) -> dict[str, Any]:
        """Counts of the groups of each name, for metrics: operations, bytes, what is queued, and the paths."""
        with self._lock:
            groups = list(self._groups.values())
        lanes: dict[str, list[Lane]] = {}
        for group in groups:  # those of one name and other members count together
            lanes.setdefault(group.name, []).extend(group.lane(peer.id) for peer in group.peers)
        for name, served in self.services.lanes().items():
            lanes.setdefault(CHANNEL + name, []).extend(served)
        return {name: _sum([lane.facts() for lane in each]) for name, each in lanes.items()}

    def _members(self, consensus: Consensus) -> tuple[Member, ...]:
        """The members of the newest view, once this one is among them."""
        self._check_open()
        members = consensus.get_member_list()
        if consensus.member.id not in {member.id for member in members}:
            consensus.seek_admission()
            limit = _join_timeout(self._x)
            view = consensus.wait_view(limit)
            if view is None or consensus.member.id not in view.ids:
                raise Refused(f"this member was not admitted within {limit:.0f} s: see its log for whom it waits for")
            members = view.members
        return members

    def _resolve(self, members: Sequence[Member], who: Member | str) -> Member:
        """See ``find``. Refused if there is none."""
        if (found := find(members, who, self.here)) is None:
            raise Refused(f"{who} is no member: there are {', '.join(map(called, members))}")
        return found

    def _make(self, key: Key, here: Member, members: tuple[Member, ...]) -> CollectiveGroup:
        def lane(name: str, peer: Member) -> Lane:
            made = Lane(name, peer, self.terms, lambda lane: self.meeting.connect(key, lane), seal=self._seal)
            self.meeting.made(key, made)
            return made

        def closed(group: CollectiveGroup) -> None:
            with self._lock:
                if self._groups.get(key) is group:
                    del self._groups[key]
            for peer in group.peers:
                self.meeting.closed(key, group.lane(peer.id))

        if (old := self._groups.get(key)) is not None:
            old.close(0.0)  # one of its streams has ended: the others end, too

        name = key[1] or "+".join(member.fact("name") or str(member) for member in members)
        group = self._groups[key] = CollectiveGroup(name, here, members, self.classes, lane, closed)
        return group

    def _current(self) -> Consensus:
        """The consensus of this process's current lifetime; its streams and its deaths come here."""
        consensus = self._x.consensus if isinstance(self._x, FTLib) else self._x
        with self._lock:
            if consensus is not self._consensus:
                self._leave(GroupClosed("this member was excluded, and is another one now: make the group again"))
                self._ends = [consensus.accept(PATH, self.meeting.incoming), consensus.watch(self._lost)]
                self._consensus = consensus
        return consensus

    def _leave(self, error: CollectiveError, deadline: float = 0.0) -> None:
        """End everything with the members so far; until ``deadline`` peers are told."""
        with self._lock:
            ends, self._ends = self._ends, []
            groups = list(self._groups.values())
        for end in ends:
            end()
        for group in groups:
            group.fail(error)
        self.meeting.end(error, deadline)

    def _lost(self, member: Member, why: str) -> None:
        """A member is over: on the thread of the consensus. What one that left had sent can still be received."""
        error = PeerLost(f"{called(member)} is no member any more: {why}", peer=member)
        with self._lock:
            gone = [group for key, group in self._groups.items() if member.id in key[0]]
        for group in gone:
            if member.id == group.here.id:
                group.fail(error)
            else:
                group.lane(member.id).lost(self._loop.later, functools.partial(group.fail, error))
        self.meeting.lost(member.id, error)

    def _check_open(self) -> None:
        if os.getpid() != self._process:
            raise GroupClosed("this process was forked from the one that has this collective: make another one here")
        if self._closed:
            raise GroupClosed("this collective was closed: make another one")


def _join_timeout(x: FTLib | Consensus) -> float:
    config = getattr(x, "config", None) if isinstance(x, Consensus) else x.settings.consensus
    return float(getattr(config, "join_timeout", 60.0))


def _size(setting: str, value: float | str) -> int:
    """Bytes of such as ``64 MiB``. ConfigError names the setting."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", str(value))
    if found is None or found[2].upper() not in _UNITS or float(found[1]) <= 0:
        raise ConfigError(f"{setting}={value!r}: give a number of bytes, or such as '64 MiB'")
    return int(float(found[1]) * _UNITS[found[2].upper()])


def _sum(each: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The facts of all lanes of a group as one."""
    numbers = {key for facts in each for key, value in facts.items() if isinstance(value, int)}
    return {
        "peers": len(each),
        "paths": sorted({str(facts["path"]) for facts in each}),
        **{key: sum(facts.get(key, 0) for facts in each) for key in sorted(numbers)},
    }


def _close(reference: weakref.ref[Collective]) -> None:
    """Flush at the interpreter's end."""
    collective = reference()
    if collective is not None:
        with contextlib.suppress(CollectiveError, ConsensusError):
            collective.close(5.0)
