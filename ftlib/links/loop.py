"""One thread that reads and writes for all links of a Collective, wherever no other thread does so itself."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
import select
import threading
import time
import weakref
from collections.abc import Callable

from consensus import Stream, release_in_children, short_slices

from .errors import GroupClosed
from .link import Link
from .parts import guarded

_CHECKS = 8
"""How often within ``link_timeout`` each link is asked whether its peer's host answers."""
_EVENTS = 64


class LinkLoop:
    """Starts its thread with the first link or timer. Thread-safe."""

    def __init__(
        self,
        name: str = "ftlib-links",
        *,
        buffer: int = 64 << 20,
        max_bytes: int = 16 << 30,
        link_timeout: float = 5.0,
        seal_all: bool = False,
        ring: bool = True,
        trust_refused: bool = True,
    ) -> None:
        """``buffer``: bytes a link keeps that nobody has asked for yet. ``max_bytes``: of a message's payload.

        ``link_timeout``: seconds after which the connection to a host that does not answer is broken.
        ``ring``: whether peers on this kernel may get shared memory instead of TCP.
        ``trust_refused``: whether a control port that refuses connections proves that the peer is gone.
        """
        self.buffer = buffer
        self.max_bytes = max_bytes
        self.link_timeout = link_timeout
        self.seal_all = seal_all
        self.ring = ring
        self.trust_refused = trust_refused
        self._name = name
        self._lock = threading.Lock()
        self._epoll = select.epoll()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._bell, select.EPOLLIN)
        self._ready: dict[int, Callable[[int], None]] = {}
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._links = links = set[Link]()
        self._thread: threading.Thread | None = None
        self._ending = False
        epoll, me = self._epoll, weakref.ref(self)

        def descriptors() -> list[int]:
            loop = me()
            bell = -1 if loop is None else loop._bell  # noqa: SLF001 - its own
            watched = -1 if epoll.closed else epoll.fileno()
            return [watched, bell, *(fd for link in list(links) for fd in link.descriptors())]

        release_in_children(self, descriptors)

    def connect(self, stream: Stream) -> Link:
        """A link over ``stream``, which it owns from here on."""
        link = Link(stream, self, self._forget)
        with self._lock:
            if self._ending:
                stream.socket.close()
                raise GroupClosed("this collective is closed", peer=stream.peer)
            self._links.add(link)
            self._start()
        link.begin()
        return link

    def close(self, timeout: float = 1.0) -> None:
        """End all links, without a goodbye (``Link.close`` says one), and the thread. Idempotent."""
        with self._lock:
            first, self._ending = not self._ending, True
            links = list(self._links)
        for link in links:
            link.fail(GroupClosed("this collective is closed", peer=link.peer))
        self._wake()
        if self._thread is not None and not self.here():
            self._thread.join(timeout)
        elif self._thread is None and first:
            self._clear()

    def here(self) -> bool:
        """See ``parts.Loop``."""
        return self._thread is threading.current_thread()

    # For links

    def add(self, fd: int, mask: int, ready: Callable[[int], None]) -> None:
        """See ``parts.Loop``."""
        self._ready[fd] = ready
        self._epoll.register(fd, mask)

    def change(self, fd: int, mask: int) -> None:
        """See ``parts.Loop``."""
        with contextlib.suppress(OSError, ValueError):  # removed meanwhile
            self._epoll.modify(fd, mask)

    def remove(self, fd: int) -> None:
        """See ``parts.Loop``."""
        if self._ready.pop(fd, None) is not None:
            with contextlib.suppress(OSError, ValueError):
                self._epoll.unregister(fd)

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        """See ``parts.Loop``."""
        entry = (time.monotonic() + seconds, next(self._numbers), call)
        with self._lock:
            if self._ending and self._thread is None:
                return
            self._start()
            heapq.heappush(self._timers, entry)
            first = self._timers[0] is entry
        if first and not self.here():
            self._wake()

    def _forget(self, link: Link) -> None:
        with self._lock:
            self._links.discard(link)

    # The thread

    def _start(self) -> None:
        """Under the lock."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()

    def _wake(self) -> None:
        with self._lock:
            if self._bell >= 0:
                os.eventfd_write(self._bell, 1)

    def _run(self) -> None:
        short_slices()
        checked = time.monotonic()
        interval = self.link_timeout / _CHECKS
        try:
            while not (self._ending and not self._links):
                for fd, events in self._epoll.poll(self._rest(checked + interval), _EVENTS):
                    ready = self._ready.get(fd)
                    if ready is not None:
                        guarded(ready, events)
                    elif fd == self._bell:
                        with contextlib.suppress(BlockingIOError):
                            os.eventfd_read(fd)
                now = time.monotonic()
                for call in self._due(now):
                    guarded(call)
                if now >= checked + interval:
                    checked = now
                    for link in list(self._links):
                        guarded(link.check)
        finally:
            self._clear()

    def _rest(self, check: float) -> float:
        with self._lock:
            until = min(check, self._timers[0][0]) if self._timers else check
        return max(0.0, until - time.monotonic())

    def _due(self, now: float) -> list[Callable[[], None]]:
        due = []
        with self._lock:
            while self._timers and self._timers[0][0] <= now:
                due.append(heapq.heappop(self._timers)[2])
        return due

    def _clear(self) -> None:
        with self._lock:
            self._epoll.close()
            os.close(self._bell)
            self._bell = -1
