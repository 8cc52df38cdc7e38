"""Addresses and the pair of sockets behind one port number: a listening TCP socket and a UDP socket.

Binding happens before the agent's thread exists, so that what the caller did wrong is raised in the caller's own
thread. Name resolution that may block is kept out of the event loop.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..config import Config
from ..errors import ConfigError
from ..member import Address, format_address, parse_address

__all__ = [
    "Endpoint",
    "SocketPair",
    "numeric",
    "open_pair",
    "parsed",
    "require_secret",
    "resolve",
    "resolve_all",
    "sockaddr_address",
]

_ATTEMPTS = 64
_BACKLOG = 512
_RECEIVE_BUFFER = 1 << 20
"""Enough for a burst while a long hold of the GIL keeps the agent from reading."""

_WILDCARDS = ("0.0.0.0", "::")  # noqa: S104 - recognised, not bound


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A resolved address: what the socket calls take."""

    family: socket.AddressFamily
    sockaddr: tuple[Any, ...]

    @property
    def loopback(self) -> bool:
        """Whether it is on this host's loopback interface."""
        host: str = self.sockaddr[0]
        return host.startswith("127.") or host == "::1"


@dataclass(frozen=True, slots=True)
class SocketPair:
    """UDP and listening TCP on one port, with the address that others are told."""

    udp: socket.socket
    tcp: socket.socket
    advertised: Address

    def close(self) -> None:
        """Close both, the listener first: from then on connections are refused."""
        self.tcp.close()
        self.udp.close()


def open_pair(config: Config, introducers: Sequence[Address] = ()) -> SocketPair:
    """Adopt the inherited sockets of ``config``, or bind ``config.bind``; ConfigError says what stands in the way.

    ``introducers`` (resolved) only serve to find out which interface leads to the others, where ``bind`` is a wildcard.
    """
    if config.socket_fds:
        udp, tcp = _adopt(config.socket_fds)
    else:
        udp, tcp = _bind(parse_address(config.bind))
    try:
        return SocketPair(udp, tcp, _advertised(config, sockaddr_address(tcp.getsockname()), introducers))
    except BaseException:
        tcp.close()
        udp.close()
        raise


def require_secret(config: Config, pair: SocketPair) -> None:
    """ConfigError, after closing ``pair``, where strangers could reach it and members do not authenticate each other."""
    name = sockaddr_address(pair.tcp.getsockname())
    endpoint = numeric(name)
    if config.secured or config.insecure or (endpoint is not None and endpoint.loopback):
        return
    pair.close()
    raise ConfigError(
        f"bind={format_address(name)} is reachable from other hosts: give all members the same secret or secret_file "
        "(ftlib keys new makes one), or insecure=True where you trust everybody in that network"
    )


def sockaddr_address(sockaddr: tuple[Any, ...]) -> Address:
    """Host and port of what ``getsockname`` returned."""
    return (sockaddr[0], sockaddr[1])


def _adopt(fds: Sequence[int]) -> tuple[socket.socket, socket.socket]:
    """The two sockets that a launcher bound for this process; from here on they are not inherited further."""
    opened: list[socket.socket] = []
    try:
        for fd in fds:
            opened.append(socket.socket(fileno=fd))
            opened[-1].setblocking(False)
            os.set_inheritable(fd, False)
        udp, tcp = opened
        wrong = _mismatch(udp, tcp)
        if wrong is None:
            tcp.listen(_BACKLOG)
            udp.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER)
            return udp, tcp
    except OSError as error:
        wrong = f"{error.strerror}; the launcher must pass open descriptors"
    for item in opened:
        item.close()
    raise ConfigError(f"socket_fds={tuple(fds)}: {wrong}")


def _mismatch(udp: socket.socket, tcp: socket.socket) -> str | None:
    """Why the two are no pair, or None."""
    if (udp.type, tcp.type) != (socket.SOCK_DGRAM, socket.SOCK_STREAM):
        return "give a UDP and a TCP socket, in this order"
    if udp.getsockname()[1] != tcp.getsockname()[1]:
        return "the sockets are bound to different ports; bind both to one"
    return None


