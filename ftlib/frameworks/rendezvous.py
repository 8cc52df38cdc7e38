"""Rendezvous of the members of one view to build a group: a store at one member, to which the others connect.

Every member runs a ``StoreServer`` for as long as it lives; the members of a view meet at one of them. All keys of a
meeting start with the epoch and the view id, so no attempt reads another's keys, and old keys can be recognized and deleted.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from ftlib.errors import ConfigError, GroupError
from ftlib.frameworks import sockets
from ftlib.frameworks.base import GroupSpec
from ftlib.frameworks.name_lookups import no_name_server
from ftlib.frameworks.sockets import Address

_START_TIMEOUT = timedelta(seconds=10)
"""Timeout for connecting to the server that this process has just started."""
_ATTEMPT, _LONGEST = timedelta(seconds=0.4), timedelta(seconds=5)
"""Timeout of the first attempt to connect to another member's server, doubled each time; and its maximum. In vain, one takes up
to four times as long, as torch connects twice: the first one has to end within ``background.AT_EXIT``.
"""
_QUICKEST, _SLOWEST, _RARELY = 0.0005, 0.02, 0.25
"""Seconds between two checks for the other ranks: at first, after a moment, and once they seem not to come at all."""

_KEPT = 32
"""The last meetings that are over whose keys are kept: a rank may still be in them, and would wait for a key that is gone."""
_REMEMBERED = 3 * _KEPT
"""Meetings that are over whose keys are looked for: a rank that is later still may have added one."""

_connecting: defaultdict[Address, threading.Lock] = defaultdict(threading.Lock)
"""By store: held while a rank of this process connects to it, so that the one new connection to it is that rank's."""


def join_address(address: Address) -> str:
    """Write ``host:port``, IPv6 in brackets."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_address(text: str) -> Address:
    """Parse the output of ``join_address``; ConfigError if ``text`` is no such address."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit():
        raise ConfigError(f"not an address of the form host:port: {text!r}")
    return host.strip("[]"), int(port)


def interface_address(host: str) -> str:
    """Resolve an interface, given as host name or IP address, to an IP address; ConfigError if that fails."""
    with contextlib.suppress(ValueError):
        return str(ipaddress.ip_address(host))
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ConfigError(f"{host!r} cannot be resolved: {error.strerror}; give bind= a numeric address") from error
    return str(found[0][4][0])


def _prefix(epoch: int, view_id: str) -> str:
    """What all keys of a meeting begin with."""
    return f"{epoch}/{view_id}/"


class StoreServer:
    """This member's store, on an ephemeral port of one interface."""

    def __init__(self, host: str) -> None:
        listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
        try:
            listener.bind((host, 0))
            listener.listen(512)
        except OSError as error:
            listener.close()
            raise ConfigError(f"cannot listen on {host}: {error.strerror}; give bind= an address of this host") from error
        self.address: Address = (host, int(listener.getsockname()[1]))
        sockets.track([self.address])
        with no_name_server():
            self._store: Any = TCPStore(
                *self.address,
                None,
                True,
                _START_TIMEOUT,
                wait_for_workers=False,
                master_listen_fd=listener.detach(),  # the store owns it from here on
            )
        self._over: tuple[str, ...] = ()
        """Prefixes of meetings that are over. Without a lock, as a garbage collection in ``forget`` may call it again."""

    def keys(self) -> list[str]:
        """List all keys held."""
        store = self._store
        return [] if store is None else list(store.list_keys())

    def forget_before(self, epoch: int) -> None:
        """Delete the keys of all earlier epochs."""
        store = self._store  # another thread may close this
        for key in [] if store is None else store.list_keys():
            start = key.strip("/").partition("/")[0]
            if start.isdigit() and int(start) < epoch:
                store.delete_key(key)

    def forget(self, spec: GroupSpec) -> None:
        """That meeting is over: delete its keys, if it was here, once ``_KEPT`` others are over, too."""
        if split_address(spec.store["store"]) != self.address:
            return
        self._over = (*self._over, _prefix(spec.epoch, spec.view_id))[-_REMEMBERED:]
        old, store = self._over[:-_KEPT], self._store
        for key in store.list_keys() if old and store is not None else []:
            if key.strip("/").startswith(old):
                store.delete_key(key)

    def close(self) -> None:
        """Stop serving. Idempotent."""
        self._store = None
        sockets.untrack([self.address])


