"""From texts to addresses: names, their lookup, and the meaning of a list of introducers.

A name may stand for several members (a Kubernetes headless service), and for others later; so while a member looks for its
cluster it looks names up again (``Discovery``). Lookups that may block are kept out of the event loop.
"""

from __future__ import annotations

import errno
import functools
import ipaddress
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import ConfigError
from ...member import Address, format_address, parse_address
from ...storage.thread_pool import on_daemon


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A resolved address, as the socket calls take it."""

    family: socket.AddressFamily
    sockaddr: tuple[Any, ...]

    @property
    def loopback(self) -> bool:
        """Whether it is on this host's loopback interface."""
        host: str = self.sockaddr[0]
        return host.startswith("127.") or host == "::1"


@dataclass(frozen=True, slots=True)
class Introducers:
    """A list of introducers as one lookup shows it, and the members that this process knows besides."""

    texts: tuple[str, ...] = ()
    addresses: tuple[Address, ...] = ()
    met: tuple[Address, ...] | None = None
    """Members that an earlier lifetime of this process has met, None in the first lifetime. A later lifetime founds nothing:
    the job went on without this process, and must not begin again if this process cannot find it."""

    @property
    def named(self) -> bool:
        """Whether any introducer is a name, so that other members may see another list."""
        return any(numeric(parse_address(text)) is None for text in self.texts)

    def refused(self, initial_size: int) -> str:
        """Why no member may found by this list: one line with the remedy; empty if one may."""
        count = len(self.addresses)
        if count <= len(self.texts) or 2 * initial_size > count:
            return ""
        return (
            f"introducers={','.join(self.texts)} stands for {count} addresses, and initial_size={initial_size} is not more "
            f"than half of them: two clusters could be founded; set initial_size to at least {count // 2 + 1}"
        )

    def founder(self, own: Address, initial_size: int) -> bool:
        """Whether the member that others reach at ``own`` may found: its address is the first, or there are none."""
        if self.met is not None:
            return False
        if not self.texts:
            return True
        return self.addresses[:1] == (own,) and not self.refused(initial_size)


def sockaddr_address(sockaddr: tuple[Any, ...]) -> Address:
    """Host and port of a result of ``getsockname``."""
    return (sockaddr[0], sockaddr[1])


def link_local(host: str) -> bool:
    """Whether ``host`` is an IPv6 address that is valid on one link only: its scope has another name on every host."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return address.version == 6 and address.is_link_local


def endpoints(address: Address, flags: int = 0) -> list[Endpoint]:
    """All endpoints of ``address``, each once; raises OSError if there are none. Blocks while a name is looked up."""
    try:
        found = socket.getaddrinfo(*address, type=socket.SOCK_STREAM, flags=flags)
    except UnicodeError:  # raised for empty and overlong labels
        raise OSError(errno.EINVAL, "no host name") from None
    return list(dict.fromkeys(Endpoint(item[0], item[4]) for item in found))


@functools.lru_cache(maxsize=8192)
def numeric(address: Address) -> Endpoint | None:
    """The endpoint of a numeric address; None for a name. Never blocks."""
    try:
        return endpoints(address, socket.AI_NUMERICHOST)[0]
    except OSError:
        return None


async def resolve(address: Address) -> Endpoint:
    """The first endpoint of ``address``; raises OSError if there is none."""
    endpoint = numeric(address)
    if endpoint is None:
        endpoint = (await on_daemon(endpoints, address))[0]
    return endpoint


def parsed(setting: str, text: str) -> Address:
    """The address in ``text``, with a port that can be connected to; raises ConfigError that names ``setting``."""
    try:
        address = parse_address(text)
    except ValueError as error:
        raise ConfigError(f"{setting}: {error}") from None
    if not address[1]:
        raise ConfigError(f"{setting}: {text!r} needs the port that a member listens on, not 0")
    refuse_link_local(setting, address)
    return address


def refuse_link_local(setting: str, address: Address) -> None:
    """Raise ConfigError for an address that other hosts could not use."""
    if link_local(address[0]):
        raise ConfigError(
            f"{setting}={format_address(address)} is link-local, which other hosts cannot use: "
            "give a global or unique local (fd00::/8) address of that interface"
        )


def resolve_all(texts: Sequence[str], *, setting: str = "introducers") -> tuple[Address, ...]:
    """Numeric addresses for ``host:port`` texts, without repetition; a name may stand for several (sorted by number).

    Blocks while names are looked up. A name that cannot be resolved now stays as it is (it may appear later); a text
    that is no address raises ConfigError.
    """
    result: dict[Address, None] = {}
    for text in texts:
        address = parsed(setting, text)
        try:
            found = endpoints(address)
        except OSError:
            result[address] = None
            continue
        # take one family of a name that has both, or the same member would be asked and found twice
        families = {each.family for each in found}
        family = socket.AF_INET if socket.AF_INET in families else socket.AF_INET6
        hosts = {str(each.sockaddr[0]) for each in found if each.family == family}
        for host in sorted((host for host in hosts if not link_local(host)), key=_number):
            result[host, address[1]] = None
    return tuple(result)


def lookup(texts: Sequence[str]) -> Introducers:
    """The list of introducers as the names resolve now; see ``resolve_all``."""
    return Introducers(tuple(texts), resolve_all(texts))


def _number(host: str) -> int:
    return int(ipaddress.ip_address(host))
