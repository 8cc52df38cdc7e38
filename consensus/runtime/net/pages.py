"""Pages that the layer above adds to an agent, which serves them itself: they are there while the training process hangs.

A browser cannot sign as members do. So these paths pass the authenticator by, and the pages themselves decide whom they let in:
who shows a token derived from the secret, as ``?token=``, and later what they have given to it. Their code is named by a
setting (``Config.pages``). It is imported, on a thread, when somebody comes with the token for the first time: nobody else has
been given anything before.
"""

from __future__ import annotations

import asyncio
import hmac
import importlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from aiohttp import web

from ...member import Address
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
        """Requests before there were pages."""

    @staticmethod
    def wants(path: str) -> bool:
        """Whether that path is one of these pages."""
        return path == PREFIX or path.startswith(f"{PREFIX}/")

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """See ``Pages``."""
        if self._pages is None and not self._mount.lets_in(request.query.get("token", "")):
            self._refused += 1
            return web.Response(status=401, text="a token lets you in: ftlib dashboard --link prints the address to open\n")
        async with self._making:
            if self._pages is None:
                prove(request)  # else the stranger's time would be up before all is imported
                module, _, function = self._name.partition(":")
                make = getattr(await asyncio.to_thread(importlib.import_module, module), function)
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
