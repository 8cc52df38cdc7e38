"""Building a Gloo group: the ranks meet at a store, exchange their addresses, and connect.

Each group has a Gloo device, hence a listening port, of its own. The ranks exchange these addresses when they meet,
which tells exactly which of the process's sockets are the group's: accepted ones have that port at this end,
initiated ones a peer's listener at the other. Where several ranks of a group share a process, two of them may have connected to
the same third one: there, each takes what its own device watches.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any

from torch.distributed import ProcessGroupGloo

from consensus import CarefulLogger
from ftlib.errors import GroupError
from ftlib.frameworks import sockets
from ftlib.frameworks.background import start_task
from ftlib.frameworks.base import GroupSpec
from ftlib.frameworks.builder import Build
from ftlib.frameworks.gloo_group import GlooGroup
from ftlib.frameworks.rendezvous import Meeting, join_address, split_address
from ftlib.frameworks.sockets import Address, Inode, Link

_log = CarefulLogger(__name__)

_THREADS = 2
"""Operations that one group carries out at the same time."""
_REST = 0.05
"""Seconds that the ends of connections may be told late: whoever waits for the group has the processors first."""

_CONNECT_TIMEOUT = 1.0
"""Seconds that a connection to one's own listener may take; after one that fails no other is tried."""

beginning_to_listen = threading.Lock()
"""Held while a device is made, so that the one new listening socket is its own; others that begin to listen hold it, too."""

_listening: set[Address] = set()
"""Where the groups of this process listen."""


