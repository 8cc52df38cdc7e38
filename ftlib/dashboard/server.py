"""The dashboard's own HTTP server, on loopback, for one user with a browser (``ftlib dashboard``)."""

from __future__ import annotations

import hmac
import secrets

from aiohttp import web

from ..errors import ConfigError
from .desk import BrowserAuthenticator, Desk, Means
from .watch import Watch

HOST = "127.0.0.1"
_ENDING = 2.0
"""Seconds that open pages get when the server closes."""


class Server:
    """One dashboard that listens."""

    def __init__(self, watch: Watch, means: Means, job: str) -> None:
        self._watch = watch
        self._means = means
        self._job = job
        self._token = secrets.token_urlsafe(32)
        self._runner: web.ServerRunner | None = None
        self._desk: Desk | None = None
        self.port = 0

    @property
    def refused(self) -> int:
        """Requests that were refused."""
        return 0 if self._desk is None else self._desk.counts().get("refused", 0)

    async def open(self, port: int = 0) -> str:
        """Listen on loopback; returns the address to open, which holds the token. ConfigError if the port is taken."""
        self._runner = web.ServerRunner(
            web.Server(self._handle, access_log=None, handler_cancellation=True), shutdown_timeout=_ENDING
        )
        await self._runner.setup()
        site = web.TCPSite(self._runner, HOST, port)
        try:
            await site.start()
        except OSError as error:
            await self._runner.cleanup()
            raise ConfigError(f"port {port} cannot be used ({error.strerror or error}): give another --port, or none") from None
        self.port = self._runner.addresses[0][1]
        hint = "open the address that ftlib dashboard printed"
        authenticator = BrowserAuthenticator(self._lets_in, self._job, self.port, hint, (HOST, "localhost"))
        self._desk = Desk(self._watch, self._means, authenticator)
        return f"http://{HOST}:{self.port}/?token={self._token}"

    async def close(self) -> None:
        """End all. Idempotent."""
        if self._desk is not None:
            await self._desk.close()
        else:
            await self._watch.close()
        if self._runner is not None:
            await self._runner.cleanup()

    def _lets_in(self, token: str) -> bool:
        return hmac.compare_digest(token.encode(errors="replace"), self._token.encode())

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        if self._desk is None:  # it is being opened
            return web.Response(status=503)
        return await self._desk.answer(request)
