"""One process lifetime as the others know it.

A restarted process is a new member: it draws a new ``id``, so no statement about the old lifetime applies to the new one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

Address = tuple[str, int]

COHORT, COHORT_SIZE = "_cohort", "_cohort_size"
"""The facts by which a member advertises its cohort: a name, and the number of its members (see ``Member.cohort``)."""


@dataclass(frozen=True, slots=True, order=True)
class Member:
    """A member's identity and where to reach it.

    ``id``: drawn at random once a lifetime (16 hex digits). ``host``, ``port``: the advertised control address (one port
    number for UDP and HTTP). ``meta``: small facts for the layers above, opaque to the protocol (sorted pairs); facts whose
    name begins with ``_`` are for members only.
    """

    id: str
    host: str
    port: int
    meta: tuple[tuple[str, str], ...] = field(default=())

    @property
    def address(self) -> Address:
        """Host and port as a pair."""
        return (self.host, self.port)

    def fact(self, key: str) -> str | None:
        """The value that this member advertises under ``key``, or None."""
        return dict(self.meta).get(key)

    @property
    def cohort(self) -> tuple[str, int]:
        """The name and the size of its cohort: members that are of use only together. By itself it is one of size 1.

        A view has all members of a cohort or none, unless no cohort is whole any more: then all who are left stay, and learn
        that together.
        """
        if not self.meta:
            return self.id, 1
        name, size = self.fact(COHORT), self.fact(COHORT_SIZE)
        if not name or size is None or not size.isdecimal() or int(size) < 1:
            return self.id, 1
        return name, int(size)

    def shown_cohort(self) -> dict[str, str | int] | None:
        """``name`` and ``size`` of its cohort, as people may see them; None if it is one by itself."""
        name, size = self.cohort
        return None if size == 1 else {"name": name, "size": size}

    def shown(self) -> dict[str, str]:
        """The facts that people may see."""
        return {key: value for key, value in self.meta if not key.startswith("_")}

    def __str__(self) -> str:
        return f"{self.id[:6]}@{format_address(self.address)}"


def whole_cohorts(members: Iterable[Member]) -> list[Member]:
    """The members of whole cohorts, each cohort's in a row, in the order in which the cohorts have become whole."""
    gathered: dict[tuple[str, int], list[Member]] = {}
    found: list[Member] = []
    for member in members:
        met = gathered.setdefault(member.cohort, [])
        met.append(member)
        if len(met) == member.cohort[1]:
            found += met
    return found


def parse_address(text: str, *, default_port: int | None = None) -> Address:
    """``host:port`` or ``[v6]:port`` as a pair; raises ValueError that says what was expected."""
    host, separator, port = text.strip().rpartition(":")
    if not separator or (":" in host and not host.startswith("[")):
        if default_port is None:
            raise ValueError(f"{text!r} is not an address: expected host:port, for IPv6 [host]:port")
        host, port = text.strip(), str(default_port)
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or not 0 <= int(port) <= 65535:
        raise ValueError(f"{text!r} is not an address: expected host:port with a port from 0 to 65535")
    return (host, int(port))


def format_address(address: Address) -> str:
    """The inverse of :func:`parse_address`."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