class GlooBuild(Build):
    """See ``Build``: on a thread of its own."""

    def __init__(
        self,
        spec: GroupSpec,
        host: str,
        built: Callable[[GroupSpec], None] = lambda _spec: None,
        facts: Callable[[GroupSpec], Mapping[str, str]] = lambda _spec: {},
    ) -> None:
        """``host``: the interface address to listen at. ``built``: called on that thread once there is a group.

        ``facts``: what to tell the other ranks on meeting them (see ``GlooGroup.facts``); called on that thread.
        """
        self.spec, self._host, self._built, self._facts = spec, host, built, facts
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._given_up = False
        self.told = False
        self._meeting: Meeting | None = None
        self._local: set[Address] = set()
        self._remote: set[Address] = set()
        self._listener: Inode | None = None
        self._outcome: GlooGroup | GroupError | None = None

    def start(self) -> None:
        """Begin to build; once."""
        start_task("gloo-build", self._run)

    @property
    def failed(self) -> bool:
        """Whether it has come to nothing."""
        return isinstance(self._outcome, GroupError)

    def drop(self) -> None:
        """After ``give_up``: give its group back, if that was built before."""
        if isinstance(self._outcome, GlooGroup):
            self._outcome.close()

    def wait(self) -> GlooGroup:
        """What was built, or raise GroupError."""
        try:
            if not self._ended.wait(self.spec.timeout + 1.0):
                self.give_up(f"no group within {self.spec.timeout:g} s")
        except BaseException:  # a signal: nobody will take the group
            self.give_up("interrupted")
            raise
        if isinstance(self._outcome, GlooGroup):
            return self._outcome
        raise self._outcome or GroupError("no group was built")

    def give_up(self, why: str) -> None:
        """End ``run`` with a GroupError now and make the thread end soon."""
        with self._lock:
            if self._outcome is not None:
                return
            self._given_up = True
            self._outcome = GroupError(f"building the group of epoch {self.spec.epoch} was given up: {why}")
            self._ended.set()
            meeting = self._meeting
        if meeting is not None:
            meeting.leave()
        if meeting is not None and self._remote:  # Gloo itself is at work
            meeting.cut()
            for link in self._links():
                link.cut()
                link.close()
            self._connect_to_itself()

    def _run(self) -> None:
        outcome: GlooGroup | GroupError
        try:
            outcome = self._build()
        except GroupError as error:
            outcome = error.afresh()
        except Exception as error:  # noqa: BLE001 - it must reach the thread that waits
            _log.debug("building the group failed", exc_info=True)
            outcome = GroupError(f"building the group of epoch {self.spec.epoch} failed: {error}")
        with self._lock:
            unwanted = self._given_up
            if not unwanted:
                self._outcome = outcome
                self._ended.set()
        if unwanted and isinstance(outcome, GlooGroup):
            outcome.close()
        elif isinstance(outcome, GlooGroup):
            self._complete(outcome)

    def _complete(self, group: GlooGroup) -> None:
        """Do what nobody need wait for: tell the addresses of accepted connections, and who wants to know."""
        meeting, me = self._meeting, str(self.spec.rank)
        if meeting is not None:
            with contextlib.suppress(GroupError):  # the group may be gone already
                ends = {str(rank): join_address(local) for rank, local in group.locals().items()}
                told = meeting.exchange("ends", ends, rest=_REST)
                group.name({split_address(ends[me]): rank for rank, ends in enumerate(told) if me in ends})
        self._built(self.spec)

    def _build(self) -> GlooGroup:
        spec = self.spec
        address = split_address(spec.store["store"])
        where = (spec.epoch, spec.view_id, spec.rank, spec.size)
        meeting = Meeting(address, *where, spec.timeout, wanted=lambda: not self._given_up)
        owned: list[Inode | Address] = []
        try:
            with self._lock:
                self._meeting = meeting
            return self._connect(meeting, owned)
        except BaseException:
            meeting.close()
            self._forget(owned)
            raise

    def _connect(self, meeting: Meeting, owned: list[Inode | Address]) -> GlooGroup:
        spec = self.spec
        self._proceed()
        device, inode, listener, before = _make_device(self._host)
        if inode is not None and listener is not None:
            owned.append(inode)
            sockets.track(owned)
            _listening.add(listener)  # before anybody hears of it
        with self._lock:
            self._local, self._listener = ({listener} if listener else set()), inode
            self.told = not self._given_up
        met = meeting.exchange("listener", [listener and join_address(listener), dict(self._facts(spec))])
        addresses, facts = zip(*met, strict=True)
        peers = {split_address(text): rank for rank, text in enumerate(addresses) if text and rank != spec.rank}
        with self._lock:
            self._remote = set(peers)
        self._proceed()
        owned.extend((*self._local, *self._remote))  # whoever forks while Gloo connects does not know the sockets yet
        sockets.track(owned)
        make: Any = ProcessGroupGloo
        options = make._Options()  # noqa: SLF001
        options._devices = [device]  # noqa: SLF001
        options._threads = _THREADS  # noqa: SLF001
        options._timeout = timedelta(seconds=spec.timeout)  # noqa: SLF001
        backend = make(meeting.store(), spec.rank, spec.size, options)
        self._proceed()
        links = self._links(before)
        owned.extend(link.inode for link in links)
        sockets.track(owned)

        def give_back() -> None:
            self._forget(owned)
            meeting.close()

        return GlooGroup(spec, backend, links, peers, give_back, facts)

    def _links(self, but: frozenset[Inode] = frozenset()) -> list[Link]:
        """This rank's connected sockets to its peers, without those in ``but``; the caller closes them."""
        links = sockets.connections(self._local, self._remote, but)
        if self._remote.isdisjoint(_listening):
            return links
        watched = sockets.watched_with(self._listener) if self._listener else frozenset()
        mine = [link for link in links if link.inode in watched or link.local in self._local]
        for link in links:
            if link not in mine:  # between two others; or there is no telling: better inexact than another's
                link.close()
        return mine

    def _connect_to_itself(self) -> None:
        """Connect to this rank's own listener in the place of every other rank, and hang up.

        Gloo waits for the ranks that connect to this one, one after another, and there is no socket to cut while one has not:
        who died or gave up after it met the others never will. Who connects says which pair it means by eight bytes,
        and a device counts its pairs in the order of ranks (Gloo's ``transport/tcp``: ``Context::createAndConnectAllPairs``,
        ``Listener::haveConnection``). A number that nobody waits for yet is kept until somebody does.
        """
        for listener in self._local:
            with contextlib.suppress(OSError):  # it is gone, as the build has ended: for all ranks
                for rank in range(self.spec.size):
                    with socket.create_connection(listener, _CONNECT_TIMEOUT) as handle:
                        handle.sendall(struct.pack("=q", rank))

    def _forget(self, owned: Iterable[Inode | Address]) -> None:
        sockets.untrack(owned)
        _listening.difference_update(self._local)

    def _proceed(self) -> None:
        if self._given_up:
            raise GroupError("given up")


def _make_device(host: str) -> tuple[Any, Inode | None, Address | None, frozenset[Inode]]:
    """Make a Gloo device on an interface, and find its listening socket if that can be told; last the sockets before it."""
    make: Any = ProcessGroupGloo
    with beginning_to_listen:
        before = sockets.snapshot()
        device = make.create_device(hostname=host, lazy_init=False)
        new = sockets.listeners(host, before)
    if len(new) != 1:  # not Linux, or another thread began to listen at the same moment
        return device, None, None, before
    inode, address = new.popitem()
    return device, inode, address, before
