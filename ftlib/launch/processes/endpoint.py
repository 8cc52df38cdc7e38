"""The launcher's HTTP endpoint on loopback: requests that workers may send. Bodies are JSON or msgpack maps.

``POST /fence {job, pid, member, reason, by}``: kill that worker, which the member ``by`` accuses, and answer once it is reaped.
200 ``{"reaped": true}`` is proof of death, the only thing that lets one of two members go on at once; ``"known": false``: it
had ended before. ``"gone_ms"``: milliseconds, at least, since the worker was sent SIGKILL or had ended, and so did nothing any
more. On a starved machine the answer may come late, and the time of death counts. 404: the pid was never a worker here. 504:
the kernel does not let the worker die in time. 409: it is spared. None of these is a proof.

``POST /announce {job, pid, member, address, epoch}``: a worker sends its address (see ``lifecycle.supervisor_client``).
``POST /again {job, pid, member}``: the worker is about to leave, ends with 0, and is to be started again then.
``POST /awaited {job, pid, member}``: whether another worker is starting, or will be; 404 if this launcher does not know of all.
``GET /workers``: the launcher's view of its workers, for people and tools.

Requests carry a ``mac`` over their fields under the job's secret, and so does the answer to ``/fence``. Without the secret
nobody can have a worker killed, nor listen at the address of an ended launcher and answer peers that a worker is dead.
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
    Fate.SPARED: (409, {"reaped": False, "known": True}),
}


class Operations(Protocol):
    """What the endpoint needs of the supervisor behind it."""

    @property
    def job(self) -> str:
        """The name that callers must know."""
        ...

    @property
    def ring(self) -> KeyRing:
        """The keys; a caller must have one of them."""
        ...

    async def fence(self, pid: int, member: str, reason: str, by: str) -> tuple[Fate, float]:
        """Kill a worker that the member ``by`` accuses, and wait, within a deadline, until it is reaped.

        Returns also for how many seconds it has been gone.
        """
        ...

    def announced(self, pid: int, member: str, address: str, epoch: int) -> bool:
        """Record an announcement; False for a pid that is no running worker."""
        ...

    def wanted_again(self, pid: int) -> bool:
        """Start this worker again when it has ended well; False for a pid that is no running worker."""
        ...

    def awaited(self, pid: int) -> bool | None:
        """Whether another worker than this one is starting, or will be; None if that is not known here."""
        ...

    def report(self) -> dict[str, Any]:
        """Return the body of ``GET /workers``."""
        ...


async def serve(operations: Operations, listener: socket.socket) -> web.AppRunner:
    """Answer on ``listener`` until ``cleanup`` of the returned runner is called."""
    endpoint = _Endpoint(operations)
    app = web.Application(client_max_size=_MAX_BODY)
    app.add_routes(
        [
            web.post("/fence", endpoint.fence),
            web.post("/announce", endpoint.announce),
            web.post("/again", endpoint.again),
            web.post("/awaited", endpoint.awaited),
            web.get("/workers", endpoint.workers),
        ]
    )
    runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=1.0)
    await runner.setup()
    await web.SockSite(runner, listener).start()
    return runner


class _Endpoint:
    """One handler for each path."""

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
        fate, gone = await self._operations.fence(pid, member, reason[:200], str(fields.get("by", "")))
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

    async def again(self, request: web.Request) -> web.Response:
        known = self._operations.wanted_again(await self._pid(request, "again"))
        return web.json_response({"known": known}, status=200 if known else 404)

    async def awaited(self, request: web.Request) -> web.Response:
        awaited = self._operations.awaited(await self._pid(request, "awaited"))
        return web.json_response({"awaited": awaited}, status=404 if awaited is None else 200)

    async def workers(self, request: web.Request) -> web.Response:
        wanted = self._operations.ring.bearers("workers")
        shown = request.headers.get("Authorization", "").removeprefix("Bearer ").encode(errors="replace")
        if not any(hmac.compare_digest(shown, token.encode()) for token in wanted):
            raise _refusal(web.HTTPForbidden, "show the token of this job's secret")
        return web.json_response(self._operations.report())

    async def _pid(self, request: web.Request, purpose: str) -> int:
        """The worker that asks."""
        fields = await self._fields(request)
        try:
            pid = int(fields["pid"])
        except (KeyError, TypeError, ValueError):
            raise _refusal(web.HTTPBadRequest, "expected pid (a number) and member") from None
        self._key(fields, purpose, "job", "pid", "member")
        return pid

    async def _fields(self, request: web.Request) -> Mapping[str, Any]:
        fields = _decode(await request.read())
        if fields is None:
            raise _refusal(web.HTTPBadRequest, "expected a JSON or msgpack map")
        if not hmac.compare_digest(str(fields.get("job", "")).encode(), self._operations.job.encode()):
            raise _refusal(web.HTTPForbidden, "this launcher runs another job")
        return fields

    def _key(self, fields: Mapping[str, Any], purpose: str, *names: str) -> Key:
        """Return the key whose ``mac`` is right for these fields. Raises 403 if there is none."""
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
