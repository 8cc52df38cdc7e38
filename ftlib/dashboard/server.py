"""The dashboard's HTTP server, on loopback, for one user with a browser.

Who opens the page shows the token of its address once and gets a cookie, HttpOnly and SameSite=Strict, whose name holds the job
and the port. All else needs the cookie. Requests for another Host are refused, since a name that leads here from a stranger's
page (DNS rebinding) would carry that page's rights; orders also need this page's Origin. The page may load nothing from
elsewhere (its Content-Security-Policy), and what it shows of workers is text.

The server signs what it asks of members: the secret never reaches the browser.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import re
import secrets
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from aiohttp import web

from ..errors import ConfigError, FTLibError
from .watch import Watch

__all__ = ["HOST", "Means", "Server"]

HOST = "127.0.0.1"
_PING = 15.0
"""Seconds between two comments to a viewer to whom there is nothing to tell, so that a dead connection is noticed."""
_MOST_BODY = 4096
_DONE = 256
"""The most orders that are remembered, so that a repeated one is not given again."""
_ENDING = 2.0
"""Seconds that open pages get when the server closes."""


@dataclass(frozen=True, slots=True)
class Means:
    """What the server does with members; blocking calls, made on threads. Each raises FTLibError in one line."""

    order: Callable[[str, str, str, int], str]
    """``order(address, kind, member, epoch)``: drain or kill; returns what happened."""
    consequence: Callable[[str, str], str]
    """``consequence(address, kind)``: what that would mean for the job."""
    stack: Callable[[str], str]
    """The stacks of the member at an address."""
    explain: Callable[[str, int], list[dict[str, Any]]]
    """All that is known about the change to an epoch."""


class Server:
    """One dashboard."""

    def __init__(self, watch: Watch, means: Means) -> None:
        self._watch = watch
        self._means = means
        self._token = secrets.token_urlsafe(32)
        self._cookie = secrets.token_urlsafe(32)
        self._page = (files(__package__) / "page.html").read_text(encoding="utf-8")
        self._done: OrderedDict[str, tuple[int, str]] = OrderedDict()
        self._runner: web.AppRunner | None = None
        self._pool = ThreadPoolExecutor(4, thread_name_prefix="ftlib-orders")
        self._closing = asyncio.Event()
        self.port = 0
        self.refused = 0
        """Requests that were refused."""

    async def open(self, port: int = 0) -> str:
        """Listen on loopback; returns the address to open, which holds the token. ConfigError if the port is taken."""
        app = web.Application(client_max_size=_MOST_BODY, middlewares=[self._guard])
        app.add_routes(
            [
                web.get("/", self._index),
                web.get("/events", self._events),
                web.get("/explain/{epoch:[0-9]{1,12}}", self._explain),
                web.get("/stack/{member}", self._stack),
                web.get("/consequence/{kind}/{member}", self._consequence),
                web.post("/order", self._order),
            ]
        )
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=_ENDING)
        await self._runner.setup()
        site = web.TCPSite(self._runner, HOST, port)
        try:
            await site.start()
        except OSError as error:
            await self._runner.cleanup()
            raise ConfigError(f"port {port} cannot be used ({error.strerror or error}): give another --port, or none") from None
        self.port = self._runner.addresses[0][1]
        return f"http://{HOST}:{self.port}/?token={self._token}"

    async def close(self) -> None:
        """End all. Idempotent."""
        self._closing.set()
        await self._watch.close()
        if self._runner is not None:
            await self._runner.cleanup()
        self._pool.shutdown(wait=False, cancel_futures=True)

    # Who may ask

    @property
    def _name(self) -> str:
        job = re.sub(r"[^A-Za-z0-9._-]", "_", self._watch.job)[:64]
        return f"ftlib_{job}_{self.port}"

    @property
    def _hosts(self) -> tuple[str, str]:
        return f"{HOST}:{self.port}", f"localhost:{self.port}"

    @web.middleware
    async def _guard(self, request: web.Request, handler: Callable[[web.Request], Any]) -> web.StreamResponse:
        try:
            self._check(request)
            response: web.StreamResponse = await handler(request)
        except web.HTTPException as refusal:
            if refusal.status in (401, 403, 405, 413):
                self.refused += 1
            raise
        except FTLibError as error:
            response = web.Response(status=502, text=f"{error}\n")
        return response

    def _check(self, request: web.Request) -> None:
        if request.host not in self._hosts:
            raise web.HTTPForbidden(text="this dashboard is for 127.0.0.1 alone\n")
        origin = request.headers.get("Origin")
        if origin is not None and origin not in [f"http://{host}" for host in self._hosts]:
            raise web.HTTPForbidden(text="a page of another origin may not ask this\n")
        if request.method == "POST" and origin is None:
            raise web.HTTPForbidden(text="an order needs the page's origin\n")
        if request.path == "/" and "token" in request.query:
            return  # it is checked there
        shown = [value for name, value in request.cookies.items() if name.endswith(f"_{self.port}")]
        if not any(hmac.compare_digest(value.encode(errors="replace"), self._cookie.encode()) for value in shown):
            raise web.HTTPUnauthorized(text="open the address that ftlib dashboard printed: its token lets you in\n")

    # What it answers

    async def _index(self, request: web.Request) -> web.Response:
        if "token" in request.query:
            if not hmac.compare_digest(request.query["token"].encode(errors="replace"), self._token.encode()):
                raise web.HTTPUnauthorized(text="a wrong token: open the address that ftlib dashboard printed\n")
            answer = web.Response(status=303, headers={"Location": "/", "Referrer-Policy": "no-referrer"})
            answer.set_cookie(self._name, self._cookie, httponly=True, samesite="Strict", path="/")
            return answer
        nonce = secrets.token_urlsafe(16)
        policy = (
            f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; img-src data:; "
            "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        headers = {
            "Content-Security-Policy": policy,
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cache-Control": "no-store",
        }
        return web.Response(text=self._page.replace("{{nonce}}", nonce), content_type="text/html", headers=headers)

    async def _events(self, request: web.Request) -> web.StreamResponse:
        last = request.headers.get("Last-Event-ID", "")
        viewer = self._watch.enter(int(last) if last.isdecimal() and len(last) < 13 else 0)
        if viewer is None:
            raise web.HTTPServiceUnavailable(text="too many pages are open: close one\n")
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
        try:
            await response.prepare(request)
            while not self._closing.is_set():
                try:
                    async with asyncio.timeout(_PING):
                        text = await viewer.events.get()
                except TimeoutError:
                    text = ": nothing new\n\n"
                if text is None:
                    break
                await response.write(text.encode())
        except ConnectionError:
            pass  # the page was closed
        finally:
            self._watch.leave(viewer)
        return response

    async def _explain(self, request: web.Request) -> web.Response:
        epoch = int(request.match_info["epoch"])
        return web.json_response(await self._call(self._means.explain, self._any_address(), epoch))

    async def _stack(self, request: web.Request) -> web.Response:
        return web.Response(text=await self._call(self._means.stack, self._address(request.match_info["member"])))

    async def _consequence(self, request: web.Request) -> web.Response:
        kind, address = request.match_info["kind"], self._address(request.match_info["member"])
        if kind not in ("drain", "kill"):
            raise web.HTTPNotFound(text="there is no such order\n")
        return web.Response(text=await self._call(self._means.consequence, address, kind))

    async def _order(self, request: web.Request) -> web.Response:
        try:
            body = json.loads(await request.text())
            kind, member, epoch, key = str(body["kind"]), str(body["member"]), int(body["epoch"]), str(body["key"])
        except (ValueError, TypeError, KeyError):
            raise web.HTTPBadRequest(text="expected kind, member, epoch and key\n") from None
        if kind not in ("drain", "kill") or not 8 <= len(key) <= 64:
            raise web.HTTPBadRequest(text="there is no such order\n")
        if key in self._done:
            status, text = self._done[key]
            return web.Response(status=status, text=f"{text} (done before)\n")
        address = self._address(member)
        self._done[key] = 409, "this order is under way"
        while len(self._done) > _DONE:
            self._done.popitem(last=False)
        try:
            text = await self._call(self._means.order, address, kind, member, epoch)
        except FTLibError as error:
            self._done[key] = 409, str(error)
        else:
            self._done[key] = 200, text
        status, text = self._done[key]
        return web.Response(status=status, text=f"{text}\n")

    def _address(self, member: str) -> str:
        address = self._watch.address_of(member)
        if address is None:
            raise web.HTTPNotFound(text="that member is not in the view any more: look again\n")
        return address

    def _any_address(self) -> str:
        address = self._watch.entry
        if address is None:
            raise web.HTTPNotFound(text="no member has answered yet\n")
        return address

    async def _call(self, function: Callable[..., Any], *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._pool, function, *args)
