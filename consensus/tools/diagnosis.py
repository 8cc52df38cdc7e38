"""What is wrong between this host and a member at another: one check after the other, each with a remedy.

Uses only what a member does anyway. A member says at ``/identity`` to anybody who it is. It answers a ``Ping`` for another
lifetime with a ``Stranger``, no longer than the ping, sent to the address in the ping's envelope. To tell a lost answer from a
lost question, the diagnosis sends the question over HTTP instead, or reads the member's own count of what reached it.

Blocking code, in the caller's thread; every wait has a deadline.
"""

from __future__ import annotations

import contextlib
import email.utils
import http.client
import json
import secrets
import socket
import time
from dataclasses import dataclass, field
from enum import Enum
from typing import Any
from urllib.parse import unquote

from ..config import PROTOCOL_VERSION
from ..errors import SecretError
from ..member import Address, format_address
from ..messages import Stranger
from ..runtime.net.names import Endpoint, link_local, numeric
from ..runtime.net.pings import TRIES, Pings
from ..runtime.net.udp import NETWORK_LIMIT
from ..wire.keys import KeyRing
from ..wire.proofs import IDENTITY
from .client import Answer, Connection, get
from .interfaces import interface_of

_MAX_BODY = 16 << 20
_STATUS_TIMEOUT = 3.0
"""Seconds. An agent asks its training process, which may be busy."""
_CLOCK_LIMIT = 2.0
"""Seconds. The Date header of HTTP is exact to one second; logs of two hosts that differ by more are hard to read together."""


class Grade(Enum):
    """The result of a check."""

    GOOD = "ok"
    NOTED = "note"
    """Worth knowing; nothing fails because of it."""
    BAD = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Examination:
    """One check. ``remedy``: what to do if the result is bad."""

    name: str
    grade: Grade
    found: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.found}: {self.remedy}" if self.remedy else self.found


@dataclass
class Diagnosis:
    """All checks of one address, in the order in which they were made."""

    address: Address
    checks: list[Examination] = field(default_factory=list)

    @property
    def healthy(self) -> bool:
        """Whether nothing failed."""
        return all(check.grade is not Grade.BAD for check in self.checks)

    @property
    def verdict(self) -> str:
        """One line: the first failure, since later ones mostly follow from it; without a failure, what is worth knowing."""
        bad = [check for check in self.checks if check.grade is Grade.BAD]
        if bad:
            return str(bad[0])
        well = ", ".join(check.found for check in self.checks if check.name in ("identity", "udp"))
        return "; ".join([f"all is well ({well})", *(str(check) for check in self.checks if check.grade is Grade.NOTED)])

    def add(self, name: str, grade: Grade, found: str, remedy: str = "") -> bool:
        """Add a check. Returns whether to go on."""
        self.checks.append(Examination(name, grade, found, remedy))
        return grade is not Grade.BAD


def diagnose(address: Address, *, job: str | None = None, timeout: float = 2.0, ring: KeyRing | None = None) -> Diagnosis:
    """Check everything between this host and the member at ``address`` (numeric). ``job``: the one it should belong to.

    Takes at most about ``3 * timeout`` and five seconds.
    """
    patient = _Patient(address, job, timeout, ring)
    member = (patient.check_identity, patient.check_secret, patient.check_udp, patient.check_store)
    for check in (patient.check_route, patient.check_tcp, *member):
        if not check():
            break
    return patient.diagnosis


