"""What the dashboard answers, and whom it lets in; where it listens is others' business.

Who opens the page shows a token once and gets a cookie, HttpOnly and SameSite=Strict, whose name holds the job and the port.
All else needs the cookie. Requests for another Host are refused, since a name that leads here from a stranger's page (DNS
rebinding) would carry that page's rights; orders also need this page's Origin. The page may load nothing from elsewhere (its
Content-Security-Policy), and what it shows of workers is text.

Whoever runs it signs what it asks of members: the secret never reaches the browser.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import json
import re
import secrets
import socket
import struct
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.resources import files
from typing import Any
from urllib.parse import urlsplit

from aiohttp import web

from consensus import CarefulLogger

from ..errors import FTLibError
from .watch import Watch

logger = CarefulLogger("ftlib")

_EVENT = {"ftlib_event": "order"}
_PING = 15.0
"""Seconds between two comments to a viewer to whom there is nothing to tell, so that a dead connection is noticed."""
_STUCK = 10.0
"""Seconds that a viewer has to read some tens of kilobytes once its connection is full; then it is hung up on. A page that
still lives comes back by itself."""
_SENDING = 1 << 16
"""Bytes that the kernel keeps for a viewer, as asked for (Linux keeps twice that). By itself it would take megabytes."""
_WAITING = 1 << 14
"""Bytes beyond which nothing more is put into a connection before some are gone."""
_MOST_BODY = 4096
_DONE = 256
"""The most orders that are remembered, so that a repeated one is not given again."""
_KINDS = ("drain", "kill")


@dataclass(frozen=True, slots=True)
class Means:
    """What is done with members; blocking calls, made on threads. Each raises FTLibError in one line."""

    order: Callable[[str, str, str, int], str]
    """``order(address, kind, member, epoch)``: drain or kill; returns what happened."""
    consequence: Callable[[str, str], str]
    """``consequence(address, kind)``: what that would mean for the job."""
    stack: Callable[[str], str]
    """The stacks of the member at an address."""
    explain: Callable[[str, int], list[dict[str, Any]]]
    """All that is known about the change to an epoch."""


@dataclass(frozen=True, slots=True)
class BrowserAuthenticator:
    """Decides which browsers are let in: by their token, and by the name that they ask for."""

    lets_in: Callable[[str], bool]
    """Whether that is the token."""
    job: str
    port: int
    hint: str
    """Where a token is to be had, for who has none."""
    hosts: tuple[str, ...]
    """Names and addresses of this host by which it may be asked for, without the port."""
    addresses: bool = False
    """Whether it may also be asked for by any numeric address, as one with several interfaces: rebinding takes a name."""
    remote_orders: bool = False
    """Whether orders are taken from browsers on other hosts, too: over plain HTTP."""

    def is_own(self, authority: str) -> bool:
        """Whether ``host:port`` of a request stands for this dashboard, and for nothing that another could let it stand for."""
        try:
            parts = urlsplit(f"//{authority}")
            if parts.port != self.port or parts.hostname is None:
                return False
        except ValueError:
            return False
        known = {host.lower() for host in self.hosts}  # as urlsplit gives the other one
        return parts.hostname in known or (self.addresses and is_numeric(parts.hostname))

    @property
    def cookie(self) -> str:
        """Its name."""
        return f"ftlib_{re.sub(r'[^A-Za-z0-9._-]', '_', self.job)[:64]}_{self.port}"


class Desk:
    """One dashboard, for requests that somebody else has accepted. Everything runs on one loop; blocking calls on threads."""

    def __init__(self, watch: Watch, means: Means, authenticator: BrowserAuthenticator, base: str = "") -> None:
        """``base``: the path of the page, without a slash at its end."""
        self._watch = watch
        self._means = means
        self._authenticator = authenticator
        self._base = base
        self._cookie = secrets.token_urlsafe(32)
        self._page = (files(__package__) / "page.html").read_text(encoding="utf-8").replace("{{base}}", base)
        self._done: OrderedDict[str, tuple[int, str]] = OrderedDict()
        self._pool = ThreadPoolExecutor(4, thread_name_prefix="ftlib-orders")
        self._closing = asyncio.Event()
        self._counts = Counter[str]()

    def counts(self) -> dict[str, int]:
        """Viewers that are there; so far: requests refused, orders passed on, and orders that came ``again``."""
        return {"viewers": self._watch.viewers, **self._counts}

    async def close(self) -> None:
        """End all. Idempotent."""
        self._closing.set()
        await self._watch.close()
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def answer(self, request: web.BaseRequest, admitted: Callable[[], None] = lambda: None) -> web.StreamResponse:
        """Answer a request. Calls ``admitted`` once the client has shown that it may be here."""
        try:
            if refused := self.refusal(request.method, request.path, request.query, request.headers):
                self._counts["refused"] += 1
                return web.Response(status=refused[0], text=refused[1])
            admitted()
            return await self._route(request)
        except web.HTTPException as refusal:
            if refusal.status in (400, 401, 403, 405, 413) or request.method == "POST":
                self._counts["refused"] += 1
            return web.Response(status=refusal.status, text=refusal.text)
        except FTLibError as error:
            return web.Response(status=502, text=f"{error}\n")

    # Who may ask

    def refusal(self, method: str, path: str, query: Mapping[str, str], headers: Mapping[str, str]) -> tuple[int, str] | None:
        """HTTP status and text for whoever may not ask this; None if it may. ``headers``: Host, Origin and Cookie at least."""
        host = headers.get("Host", "")
        if not self._authenticator.is_own(host):
            return 403, "this dashboard has another name: open the address that was printed\n"
        origin = headers.get("Origin")
        if origin is not None and origin != f"http://{host}":
            return 403, "a page of another origin may not ask this\n"
        if method == "POST" and origin is None:
            return 403, "an order needs the page's origin\n"
        if "token" in query and self._place(path) == [""]:
            right = self._authenticator.lets_in(query["token"])
            return None if right else (401, f"a wrong token: {self._authenticator.hint}\n")
        if not hmac.compare_digest(self._shown(headers.get("Cookie", "")), self._cookie.encode()):
            return 401, f"a token lets you in: {self._authenticator.hint}\n"
        return None if method in ("GET", "POST") else (405, "that is not how this is asked\n")

    def _shown(self, cookies: str) -> bytes:
        """The value of this dashboard's cookie among all that a browser sends."""
        shown = (each.strip().partition("=") for each in cookies.split(";"))
        return next((value for name, _, value in shown if name == self._authenticator.cookie), "").encode(errors="replace")

    def _place(self, path: str) -> list[str]:
        """The parts of the path below the page's own."""
        return path.removeprefix(self._base).removeprefix("/").split("/")

    # What it answers

    async def _route(self, request: web.BaseRequest) -> web.StreamResponse:
        match request.method, self._place(request.path):
            case "GET", [""]:
                return self._index(request)
            case "GET", ["events"]:
                return await self._events(request)
            case "GET", ["explain", epoch] if epoch.isdecimal() and len(epoch) < 13:
                return web.json_response(await self._call(self._means.explain, self._any_address(), int(epoch)))
            case "GET", ["stack", member]:
                return web.Response(text=await self._call(self._means.stack, self._address(member)))
            case "GET", ["consequence", kind, member] if kind in _KINDS:
                return web.Response(text=await self._call(self._means.consequence, self._address(member), kind))
            case "POST", ["order"]:
                return await self._order(request)
            case "GET", _:
                raise web.HTTPNotFound(text="there is nothing here\n")
        raise web.HTTPMethodNotAllowed(request.method, ["GET"], text="that is not how this is asked\n")

    def _index(self, request: web.BaseRequest) -> web.Response:
        if "token" in request.query:
            headers = {"Location": self._base or "/", "Referrer-Policy": "no-referrer", "Cache-Control": "no-store"}
            answer = web.Response(status=303, headers=headers)
            name, path = self._authenticator.cookie, self._base or "/"
            answer.set_cookie(name, self._cookie, httponly=True, samesite="Strict", path=path)
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

    async def _events(self, request: web.BaseRequest) -> web.StreamResponse:
        viewer = self._watch.enter(_number(request.headers.get("Last-Event-ID")), _number(request.query.get("first")))
        if viewer is None:
            raise web.HTTPServiceUnavailable(text="too many pages are open: close one\n")
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
        try:
            _keep_little(request)
            await response.prepare(request)
            while not self._closing.is_set():
                try:
                    async with asyncio.timeout(_PING):
                        text = await viewer.events.get()
                except TimeoutError:
                    text = ": nothing new\n\n"
                if text is None:
                    break
                await _taken(request, response.write(text.encode()))
            await _taken(request, response.write_eof())
        except ConnectionError:
            pass  # the page was closed
        finally:
            self._watch.leave(viewer)
        return response

    async def _order(self, request: web.BaseRequest) -> web.Response:
        if not (self._authenticator.remote_orders or _is_loopback(request.remote)):
            raise web.HTTPForbidden(
                text="over plain HTTP orders are taken from this host alone: ssh -L to it, ftlib drain or kill, or the setting "
                "remote_orders\n"
            )
        kind, member, epoch, key = _read_order(await _body(request))
        if key in self._done:
            status, text = self._done[key]
            self._counts["again"] += 1
            return web.Response(status=status, text=f"{text} (done before)\n")
        address = self._address(member)
        self._done[key] = 409, "this order is under way"
        while len(self._done) > _DONE:
            self._done.popitem(last=False)
        self._counts["orders"] += 1
        giving = asyncio.get_running_loop().create_task(self._give(key, address, kind, member, epoch))
        await asyncio.shield(giving)  # a page that is closed meanwhile takes no order back
        status, text = self._done[key]
        return web.Response(status=status, text=f"{text}\n")

    async def _give(self, key: str, address: str, kind: str, member: str, epoch: int) -> None:
        try:
            text = await self._call(self._means.order, address, kind, member, epoch)
        except FTLibError as error:
            self._done[key] = 409, str(error)
            self._counts["refused"] += 1
            logger.warning("%s of %s, ordered from the dashboard: %s", kind, member, error, extra=_EVENT)
        else:
            self._done[key] = 200, text
            logger.warning("%s of %s, ordered from the dashboard: %s", kind, member, text, extra=_EVENT)

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


