"""The HTTP side of an agent, which comes up beside everything else.

``aiohttp`` takes longer to import than all the rest, and datagrams are enough to meet a job. So the agent is at work before:
until the server is there its listening socket keeps connections waiting, and what is to be posted waits here.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
from collections.abc import Callable, Iterator, Mapping
from socket import socket
from typing import TYPE_CHECKING, Any

from ..keys import Key
from ..member import Address

if TYPE_CHECKING:
    from .http import HttpClient, HttpServer

__all__ = ["Web", "load", "load_alone"]

_MODULE = "consensus.runtime.http"
_CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR")


def load() -> None:
    """Import what the HTTP side needs; other threads run meanwhile."""
    importlib.import_module(_MODULE)


def load_alone() -> None:
    """The same in half the time, where no other thread looks at the environment or makes TLS contexts meanwhile.

    ``aiohttp`` reads all of the system's certificates when it is imported; agents speak no TLS to each other.
    """
    with _without_certificates():
        load()


@contextlib.contextmanager
def _without_certificates() -> Iterator[None]:
    before = {name: os.environ.get(name) for name in _CERTIFICATES}
    os.environ.update(dict.fromkeys(_CERTIFICATES, os.devnull))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


class Web:
    """The server and the client of one agent. Everything here runs on the loop's thread, but for ``prepare``."""

    def __init__(self, prepare: Callable[[], None], server: Callable[[], HttpServer]) -> None:
        """``prepare``: ``load`` or ``load_alone``. ``server``: makes it, once that has ended."""
        self._prepare = prepare
        self._make_server = server
        self._ready = asyncio.Event()
        self._closed = False
        self.server: HttpServer | None = None
        self._client: HttpClient | None = None

    async def open(self, sock: socket) -> None:
        """Import, take over the listening ``sock``, and let go on what waits for it. Raises what an import does."""
        await asyncio.to_thread(self._prepare)
        if self._closed:
            return
        from .http import HttpClient  # noqa: PLC0415 - imported by now

        self.server, self._client = self._make_server(), HttpClient()
        await self.server.open(sock)
        self._ready.set()

    async def post(self, address: Address, data: bytes) -> bool:
        """See ``HttpClient``."""
        return await (await self._opened()).post(address, data)

    async def fence(self, supervisor: str, request: Mapping[str, Any], key: Key | None = None) -> Mapping[str, Any]:
        """See ``HttpClient``."""
        return await (await self._opened()).fence(supervisor, request, key)

    async def close(self) -> None:
        """Refuse new connections, then end the open ones; what waits for the client waits until it is cancelled. Idempotent."""
        self._closed = True
        if self.server is not None:
            await self.server.close()

    async def close_client(self) -> None:
        """End what it has connected. Idempotent."""
        if self._client is not None:
            await self._client.close()

    async def _opened(self) -> HttpClient:
        await self._ready.wait()
        assert self._client is not None
        return self._client