class _Patient:
    """One address under examination. Each check returns whether the next one makes sense."""

    def __init__(self, address: Address, job: str | None, timeout: float, ring: KeyRing | None) -> None:
        self.diagnosis = Diagnosis(address)
        self._add = self.diagnosis.add
        self._address, self._where = address, format_address(address)
        endpoint = numeric(address)
        if endpoint is None:
            raise ValueError(f"{self._where} is not numeric")
        self._endpoint: Endpoint = endpoint
        self._job, self._timeout = job, timeout
        self._own = ""
        self._mtu = 0
        self._theirs = ""
        self._ring = ring

    # The way there

    def check_route(self) -> bool:
        host = self._address[0]
        if link_local(host):
            return self._add("route", Grade.BAD, f"{host} is link-local", "give a global or unique local address of that host")
        with socket.socket(self._endpoint.family, socket.SOCK_DGRAM) as finder:
            try:
                finder.connect(self._endpoint.sockaddr)  # UDP: chooses the route, sends nothing
            except OSError as error:
                return self._add(
                    "route", Grade.BAD, f"this host has no way to {host} ({error.strerror})", "check the address and the routes"
                )
            self._own = str(finder.getsockname()[0])
        name, self._mtu = interface_of(self._own)
        through = f"from {self._own}" + (f" on {name} (MTU {self._mtu})" if name else "")
        if self._endpoint.loopback:
            return self._add("route", Grade.GOOD, f"{through}: loopback, so this host itself and no other")
        return self._add("route", Grade.GOOD, through + (": this host itself" if self._own == host else ""))

    def check_tcp(self) -> bool:
        began = time.monotonic()
        try:
            socket.create_connection(self._address, timeout=self._timeout).close()
        except TimeoutError:
            return self._add(
                "tcp",
                Grade.BAD,
                f"TCP to {self._where} is dropped (no answer within {self._timeout:g} s)",
                f"open port {self._address[1]} for TCP and UDP in the firewall, or check that the host is up",
            )
        except ConnectionRefusedError:
            return self._add(
                "tcp",
                Grade.BAD,
                f"the host of {self._where} answers, but nobody listens there",
                "start the worker with this bind, or check the port (its log says where it listens)",
            )
        except OSError as error:
            return self._add(
                "tcp",
                Grade.BAD,
                f"TCP to {self._where} fails: {error.strerror or error}",
                "check that the host is up, and that no firewall rejects the connection",
            )
        return self._add("tcp", Grade.GOOD, f"connected in {_ms(time.monotonic() - began)}")

    # Who is there

    def check_identity(self) -> bool:  # noqa: PLR0911 - one return a finding
        listens = f"something listens at {self._where}, but"
        try:
            status, headers = self._identity()
        except SecretError as error:
            return self._add("secret", Grade.BAD, str(error), "give both sides the same secret or secret_file")
        except TimeoutError:
            return self._add(
                "identity",
                Grade.BAD,
                f"{listens} it does not answer within {self._timeout:g} s",
                "is that worker stopped (SIGSTOP, Ctrl-Z, a debugger), or no member at all?",
            )
        except http.client.HTTPException as error:
            if isinstance(error, http.client.RemoteDisconnected):
                return self._add("identity", Grade.BAD, f"{listens} it hangs up", "check the port, and what proxy is between")
            return self._add(
                "identity", Grade.BAD, f"{listens} it speaks no HTTP", "that is no member of ftlib: check the port"
            )
        except OSError as error:
            return self._add(
                "identity",
                Grade.BAD,
                f"{listens} the connection breaks ({error.strerror or error})",
                "check the port, and what firewall or proxy is between",
            )
        member, job, version, _ = (headers.get(name, "") for name in IDENTITY)
        self._theirs = unquote(job)
        if not member:
            return self._add(
                "identity",
                Grade.BAD,
                f"an HTTP server listens at {self._where} (status {status}), but it is no member of ftlib",
                "check the port (a worker's log says where it listens)",
            )
        self._add("identity", Grade.GOOD, f"member {member[:6]} of job {self._theirs!r}")
        self._check_clock(headers.get("date", ""))
        return self._check_version(version) and self._check_job()

    def _check_version(self, version: str) -> bool:
        if version != str(PROTOCOL_VERSION):
            return self._add(
                "version",
                Grade.BAD,
                f"{self._where} speaks protocol version {version or '?'}, this ftlib {PROTOCOL_VERSION}",
                "install the same ftlib on both hosts",
            )
        return self._add("version", Grade.GOOD, f"protocol version {version} on both sides")

    def _check_job(self) -> bool:
        if self._job is not None and self._job != self._theirs:
            return self._add(
                "job",
                Grade.BAD,
                f"{self._where} is a member of job {self._theirs!r}, not of {self._job!r}",
                "give both the same job, or another port: members of different jobs ignore each other",
            )
        return self._add("job", Grade.GOOD if self._job else Grade.SKIPPED, f"job {self._theirs!r}")

    def _check_clock(self, date: str) -> None:
        try:
            apart = email.utils.parsedate_to_datetime(date).timestamp() + 0.5 - time.time()
        except ValueError:
            self._add("clock", Grade.SKIPPED, "the answer has no date")
            return
        if abs(apart) > _CLOCK_LIMIT:
            ahead = "ahead of" if apart > 0 else "behind"
            self._add(
                "clock",
                Grade.NOTED,
                f"its clock is {abs(apart):.0f} s {ahead} this host's",
                "only the times in logs suffer; run NTP on both hosts",
            )
        else:
            self._add("clock", Grade.GOOD, "within 2 s of this host's")

    def check_secret(self) -> bool:
        if self._ring is None:
            return self._add("secret", Grade.SKIPPED, "no secret used here")
        return self._add("secret", Grade.GOOD, "the same secret on both sides")

    # Datagrams

    def check_udp(self) -> bool:
        with socket.socket(self._endpoint.family, socket.SOCK_DGRAM) as sock:
            sock.bind((self._own, 0))
            pings = Pings(sock, self._endpoint, self._theirs, self._ring, self._own)
            try:
                took = pings.exchange()
            except ConnectionRefusedError:
                return self._udp_failed(
                    f"nobody listens at {self._where} on UDP, though somebody does on TCP",
                    "forward UDP too where a proxy or container maps the port",
                )
            except OSError as error:
                return self._udp_rejected(error)
            if took is None:
                return self._find_the_lost(pings)
            self._add("udp", Grade.GOOD, f"UDP passes both ways in {_ms(took)}")
            return self._check_mtu(pings)

    def _check_mtu(self, pings: Pings) -> bool:
        try:
            took = pings.exchange(NETWORK_LIMIT)
        except OSError as error:  # EMSGSIZE where the path's MTU is known already
            return self._mtu_failed(f"{error.strerror}")
        if took is None:
            return self._mtu_failed(f"lost {TRIES} times")
        return self._add("mtu", Grade.GOOD, f"datagrams of {NETWORK_LIMIT} bytes pass")

    def _mtu_failed(self, how: str) -> bool:
        headers = 28 if self._endpoint.family is socket.AF_INET else 48
        return self._add(
            "mtu",
            Grade.BAD,
            f"small datagrams reach {self._where}, those of {NETWORK_LIMIT} bytes do not ({how})",
            f"give the whole path (tunnel, VPN, overlay) an MTU of at least {NETWORK_LIMIT + headers}, or let ICMP through",
        )

    def _udp_failed(self, found: str, remedy: str) -> bool:
        return self._add("udp", Grade.BAD, found, remedy)

    def _udp_rejected(self, error: OSError) -> bool:
        """A firewall says no: here to us (EPERM), or there by ICMP (EHOSTUNREACH and others)."""
        return self._udp_failed(
            f"UDP to {self._where} fails: {error.strerror or error}",
            f"open port {self._address[1]} for UDP in the firewalls of this host and of {self._address[0]}",
        )

    def _find_the_lost(self, pings: Pings) -> bool:
        """Datagrams get no answer: find out in which direction they are lost."""
        try:
            self._identity()
        except (OSError, EOFError, SecretError, http.client.HTTPException):
            return self._add(
                "identity",
                Grade.BAD,
                f"{self._where} answered at first, and now no more",
                "has that process ended, or been stopped (SIGSTOP, Ctrl-Z, a debugger)?",
            )
        try:
            return self._find_the_way(pings)
        except OSError as error:
            return self._udp_rejected(error)

    def _find_the_way(self, pings: Pings) -> bool:
        """Whether the questions are lost, or the answers."""
        host, port = self._address
        if not pings.introduced():
            return self._udp_failed(
                f"UDP between {self._own} and {self._where} is dropped though TCP passes",
                f"open UDP in the firewalls of both hosts (port {port}, and whatever the workers here bind)",
            )
        back = self._answers_by_udp(pings)
        there = self._arrives(pings)
        if back:
            return self._udp_failed(
                f"UDP to {self._where} is dropped though TCP passes", f"open port {port} for UDP in the firewall of {host}"
            )
        if there:
            return self._udp_failed(
                f"UDP from {host} to {self._own} is dropped, the other way it passes",
                f"let UDP in at the firewall of this host; behind NAT set advertise to what {host} can reach",
            )
        ways = "either way" if there is False else f"on the way back, and perhaps to {host} too"
        return self._udp_failed(
            f"UDP between {self._own} and {self._where} is dropped {ways} though TCP passes",
            f"open UDP in the firewalls of both hosts (port {port}, and whatever the workers here bind)",
        )

    def _answers_by_udp(self, pings: Pings) -> bool:
        """Whether the answer comes back by UDP if the question goes by HTTP."""
        for _ in range(TRIES):
            seq, data = pings.ping()
            with contextlib.suppress(OSError, http.client.HTTPException):
                connection = Connection(*self._address, self._timeout, self._timeout)
                try:
                    connection.connect()
                    connection.request("POST", "/message", body=data)
                    connection.getresponse().read()
                finally:
                    connection.close()
            if pings.answered({seq}, time.monotonic() + pings.wait):
                return True
        return False

    def _arrives(self, pings: Pings) -> bool | None:
        """Whether datagrams that ask for no answer raise the member's count of them; None if the member does not give it."""
        before = self._strangers()
        for _ in range(TRIES):
            pings.send(pings.sealed(Stranger(0, secrets.token_hex(8))))
        time.sleep(pings.wait)  # these are never answered: only the member's counter tells, some time after they arrived
        after = self._strangers()
        return None if before is None or after is None else after > before

    def check_store(self) -> bool:
        """Note if the member itself reports that it does not reach the shared store."""
        store = self._status().get("store") or {}
        if store.get("away_since") is not None:
            self._add("store", Grade.NOTED, f"it does not reach the store {store['url']}", "bring that back, or its network")
        return True

    def _strangers(self) -> int | None:
        try:
            return int(self._status()["messages"]["received"].get("Stranger", {"messages": 0})["messages"])
        except (KeyError, TypeError, AttributeError):
            return None

    def _status(self) -> dict[str, Any]:
        """The member's status; empty if it gives none."""
        try:
            with self._ask("/status", max(self._timeout, _STATUS_TIMEOUT)) as answer:
                value = json.loads(answer.read(_MAX_BODY)) if answer.status == http.HTTPStatus.OK else None
        except (OSError, EOFError, SecretError, http.client.HTTPException, ValueError):
            return {}
        return value if isinstance(value, dict) else {}

    def _identity(self) -> tuple[int, dict[str, str]]:
        """Status and headers, which say all: with a secret the member has proven them."""
        with self._ask("/identity", self._timeout) as answer:
            return answer.status, answer.headers

    def _ask(self, path: str, timeout: float) -> Answer:
        return get(self._address, path, self._ring, timeout=timeout, within=timeout)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"
