"""The crash detector: held connections, and the question "are you still that lifetime?".

A process that dies closes its connections at once, and its living host refuses the next one: within about a millisecond that is
proof of death, while timers would need seconds. So a member keeps a *liveness connection* to a few others; when one
closes, or on demand, it asks again:

* connection refused: the host lives and nobody listens there, so the process is gone (``trust_refused``);
* the same id answers: alive, and the answer's connection is the new liveness connection;
* another id answers: a later lifetime took the address, so this one is gone;
* accepted and closed again without an answer: a dying process closes its descriptors one by one, so ask again at once,
  in short bounded steps;
* anything else, or nothing in time: undecided. With a secret that is also any answer without a valid proof (see ``proofs``).

Plain sockets with one literal HTTP request: a client session would cost more than the whole detection.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from urllib.parse import unquote

from ...errors import SealError
from ...member import Address, Member, format_address
from ...wire import heads
from ...wire.keys import KeyRing
from ...wire.proofs import IDENTITY, SCHEME, Exchange, decode, fresh_nonce, greeting
from .names import Endpoint, resolve

CHECK_TIMEOUT = 0.5
"""Seconds for one answer, torn connections included: longer than a held GIL usually lasts."""

_FIRST_PAUSE = 0.0005
_LAST_PAUSE = 0.05
_HEAD_LIMIT = 4096
_VERSION_DIGITS = 9
_RETRY_FIRST = 0.1
_RETRY_LAST = 2.0

ReportCheck = Callable[[str, bool | None, str, bool], None]
"""(member id, alive or undecided, detail, whether a process listens): the fields of ``Checked``."""


class Doubt(Enum):
    """Why an answer proves nothing."""

    ASKS = "asks for a secret"
    DIFFERS = "has another secret"
    LACKS = "has no secret"
    FORGED = "is not authentic"


@dataclass(frozen=True, slots=True)
class Identity:
    """Who answered at an address: a member id, its job and its protocol version ("" and 0 if the answer does not say)."""

    member_id: str = ""
    job: str = ""
    version: int = 0
    address: str = ""
    """The address that it advertises; proven if a secret is used."""
    doubt: Doubt | None = None
    """Why the answer is not believed; without a secret of our own: whether the other side asks for one."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of a check: alive (True), gone (False), or undecided (None), with a line for the log.

    ``listens``: whether a connection was accepted there. That happens for a stopped process, too, not for a vanished host.
    """

    alive: bool | None
    detail: str
    listens: bool = False


class _TornError(OSError):
    """The connection closed before an answer arrived."""


async def ask(
    address: Address, path: str = "/identity", ring: KeyRing | None = None, connected: Callable[[], None] = lambda: None
) -> tuple[Identity | None, socket.socket]:
    """Connect to ``address`` and ask who is there. Returns the answer (None: no agent of ours) and the open connection.

    With a ``ring`` only a proven answer is free of doubt. ``connected`` is called when the connection is established.
    Raises OSError; has no timeout of its own.
    """
    endpoint = await resolve(address)
    sock = socket.socket(endpoint.family, socket.SOCK_STREAM)
    try:
        await _connect(sock, endpoint)
        connected()
        if ring is None:
            return _answer(await _request(sock, address, path)), sock
        return await _prove(sock, address, path, ring), sock
    except BaseException:
        sock.close()
        raise


async def _connect(sock: socket.socket, endpoint: Endpoint) -> None:
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    await asyncio.get_running_loop().sock_connect(sock, endpoint.sockaddr)
    if sock.getsockname() == sock.getpeername():
        # the kernel drew the wanted port as our own and connected us to ourselves: nobody listens there
        raise ConnectionRefusedError("connected to itself")


async def _prove(sock: socket.socket, address: Address, path: str, ring: KeyRing) -> Identity | None:
    """Challenge and proof (see ``proofs``)."""
    nonce = fresh_nonce()
    head = await _request(sock, address, path, greeting(nonce))
    scheme, _, challenge = head.get("www-authenticate", "").partition(" ")
    if scheme != SCHEME:
        answer = _answer(head)
        return answer and replace(answer, doubt=Doubt.LACKS)
    try:
        exchange = Exchange(ring.first, nonce, decode(challenge), path)
    except SealError:
        return Identity(doubt=Doubt.FORGED)
    head = await _request(sock, address, path, exchange.credentials())
    if head.get("", "").startswith("401"):
        return Identity(doubt=Doubt.DIFFERS)
    return _answer(head) if exchange.proves(head) else Identity(doubt=Doubt.FORGED)


async def _request(sock: socket.socket, address: Address, path: str, credentials: str = "") -> dict[str, str]:
    """One GET. Returns the head of the answer: lower-case names, the status under ""; empty if it is no HTTP."""
    loop = asyncio.get_running_loop()
    fields = {"Host": format_address(address), **({"Authorization": credentials} if credentials else {})}
    await loop.sock_sendall(sock, heads.write(f"GET {path} HTTP/1.1", fields))
    head = b""
    while heads.END not in head and len(head) <= _HEAD_LIMIT:
        data = await loop.sock_recv(sock, _HEAD_LIMIT)
        if not data:
            raise _TornError("closed without an answer")
        head += data
    first, values = heads.read(head)
    return {**values, "": first.partition(" ")[2]} if first.startswith("HTTP/1.") else {}


def _answer(head: dict[str, str]) -> Identity | None:
    """The identity in a response head."""
    if head.get("") == f"401 {SCHEME}":
        return Identity(doubt=Doubt.ASKS)
    member_id, job, version, address = (unquote(head.get(name, "")) for name in IDENTITY)
    if not member_id:
        return None
    known = version.isdecimal() and len(version) <= _VERSION_DIGITS  # int() of thousands of digits is an error
    return Identity(member_id, job, int(version) if known else 0, address)


class LivenessConnections:
    """Holds liveness connections and runs checks. Runs on the loop's thread; ``report`` gets every result."""

    def __init__(self, report: ReportCheck, ring: KeyRing | None = None, *, trust_refused: bool = True) -> None:
        """``ring``: believe only members that know the secret. ``trust_refused``: whether "connection refused" proves death, or
        leaves the check undecided.
        """
        self._report = report
        self._ring = ring
        self._trust_refused = trust_refused
        self._held: dict[str, asyncio.Task[None]] = {}
        self._checks: dict[str, asyncio.Task[None]] = {}
        self._asking: set[str] = set()
        self._closed = False

    def keep(self, members: Sequence[Member]) -> None:
        """Hold a connection to each of ``members``, and to nobody else."""
        wanted = {member.id: member for member in members}
        for member_id in [each for each in self._held if each not in wanted]:
            self._held.pop(member_id).cancel()
        for member_id, member in wanted.items():
            if member_id not in self._held and not self._closed:
                self._held[member_id] = asyncio.create_task(self._hold(member), name=f"liveness connection to {member}")

    def check(self, member: Member) -> None:
        """Ask ``member`` once, now, unless such a request is under way."""
        if self._closed or member.id in self._checks or member.id in self._asking:
            return
        self._checks[member.id] = asyncio.create_task(self._check(member), name=f"check {member}")

    async def close(self) -> None:
        """End all connections and checks without a result. Idempotent."""
        self._closed = True
        tasks = [*self._held.values(), *self._checks.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._held.clear()
        self._checks.clear()

    async def _check(self, member: Member) -> None:
        try:
            verdict, sock = await self._decide(member, "/identity")
            if sock is not None:
                sock.close()
        finally:
            self._checks.pop(member.id, None)
        self._report(member.id, verdict.alive, verdict.detail, verdict.listens)

    async def _hold(self, member: Member) -> None:
        """Keep one connection: ask, hold it until it closes, ask again; until the member is proven gone."""
        loop = asyncio.get_running_loop()
        pause = 0.0
        while True:
            self._asking.add(member.id)
            try:
                verdict, sock = await self._decide(member, "/tether")
            finally:
                self._asking.discard(member.id)
            since = loop.time()
            try:
                self._report(member.id, verdict.alive, verdict.detail, verdict.listens)
                if verdict.alive is False:
                    return
                if sock is not None:
                    await _until_closed(sock)
            finally:
                if sock is not None:
                    sock.close()
            # a connection that does not last (or was never established) is renewed more and more slowly: never a busy loop
            lasted = sock is not None and loop.time() - since > 1.0
            pause = 0.0 if lasted else min(max(2 * pause, _RETRY_FIRST), _RETRY_LAST)
            if sock is None:
                await asyncio.sleep(pause)
            elif not lasted:
                self.check(member)  # the question itself is never delayed
                await asyncio.sleep(pause)

    async def _decide(self, member: Member, path: str) -> tuple[CheckResult, socket.socket | None]:
        """Ask until an answer is conclusive, at most ``CHECK_TIMEOUT``. Returns the connection, too, if the member is alive."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + CHECK_TIMEOUT
        pause = 0.0
        connections = 0
        closed: OSError | None = None

        def connected() -> None:
            nonlocal connections
            connections += 1

        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    answer, sock = await ask(member.address, path, self._ring, connected)
            except (ConnectionResetError, BrokenPipeError, ConnectionAbortedError, _TornError) as error:
                closed = error
                if loop.time() + pause >= deadline:
                    return self._judge_error(member, error, listens=connections > 0), None
                await asyncio.sleep(pause)
                pause = min(max(2 * pause, _FIRST_PAUSE), _LAST_PAUSE)
            except OSError as error:  # including TimeoutError
                if isinstance(error, TimeoutError) and closed is not None:
                    error = closed  # says more than a timeout in the next attempt
                return self._judge_error(member, error, listens=connections > 0), None
            else:
                verdict = _judge_answer(member, answer, proven=self._ring is not None)
                if verdict.alive:
                    return verdict, sock
                sock.close()
                return verdict, None

    def _judge_error(self, member: Member, error: OSError, *, listens: bool) -> CheckResult:
        where = format_address(member.address)
        match error:
            case ConnectionRefusedError():
                return CheckResult(False if self._trust_refused else None, f"connection refused at {where}")
            case TimeoutError():
                return CheckResult(None, f"no answer from {where} within {CHECK_TIMEOUT:g} s", listens)
            case ConnectionError() | _TornError():
                return CheckResult(None, f"{where} accepts connections and closes them", listens)
            case _:
                return CheckResult(None, f"{where} unreachable: {error.strerror or error}")


def _judge_answer(member: Member, answer: Identity | None, *, proven: bool) -> CheckResult:
    where = format_address(member.address)
    if answer is None:
        return CheckResult(None, f"something else answers at {where}")
    if answer.doubt is not None:
        return CheckResult(None, f"what answers at {where} {answer.doubt.value}")
    if answer.member_id != member.id and proven and answer.address != where:
        # a process in between may have relayed the question to another member, whose answer is then true and proves nothing
        return CheckResult(None, f"a member that advertises {answer.address} answers at {where}")
    if answer.member_id != member.id:
        return CheckResult(False, f"another lifetime ({answer.member_id[:6]}) answers at {where}")
    return CheckResult(True, f"answered at {where}")


async def _until_closed(sock: socket.socket) -> None:
    """Return when the other side has closed; ignore what it sends meanwhile."""
    _keep_alive(sock)
    loop = asyncio.get_running_loop()
    try:
        while await loop.sock_recv(sock, _HEAD_LIMIT):
            pass
    except OSError:
        pass


def _keep_alive(sock: socket.socket) -> None:
    """Detect within about 10 s that a whole host was replaced; a dead process is detected without this."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 4), ("TCP_KEEPINTVL", 2), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
