"""The launcher's HTTP endpoint on loopback: what workers may ask of it. Bodies are JSON or msgpack maps.

``POST /fence {job, pid, member, reason}``: kill that worker and answer once it is reaped. 200 ``{"reaped": true}`` is
proof of death, the only thing that lets one of two go on at once; ``"known": false`` says that it was gone before.
``"gone_ms"``: for so many milliseconds at least it has done nothing any more, since it was sent SIGKILL or had ended: on a
starved machine the answer may come late, and what counts is when it died. 404 where the pid was never a worker here, 504 where
the kernel will not let it die in time: no proof.

``POST /announce {job, pid, member, address, epoch}``: a worker says where it is (see ``lifecycle.supervisor_client``).
``GET /workers``: what the launcher believes, for people and tools.

Requests carry a ``mac`` over their fields under the job's secret, and so does the answer to ``/fence``: whoever does not know
the secret can neither have a worker killed nor, listening where a launcher was, tell its peers that it is dead.
"""

from __future__ import annotations

import hmac
import json
import socket
from collections.abc import Mapping
from typing import Any, Protocol

import msgpack
from aiohttp import web

from consensus import Key, KeyRing

from .process import Fate

_MAX_BODY = 16 << 10

_ANSWERS = {
    Fate.REAPED: (200, {"reaped": True, "known": True}),
    Fate.GONE: (200, {"reaped": True, "known": False}),
    Fate.UNKNOWN: (404, {"reaped": False, "known": False}),
    Fate.STUCK: (504, {"reaped": False, "known": True}),
}


class Operations(Protocol):
    """What the endpoint asks of the supervisor behind it."""

    @property
    def job(self) -> str:
        """The name that callers must know."""
        ...

    @property
    def ring(self) -> KeyRing:
        """The keys of which callers must have one."""
        ...

    async def fence(self, pid: int, member: str, reason: str) -> tuple[Fate, float]:
        """Kill a worker and wait, within a deadline, until it is reaped; for how many seconds it is gone."""
        ...

    def announced(self, pid: int, member: str, address: str, epoch: int) -> bool:
        """Take note; False for a pid that is no running worker."""
        ...

    def report(self) -> dict[str, Any]:
        """What ``GET /workers`` shows."""
        ...


async def serve(operations: Operations, listener: socket.socket) -> web.AppRunner:
    """Answer on ``listener`` until ``cleanup`` of the runner that this returns."""
    endpoint = _Endpoint(operations)
    app = web.Application(client_max_size=_MAX_BODY)
    app.add_routes(
        [
            web.post("/fence", endpoint.fence),
            web.post("/announce", endpoint.announce),
            web.get("/workers", endpoint.workers),
        ]
    )
    runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=1.0)
    await runner.setup()
    await web.SockSite(runner, listener).start()
    return runner


class _Endpoint:
    """One handler a path."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations

    async def fence(self, request: web.Request) -> web.Response:
        fields = await self._fields(request)
        try:
            pid, member, reason = int(fields["pid"]), str(fields.get("member", "")), str(fields.get("reason", ""))
        except (KeyError, TypeError, ValueError):
            raise _refusal(web.HTTPBadRequest, "expected pid (a number), member and reason") from None
        names = ("job", "pid", "member", "nonce")
        key = self._key(fields, "fence", *names)
        fate, gone = await self._operations.fence(pid, member, reason[:200])
        status, answer = _ANSWERS[fate]
        gone_ms = int(1000 * gone)
        mac = key.vouch("fenced", *(fields.get(name) for name in names), answer["reaped"], gone_ms)
        return web.json_response({**answer, "gone_ms": gone_ms, "mac": mac}, status=status)

    async def announce(self, request: web.Request) -> web.Response:
        fields = await self._fields(request)
        try:
            values = int(fields["pid"]), str(fields["member"]), str(fields["address"]), int(fields.get("epoch", 0))
        except (KeyError, TypeError, ValueError):
            raise _refusal(web.HTTPBadRequest, "expected pid, member, address and epoch") from None
        self._key(fields, "announce", "job", "pid", "member", "address", "epoch")
        known = self._operations.announced(*values)
        return web.json_response({"known": known}, status=200 if known else 404)

    async def workers(self, request: web.Request) -> web.Response:
        wanted = self._operations.ring.bearers("workers")
        shown = request.headers.get("Authorization", "").removeprefix("Bearer ").encode(errors="replace")
        if not any(hmac.compare_digest(shown, token.encode()) for token in wanted):
            raise _refusal(web.HTTPForbidden, "show the token of this job's secret")
        return web.json_response(self._operations.report())

    async def _fields(self, request: web.Request) -> Mapping[str, Any]:
        fields = _decode(await request.read())
        if fields is None:
            raise _refusal(web.HTTPBadRequest, "expected a JSON or msgpack map")
        if not hmac.compare_digest(str(fields.get("job", "")).encode(), self._operations.job.encode()):
            raise _refusal(web.HTTPForbidden, "this launcher runs another job")
        return fields

    def _key(self, fields: Mapping[str, Any], purpose: str, *names: str) -> Key:
        """The key that vouches for these fields."""
        key = self._operations.ring.vouched(str(fields.get("mac", "")), purpose, *(fields.get(name) for name in names))
        if key is None:
            raise _refusal(web.HTTPForbidden, "this launcher's workers have another secret")
        return key


def _refusal(kind: type[web.HTTPBadRequest | web.HTTPForbidden], text: str) -> web.HTTPException:
    return kind(text=json.dumps({"error": text}), content_type="application/json")


def _decode(body: bytes) -> Mapping[str, Any] | None:
    try:
        value = json.loads(body) if body.lstrip().startswith(b"{") else msgpack.unpackb(body)
    except Exception:  # noqa: BLE001 - msgpack documents several unrelated errors, and all mean the same here
        return None
    return value if isinstance(value, dict) else None
