"""Pages that the layer above adds to an agent, which serves them itself: they are there while the training process hangs.

A browser cannot sign as members do. So these paths pass the authenticator by, and the pages themselves decide whom they let in:
who shows a token derived from the secret, as ``?token=``, and later what they have given to it. Their code is named by a
setting (``Config.pages``). It is imported, on a thread, when somebody comes with the token for the first time: nobody else has
been given anything before. Who may not ask is turned away before HTTP has the connection, where that would cost more.
"""

from __future__ import annotations

import asyncio
import hmac
import importlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, ClassVar, Protocol
from urllib.parse import parse_qsl

from aiohttp import web

from ...member import Address
from ...storage.thread_pool import on_daemon
from ...wire import heads
from ...wire.keys import KeyRing
from .authenticator import prove

PREFIX = "/dashboard"
"""All of these pages are here and below."""


@dataclass(frozen=True, slots=True)
class Mount:
    """What an agent gives to its pages."""

    PURPOSE: ClassVar[str] = "dashboard"
    """Of the bearer tokens that let a browser in."""

    address: Address
    """Where others reach this agent."""
    job: str
    ring: KeyRing
    remote_orders: bool
    """See ``Config``."""
    status: Callable[[], Awaitable[Mapping[str, Any]]]
    """This member's status, with that of the layer above."""
    place: Callable[[], object]
    """What differs after each change of the view; cheap."""

    def lets_in(self, token: str) -> bool:
        """Whether that is the token, of any key that is accepted."""
        shown = token.encode(errors="replace")
        return any(hmac.compare_digest(shown, each.encode()) for each in self.ring.bearers(self.PURPOSE))


class Pages(Protocol):
    """What the code named by ``Config.pages`` makes of a ``Mount``."""

    async def answer(self, request: web.BaseRequest, admitted: Callable[[], None]) -> web.StreamResponse:
        """Answer a request. Calls ``admitted`` once the client has shown that it may be here: its connection may then stay."""

    def refusal(self, method: str, path: str, query: Mapping[str, str], headers: Mapping[str, str]) -> tuple[int, str] | None:
        """HTTP status and text for whoever may not ask this at all; None if it may. ``headers``: Host, Origin, Cookie."""

    async def close(self) -> None:
        """End what is still being answered."""

    def counts(self) -> Mapping[str, int]:
        """Viewers that are there, and requests that were refused."""


class MountedPages:
    """The pages of one agent, made when somebody asks for them. Everything here runs on the loop's thread."""

    def __init__(self, name: str, mount: Mount) -> None:
        """``name``: ``module:function``."""
        self._name = name
        self._mount = mount
        self._making = asyncio.Lock()
        self._pages: Pages | None = None
        self._refused = 0
        """Requests before there were pages, and those that were turned away at the door."""

    @staticmethod
    def wants(path: str) -> bool:
        """Whether that path is one of these pages."""
        return path == PREFIX or path.startswith(f"{PREFIX}/")

    def turns_away(self, head: bytes) -> bytes | None:
        """The whole answer to a request that is for these pages and comes from nobody who may ask; None for all others.

        ``head``: what a stranger has sent, up to the empty line at least. Whatever is odd about it is left to HTTP.
        """
        try:
            request, *lines = head[: head.index(heads.END)].decode("ascii").split("\r\n")
            method, target, _ = request.split(" ")
        except ValueError:
            return None
        path, _, asked = target.partition("?")
        if not self.wants(path):
            return None
        headers: dict[str, str] = {}
        for line in lines:
            name, _, value = line.partition(":")
            headers.setdefault(name.title(), value.strip())
        refused = self._refusal(method, path, dict(parse_qsl(asked, keep_blank_values=True)), headers)
        if refused is None:
            return None
        self._refused += 1
        status, text = HTTPStatus(refused[0]), refused[1].encode()
        fields = {"Content-Type": "text/plain; charset=utf-8", "Content-Length": str(len(text)), "Connection": "close"}
        return heads.write(f"HTTP/1.1 {status} {status.phrase}", fields) + text

    def _refusal(self, method: str, path: str, query: Mapping[str, str], headers: Mapping[str, str]) -> tuple[int, str] | None:
        if self._pages is not None:
            return self._pages.refusal(method, path, query, headers)
        if self._mount.lets_in(query.get("token", "")):
            return None
        return 401, "a token lets you in: ftlib dashboard --link prints the address to open\n"

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """See ``Pages``."""
        if self._pages is None and (refused := self._refusal(request.method, request.path, request.query, request.headers)):
            self._refused += 1
            return web.Response(status=refused[0], text=refused[1])
        async with self._making:
            if self._pages is None:
                prove(request)  # else the stranger's time would be up before all is imported
                module, _, function = self._name.partition(":")
                make = getattr(await on_daemon(importlib.import_module, module), function)
                self._pages = make(self._mount, PREFIX)
        pages: Pages = self._pages
        return await pages.answer(request, lambda: prove(request))

    def counts(self) -> Mapping[str, int]:
        """See ``Pages``."""
        counts = {} if self._pages is None else self._pages.counts()
        return {"viewers": 0, **counts, "refused": counts.get("refused", 0) + self._refused}

    async def close(self) -> None:
        """See ``Pages``. Idempotent."""
        if self._pages is not None:
            await self._pages.close()