def is_numeric(host: str) -> bool:
    """Whether that is an IP address, and no name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.isascii() and text.isdecimal() and len(text) < 13 else 0


def _is_loopback(remote: str | None) -> bool:
    try:
        return ipaddress.ip_address(remote or "").is_loopback
    except ValueError:
        return False


def _keep_little(request: web.BaseRequest) -> None:
    """Let kernel and connection keep few bytes that a viewer has not read: the others wait as events, which are counted."""
    if request.transport is None:
        raise ConnectionResetError
    request.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SENDING)
    request.transport.set_write_buffer_limits(_WAITING)


async def _taken(request: web.BaseRequest, writing: Awaitable[None]) -> None:
    """Wait until that is on its way; raises ConnectionError if the viewer does not read: its connection ends then."""
    try:
        async with asyncio.timeout(_STUCK):
            await writing
    except TimeoutError:
        if request.transport is not None:
            reset = struct.pack("ii", 1, 0)  # what the kernel still has for it goes as well
            request.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
            request.transport.abort()
        raise ConnectionAbortedError("the viewer does not read") from None


async def _body(request: web.BaseRequest) -> bytes:
    body = await request.content.read(_MOST_BODY + 1)
    while len(body) <= _MOST_BODY and (more := await request.content.read(_MOST_BODY + 1)):
        body += more
    if len(body) > _MOST_BODY:
        raise web.HTTPRequestEntityTooLarge(_MOST_BODY, len(body), text="an order is shorter than that\n")
    return body


def _read_order(body: bytes) -> tuple[str, str, int, str]:
    """Kind, member, epoch and key; raises HTTPBadRequest if it is no order."""
    try:
        facts = json.loads(body)
        kind, member, epoch, key = str(facts["kind"]), str(facts["member"]), int(facts["epoch"]), str(facts["key"])
    except (ValueError, TypeError, KeyError, OverflowError):
        raise web.HTTPBadRequest(text="expected kind, member, epoch and key\n") from None
    if kind not in _KINDS or not 8 <= len(key) <= 64:
        raise web.HTTPBadRequest(text="there is no such order\n")
    return kind, member, epoch, key
