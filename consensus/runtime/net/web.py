"""Starts the HTTP side of an agent when it is needed, while everything else already works.

``aiohttp`` takes longer to import than all the rest, and datagrams are enough to find a job and to be admitted. So the agent
works without it at first: until the server exists, an ``EarlyAcceptor`` keeps connections waiting, and messages to post wait
here.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import threading
from collections.abc import Callable, Mapping
from socket import socket
from typing import TYPE_CHECKING, Any

from ...member import Address
from ...storage.thread_pool import on_daemon
from ...wire.keys import Key
from .early_acceptor import EarlyAcceptor

if TYPE_CHECKING:
    from .http import HttpClient, HttpServer

_MODULE = "consensus.runtime.net.http"
_SPARED = 1.0
"""Seconds after which the HTTP side starts after ``spare``, even if nobody needs it."""
_PATIENCE = 0.25
"""Seconds that a liveness connection or a check waits after ``spare``; the import should end within
``liveness_connection.CHECK_TIMEOUT``."""
_IMPORTING = threading.RLock()  # an import may fork, too
os.register_at_fork(before=_IMPORTING.acquire, after_in_parent=_IMPORTING.release, after_in_child=_IMPORTING.release)
"""A child forked during an import would hold the locks of half imported modules forever."""


def load() -> None:
    """Import what the HTTP side needs; other threads run meanwhile, but a fork waits."""
    with _IMPORTING:
        importlib.import_module(_MODULE)


class Web:
    """The server and the client of one agent. Everything here runs on the loop's thread, except ``prepare``.

    Nothing happens before ``hurry`` or ``spare`` is called, or a connection arrives.
    """

    def __init__(self, prepare: Callable[[], None], server: Callable[[], HttpServer]) -> None:
        """``prepare``: imports (``load``). ``server``: makes the server, after ``prepare``."""
        self._prepare = prepare
        self._make_server = server
        self._patience = 0.0
        self._due = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._ready = asyncio.Event()
        self._closed = False
        self.server: HttpServer | None = None
        self._client: HttpClient | None = None

    async def open(self, sock: socket) -> None:
        """Wait until HTTP is needed, import, take over the listening ``sock``, and go on with waiting requests.

        Raises the errors of an import.
        """
        acceptor = EarlyAcceptor(sock, lambda patient: self.hurry(self._patience if patient else 0.0))
        acceptor.open()
        try:
            await self._due.wait()
            await on_daemon(self._prepare)
            if self._closed:
                return
            from .http import HttpClient  # noqa: PLC0415 - imported by now

            self.server, self._client = self._make_server(), HttpClient()
            await self.server.open(sock, acceptor.close())
            self._ready.set()
        finally:
            for connection in acceptor.close():
                connection.close()

    def spare(self) -> None:
        """Other work goes first for now: liveness connections and checks have to wait a moment."""
        self._patience = _PATIENCE
        self.hurry(_SPARED)

    def hurry(self, within: float = 0.0) -> None:
        """The HTTP side is needed within so many seconds."""
        loop = asyncio.get_running_loop()
        if self._timer is not None:
            if self._timer.when() <= loop.time() + within:
                return
            self._timer.cancel()
        self._timer = loop.call_later(within, self._due.set)

    async def post(self, address: Address, data: bytes) -> bool:
        """See ``HttpClient``."""
        return await (await self._opened()).post(address, data)

    async def fence(self, supervisor: str, request: Mapping[str, Any], key: Key | None = None) -> Mapping[str, Any]:
        """See ``HttpClient``."""
        return await (await self._opened()).fence(supervisor, request, key)

    async def close(self) -> None:
        """Refuse new connections, then end the open ones; calls that wait for the client wait until cancelled. Idempotent."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self.server is not None:
            await self.server.close()

    async def close_client(self) -> None:
        """End the client's connections. Idempotent."""
        if self._client is not None:
            await self._client.close()

    async def _opened(self) -> HttpClient:
        self.hurry()
        await self._ready.wait()
        assert self._client is not None
        return self._client