def _bind(address: Address) -> tuple[socket.socket, socket.socket]:
    """Both sockets on one port number; where that is 0, ports are drawn until one is free for both."""
    host, port = address
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise ConfigError(f"bind={format_address(address)}: cannot resolve {host!r}: {error.strerror}") from None
    family, sockaddr = found[0][0], found[0][4]
    for _ in range(_ATTEMPTS):
        tcp = socket.socket(family, socket.SOCK_STREAM)
        udp = socket.socket(family, socket.SOCK_DGRAM)
        try:
            tcp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # past TIME_WAIT; a live listener still conflicts
            tcp.bind(sockaddr)
            tcp.listen(_BACKLOG)
            udp.bind((sockaddr[0], tcp.getsockname()[1], *sockaddr[2:]))
            udp.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER)
            tcp.setblocking(False)
            udp.setblocking(False)
        except OSError as error:
            tcp.close()
            udp.close()
            if error.errno != errno.EADDRINUSE:
                raise ConfigError(f"bind={format_address(address)}: {error.strerror}; give an address of this host") from None
            if port:
                raise ConfigError(
                    f"bind={format_address(address)}: the port is in use; give another one, or 0 for any"
                ) from None
            continue
        return udp, tcp
    raise ConfigError(f"bind={format_address(address)}: no port was free for both UDP and TCP in {_ATTEMPTS} attempts")


def _advertised(config: Config, bound: Address, introducers: Sequence[Address]) -> Address:
    """What others are told: ``advertise``, with the bound port where it says 0; else what was bound."""
    if config.advertise is not None:
        host, port = parse_address(config.advertise)
        return (host, port or bound[1])
    host, port = bound
    if host not in _WILDCARDS:
        return bound
    targets = [*introducers, ("2001:db8::1", 9) if host == "::" else ("192.0.2.1", 9)]
    for target in targets:
        endpoint = numeric(target)
        if endpoint is None:
            continue
        with socket.socket(endpoint.family, socket.SOCK_DGRAM) as finder:
            try:
                finder.connect(endpoint.sockaddr)  # UDP: chooses the route, sends nothing
                return (finder.getsockname()[0], port)
            except OSError:
                continue
    raise ConfigError(f"bind={config.bind} is a wildcard and no route tells which address others can use; set advertise")


@functools.lru_cache(maxsize=8192)
def numeric(address: Address) -> Endpoint | None:
    """The endpoint of a numeric address; None for a name. Never blocks."""
    try:
        found = socket.getaddrinfo(*address, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except OSError:
        return None
    return Endpoint(found[0][0], found[0][4])


async def resolve(address: Address) -> Endpoint:
    """The first endpoint of ``address``; OSError where there is none."""
    endpoint = numeric(address)
    if endpoint is None:
        found = await asyncio.get_running_loop().getaddrinfo(*address, type=socket.SOCK_STREAM)
        endpoint = Endpoint(found[0][0], found[0][4])
    return endpoint


def parsed(setting: str, text: str) -> Address:
    """The address in ``text``, with a port that can be connected to; ConfigError names ``setting``."""
    try:
        address = parse_address(text)
    except ValueError as error:
        raise ConfigError(f"{setting}: {error}") from None
    if not address[1]:
        raise ConfigError(f"{setting}: {text!r} needs the port that a member listens on, not 0")
    return address


def resolve_all(texts: Sequence[str], *, setting: str = "introducers") -> tuple[Address, ...]:
    """Numeric addresses for ``host:port`` texts, without repetition; a name may stand for several (sorted).

    Blocks while names are looked up. A name that cannot be resolved now stays as it is (it may appear later); a text
    that is no address raises ConfigError.
    """
    result: dict[Address, None] = {}
    for text in texts:
        address = parsed(setting, text)
        try:
            found = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)
        except OSError:
            result[address] = None
            continue
        # of a name with both families take one, or a member would be asked twice and found twice
        families = {item[0] for item in found}
        family = socket.AF_INET if socket.AF_INET in families else socket.AF_INET6
        for each in sorted({sockaddr_address(item[4]) for item in found if item[0] == family}):
            result[each] = None
    return tuple(result)