class Meeting:
    """One member's part in the meeting of one view."""

    def __init__(
        self,
        address: Address,
        epoch: int,
        view_id: str,
        rank: int,
        size: int,
        timeout: float,
        wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        """Connect to the store at ``address``. GroupError if nobody answers there, or once it is not ``wanted`` any more."""
        self._where = f"the store of epoch {epoch} at {join_address(address)}"
        self._rank, self._size = rank, size
        self._deadline = time.monotonic() + timeout
        self._left_early = threading.Event()
        self._prefix = _prefix(epoch, view_id)
        connecting = _connecting[address]
        if not connecting.acquire(timeout=timeout):
            raise GroupError(f"{self._where} does not answer: this process has been connecting to it for {timeout:g} s")
        try:
            before = sockets.snapshot()
            self._store: Any = self._connected(address, wanted)
            self._links = sockets.connections((), {address}, before)
        except OSError as error:
            raise GroupError(f"{self._where} does not answer: {error}") from error
        except RuntimeError as error:
            raise GroupError(f"{self._where} failed: {error}") from error
        finally:
            connecting.release()
        sockets.track(link.inode for link in self._links)

    def _connected(self, address: Address, wanted: Callable[[], bool]) -> Any:
        """A client of the store. It cannot be interrupted while it connects, so the first attempts are short: who has left by
        then, or ends, does not wait for long.
        """
        attempt = _ATTEMPT
        while True:
            # The store's client retries refused connections until its timeout; this one detects a dead host at once.
            socket.create_connection(address, timeout=self._left().total_seconds()).close()
            try:
                with no_name_server():
                    store = TCPStore(*address, None, False, min(self._left(), attempt), wait_for_workers=False)
            except RuntimeError:
                if not wanted() or time.monotonic() > self._deadline:
                    raise
                attempt = min(2 * attempt, _LONGEST)
                self._left_early.wait(_SLOWEST)  # some errors come at once
            else:
                store.set_timeout(self._left())
                return store

    def exchange(self, topic: str, mine: object, *, rest: float = 0.0) -> list[Any]:
        """Send ``mine`` (JSON) to all ranks; return every rank's value, in rank order. GroupError names the missing ranks.

        Polls instead of waiting in the store, whose client cannot be interrupted cleanly. ``rest``: seconds to wait first,
        for what is not urgent: by then the others have written their values, and one poll is enough.
        """
        keys = [f"{self._prefix}{topic}/{rank}" for rank in range(self._size)]
        store = self._store
        if rest:
            self._left_early.wait(rest)
        begin = time.monotonic()
        try:
            if store is None or (self._left_early.is_set() and not rest):
                raise GroupError(f"{self._where} was left by this rank")
            store.set(keys[self._rank], json.dumps(mine))  # left since it began to rest or not: the others wait for it
            while not store.check(keys):
                now = time.monotonic()
                waited = now - begin
                if self._left_early.wait(max(min(_SLOWEST, _QUICKEST + waited / 8), min(_RARELY, waited / 100))):
                    raise GroupError(f"{self._where} was left by this rank")
                if now > self._deadline:
                    missing = tuple(rank for rank, key in enumerate(keys) if not store.check([key]))
                    raise GroupError(f"{self._where} has no sign of ranks {list(missing)} ({topic})", missing)
            answers = store.multi_get(keys)
            if not all(answers):  # between two questions, the ranks being in a later view already
                raise GroupError(f"{self._where} has forgotten this view ({topic})")
            return [json.loads(answer) for answer in answers]
        except RuntimeError as error:
            raise GroupError(f"{self._where} broke while the ranks met ({topic}): {error}") from error

    def store(self) -> Any:
        """The store in which a backend may write its own keys."""
        self._store.set_timeout(self._left())
        return PrefixStore(self._prefix + "backend", self._store)

    def leave(self) -> None:
        """Make an ``exchange`` under way in another thread fail now."""
        self._left_early.set()

    def cut(self) -> None:
        """Make every operation that waits in the store fail now."""
        self.leave()
        for link in self._links:
            link.cut()

    def close(self) -> None:
        """Close the connection. Idempotent."""
        self.leave()
        self._store = None
        sockets.untrack(link.inode for link in self._links)
        for link in self._links:
            link.close()

    def _left(self) -> timedelta:
        return timedelta(seconds=max(0.01, self._deadline - time.monotonic()))
