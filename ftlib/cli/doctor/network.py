"""The fault between this host and a member at another, in one line. See ``consensus.tools.diagnosis``."""

from __future__ import annotations

import ipaddress
import os
import secrets
import signal
import socket
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from consensus import Config, ConfigError, Gossip, Home, format_address, parse_address
from consensus.tools.diagnosis import Diagnosis, Examination, Grade, diagnose

from ... import errors
from ...launch.processes.credentials import drawn_rings, ring_of_user

LISTEN = "0.0.0.0:7070"
_MOST = 16
"""Most addresses of a name that are examined."""
_COLOURS = {Grade.GOOD: "green", Grade.NOTED: "yellow", Grade.BAD: "red", Grade.SKIPPED: "dim"}


def examine(address: str, *, job: str | None, timeout: float, environment: Mapping[str, str] | None = None) -> list[Diagnosis]:
    """Diagnose every address that ``address`` (host:port) stands for. Raises ConfigError if it is malformed."""
    environment = os.environ if environment is None else environment
    try:
        host, port = parse_address(address)
    except ValueError as error:
        raise errors.ConfigError(str(error)) from None
    if not port:
        raise errors.ConfigError(f"{address!r} needs the port that a member listens on, not 0")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        diagnosis = Diagnosis((host, port))
        remedy = "check the name and this host's DNS, or give a numeric address"
        diagnosis.add(
            "name", Grade.BAD, f"{host!r} cannot be resolved here ({getattr(error, 'strerror', 'no host name')})", remedy
        )
        return [diagnosis]
    hosts = list(dict.fromkeys(str(item[4][0]) for item in found))
    if any("." in each for each in hosts) and ":" not in host:
        hosts = [each for each in hosts if "." in each]  # as members do: one address family for a name
    job = job if job is not None else environment.get("FTLIB_JOB")
    ring = ring_of_user(environment)
    result: list[Diagnosis] = []
    for each in hosts[:_MOST]:
        diagnosis = diagnose((each, port), job=job, timeout=timeout, ring=ring)
        for drawn in drawn_rings() if ring is None and _locked(diagnosis) else ():
            again = diagnose((each, port), job=job, timeout=timeout, ring=drawn)
            if not _locked(again):
                diagnosis = again
                break
        checks = [*_named(host, each), *_own_bind(each, environment.get("FTLIB_BIND", ""))]
        diagnosis.checks[:0] = checks
        result.append(diagnosis)
    return result


def _locked(diagnosis: Diagnosis) -> bool:
    """Whether another secret is needed."""
    return any(check.name == "secret" and check.grade is Grade.BAD for check in diagnosis.checks)


def _named(name: str, host: str) -> list[Examination]:
    """Examine the address of a name. A common fault is a line of /etc/hosts that makes a host's own name loopback."""
    if name.strip("[]") == host:
        return []
    if ipaddress.ip_address(host).is_loopback and name != "localhost":
        remedy = "other hosts resolve it otherwise (see /etc/hosts): use a numeric address"
        return [Examination("name", Grade.NOTED, f"{name} is {host} here, which is this host alone", remedy)]
    return [Examination("name", Grade.GOOD, f"{name} is {host}")]


def _own_bind(host: str, bind: str) -> list[Examination]:
    """Examine whether ``host`` could reach a worker here that is bound to FTLIB_BIND."""
    try:
        own = ipaddress.ip_address(parse_address(bind)[0])
    except ValueError:
        return []  # not given, or a name
    if own.is_loopback and not ipaddress.ip_address(host).is_loopback:
        remedy = "bind to the interface that leads there"
        return [Examination("bind", Grade.BAD, f"FTLIB_BIND={bind} is loopback, which {host} cannot reach", remedy)]
    return [Examination("bind", Grade.GOOD, f"FTLIB_BIND={bind}")]


def as_record(address: str | None, diagnoses: Sequence[Diagnosis]) -> dict[str, Any]:
    """Return plain values, for programs."""
    return {
        "address": address,
        "ok": all(diagnosis.healthy for diagnosis in diagnoses),
        "targets": [
            {
                "address": format_address(diagnosis.address),
                "ok": diagnosis.healthy,
                "verdict": diagnosis.verdict,
                "checks": rows(diagnosis.checks),
            }
            for diagnosis in diagnoses
        ],
    }


def rows(checks: Sequence[Examination]) -> list[dict[str, str]]:
    """Return plain values, for programs."""
    return [{"name": each.name, "result": each.grade.value, "found": each.found, "remedy": each.remedy} for each in checks]


def show(diagnoses: Sequence[Diagnosis], console: Console, *, verbose: bool) -> None:
    """Print one line for each address; ``verbose``: a table of the checks before it."""
    for diagnosis in diagnoses:
        if verbose:
            console.print(table(diagnosis.checks))
        console.print(
            f"{format_address(diagnosis.address)}: {diagnosis.verdict}", soft_wrap=True, markup=False, highlight=False
        )


def table(checks: Sequence[Examination]) -> Table:
    """One line a check, for people."""
    lines = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for check in checks:
        lines.add_row(check.name, f"[{_COLOURS[check.grade]}]{check.grade.value}[/]", str(check).replace("[", r"\["))
    return lines


def listen(address: str, console: Console, facts: Mapping[str, str]) -> int:
    """Run a member of an unknown job, until interrupted, that ``ftlib doctor`` at another host can examine.

    ``facts``: what it tells that doctor.
    """
    over = threading.Event()
    try:
        gossip = Gossip(Config(job=f"doctor-{secrets.token_hex(8)}", bind=address, agent=Home.THREAD, insecure=True))
        gossip.start(meta=facts)
    except ConfigError as error:
        raise errors.ConfigError(str(error)) from None
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: over.set())
        where = format_address(gossip.member.address)
        console.print(f"listening; at the other host: ftlib doctor {where}   (Ctrl-C ends)", soft_wrap=True, markup=False)
        over.wait()
    finally:
        gossip.stop()
    return 0
