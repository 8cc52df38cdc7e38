"""The pair of sockets behind one port number, a listening TCP socket and a UDP socket, and the advertised address.

Binding happens before the agent exists, so that a mistake of the caller is raised in the caller's own thread.

A member has three addresses: where it listens (``bind``), where others reach it (``advertise``), and the interface on which the
data plane makes sockets of its own: the advertised address if it is one of this host's, else the bound one.
"""

from __future__ import annotations

import array
import contextlib
import errno
import os
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ...config import Config
from ...errors import ConfigError
from ...member import Address, format_address, parse_address
from .names import endpoints, lookup, numeric, refuse_link_local, sockaddr_address

_ATTEMPTS = 64
_BACKLOG = 4096
"""Many strangers must not fill it while the agent is busy for a moment; the kernel may allow less (somaxconn)."""
_RECEIVE_BUFFER = 1 << 20
"""Bytes: enough for a burst while a long hold of the GIL keeps the agent from reading."""

_DISCARD = 9
"""A port for routes that are looked up: nothing is sent there."""

_LONGEST_NAME = 253
"""Characters of a host's name (RFC 1035)."""

_LOOPBACK: Address = ("127.0.0.1", 0)
_WILDCARDS = ("0.0.0.0", "::")  # noqa: S104 - recognised, not bound
_FAR: tuple[Address, ...] = (("192.0.2.1", _DISCARD), ("2001:db8::1", _DISCARD))
"""Documentation addresses (RFC 5737, RFC 3849): the route to them is the default route. Nothing is sent there."""

_Sockets = tuple[socket.socket, socket.socket]
"""UDP and TCP."""


@dataclass(frozen=True, slots=True)
class SocketPair:
    """UDP and listening TCP on one port, with the advertised address."""

    udp: socket.socket
    tcp: socket.socket
    advertised: Address
    interface: str = ""
    """The address of this host on which the data plane listens."""

    def close(self) -> None:
        """Close both, the listener first: from then on connections are refused."""
        self.tcp.close()
        self.udp.close()


def open_pair(config: Config, introducers: Sequence[Address] = (), *, elsewhere: bool = False) -> SocketPair:
    """Adopt the inherited sockets of ``config``, or bind ``config.bind``; raises ConfigError that names the obstacle.

    ``elsewhere``: another port will do if that of ``config.bind`` is taken.

    ``introducers`` (resolved) determine the address if ``bind`` is empty or a wildcard: an own address among them, else the
    interface that leads to the others.
    """
    advertise = None if config.advertise is None else _advertisable(config.advertise)
    if config.socket_fds:
        udp, tcp = _adopt(config.socket_fds)
    elif config.bind.startswith(":"):
        udp, tcp = _bind(format_address((_towards(introducers), int(config.bind[1:]))), introducers)
    elif config.bind:
        udp, tcp = _bind(config.bind, introducers, elsewhere=elsewhere)
    else:
        udp, tcp = _bind_first(config, advertise, introducers)
    try:
        bound = sockaddr_address(tcp.getsockname())
        advertised = _advertised(advertise, bound, introducers)
        return SocketPair(udp, tcp, advertised, _interface(advertised, bound, introducers))
    except BaseException:
        tcp.close()
        udp.close()
        raise


def addresses_here(texts: Sequence[str]) -> tuple[Address, ...]:
    """Where others look for a member on this host, best first, if ``texts`` (``host:port`` each) are its introducers.

    Those that are addresses of this host; without any the interface that leads to the others, at the port of the first name, as
    a name may stand for this host later (port 0: there is no name). Raises ConfigError for a text that is no address, or if no
    route leads there. Blocks while names are looked up.
    """
    found = lookup(texts).addresses
    own = tuple(address for address in found if _is_local(address[0]))
    named = [address[1] for address in map(parse_address, texts) if numeric(address) is None]
    return own or ((_towards(found), named[0] if named else 0),)


def receive_fds(sock: socket.socket, size: int, most: int) -> tuple[bytes, list[int]]:
    """A packet of at most ``size`` bytes, and its at most ``most`` descriptors, which no program that is started gets.

    As ``socket.recv_fds``, which takes flags and ignores them.
    """
    space = socket.CMSG_LEN(most * array.array("i").itemsize)
    data, ancillary, _, _ = sock.recvmsg(size, space, socket.MSG_CMSG_CLOEXEC)
    fds = array.array("i")
    for level, kind, found in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(found[: len(found) - len(found) % fds.itemsize])
    return data, list(fds)


def require_secret(config: Config, pair: SocketPair) -> None:
    """Close ``pair`` and raise ConfigError if strangers could reach it and members do not authenticate each other."""
    name = sockaddr_address(pair.tcp.getsockname())
    endpoint = numeric(name)
    if config.secured or config.insecure or (endpoint is not None and endpoint.loopback):
        return
    pair.close()
    raise ConfigError(
        f"bind={format_address(name)} is reachable from other hosts: give all members the same secret or secret_file "
        "(ftlib keys new makes one), or insecure=True where you trust everybody in that network"
    )


# Binding


def _adopt(fds: Sequence[int]) -> _Sockets:
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
            tcp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections inherit it: a next lifetime can bind here
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


def _bind(text: str, introducers: Sequence[Address], *, elsewhere: bool = False) -> _Sockets:
    """Both sockets at ``text``; for a name at the first of its addresses that is this host's.

    A number may be one that this host has only later (``ip_nonlocal_bind``): whoever gives it knows.
    """
    host, port = parse_address(text)
    refuse_link_local("bind", (host, port))
    try:
        found = endpoints((host, port), socket.AI_PASSIVE)
    except OSError as error:
        raise ConfigError(f"bind={text}: cannot resolve {host!r}: {error.strerror}; give an address of this host") from None
    hosts = [str(each.sockaddr[0]) for each in found]
    named = numeric((host, port)) is None
    refused: OSError | None = None
    for each in hosts:
        try:
            if named and not _is_local(each):
                raise OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))
            return _open((each, port))
        except OSError as error:
            if elsewhere and error.errno == errno.EADDRINUSE:
                return _open((each, 0))
            refused = error
            if error.errno != errno.EADDRNOTAVAIL:
                break
    assert refused is not None  # getaddrinfo never returns an empty list
    raced = refused.errno == errno.EADDRINUSE and (each, port) in introducers
    hint = "; is it a worker without bind? Such a one takes the first free introducer's address: give all of them bind, or none"
    raise ConfigError(f"bind={text}: {_complaint(refused, hosts)}{hint if raced else ''}") from None


def _complaint(error: OSError, hosts: Sequence[str]) -> str:
    match error.errno:
        case errno.EADDRNOTAVAIL:
            return (
                f"{', '.join(hosts)} is no address of this host: give one that it has (ip address lists them), "
                "and what others must use instead as advertise"
            )
        case errno.EADDRINUSE:
            return "the port is in use; give another one, or 0 for any"
        case errno.EACCES:
            return f"{error.strerror}; ports below 1024 are reserved: give a higher one, or 0 for any"
    return f"{error.strerror}; give an address of this host"


def _bind_first(config: Config, advertise: Address | None, introducers: Sequence[Address]) -> _Sockets:
    """The first free address of this host among the introducers, else any port on the interface that leads to them.

    So processes with the same list each find a place; the kernel decides a race for one.
    """
    if not introducers and advertise is None:
        return _open(_LOOPBACK)
    wanted = [*([] if advertise is None else [advertise]), *introducers]
    for address in wanted:
        opened = _try(address) if _is_local(address[0]) else None
        if opened is not None:
            return opened
    host = _towards(introducers)
    # A name may resolve to this host later: the others will then look for it at the name's port, or at the advertised one.
    named = [parse_address(text) for text in config.introducers]
    ports = [address[1] for address in named if numeric(address) is None] + ([] if advertise is None else [advertise[1]])
    for port in dict.fromkeys(ports):
        opened = _try((host, port))
        if opened is not None:
            return opened
    return _open((host, 0))


def _towards(introducers: Sequence[Address]) -> str:
    """This host's address on the interface that leads to the introducers; loopback without any.

    For a name that cannot be resolved yet it is the default route.
    """
    if not introducers:
        return _LOOPBACK[0]
    unknown = any(numeric(address) is None for address in introducers)
    host = _route([*introducers, *(_FAR if unknown else ())])
    if host is None:
        raise ConfigError(
            f"no route leads to {', '.join(map(format_address, introducers))}: check introducers, or give bind an interface"
        )
    return host


def _try(address: Address) -> _Sockets | None:
    """Both sockets at ``address``, None if that is taken or not this host's."""
    with contextlib.suppress(OSError):
        return _open(address)
    return None


def _open(address: Address) -> _Sockets:
    """Both sockets on one port number; for port 0 ports are drawn until one is free for both. Raises OSError."""
    endpoint = endpoints(address, socket.AI_PASSIVE)[0]
    family, sockaddr, port = endpoint.family, endpoint.sockaddr, address[1]
    for attempt in range(_ATTEMPTS):
        tcp = socket.socket(family, socket.SOCK_STREAM)
        udp = socket.socket(family, socket.SOCK_DGRAM)
        try:
            if sockaddr[0] == _WILDCARDS[1]:  # every interface is both families' whatever bindv6only says
                for each in (tcp, udp):
                    each.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
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
            if error.errno != errno.EADDRINUSE or port or attempt == _ATTEMPTS - 1:
                raise
            continue
        return udp, tcp
    raise AssertionError("unreachable: the last attempt raises")


# Advertised address and interface


def _advertisable(text: str) -> Address:
    """``advertise`` as a numeric address; a name that does not resolve here stays a name. The port may be 0."""
    host, port = parse_address(text)
    refuse_link_local("advertise", (host, port))
    try:
        address = str(endpoints((host, port))[0].sockaddr[0])
    except OSError as error:
        if error.errno == errno.EINVAL or len(host) > _LONGEST_NAME:
            raise ConfigError(f"advertise: {text!r:.80} is no name of a host") from None
        return (host, port)
    if address in _WILDCARDS:
        raise ConfigError(f"advertise={text} is every interface, which nobody can connect to: give the address that others use")
    return (address, port)


def _advertised(advertise: Address | None, bound: Address, introducers: Sequence[Address]) -> Address:
    """``advertise``, with the bound port in place of 0; else the bound address, or for a wildcard one that others can use."""
    host, port = bound
    if advertise is not None:
        return (advertise[0], advertise[1] or port)
    if host not in _WILDCARDS:
        return bound
    own = next((address for address in introducers if address[1] == port and _is_local(address[0])), None)
    if own is not None:  # the others look for this member at this address
        return own
    found = _route([*introducers, *(_FAR if host == "::" else _FAR[:1])])
    if found is None:
        where = format_address(bound)
        raise ConfigError(f"bind={where} is a wildcard and no route tells which address others can use; set advertise")
    return (found, port)


def _interface(advertised: Address, bound: Address, introducers: Sequence[Address]) -> str:
    if _is_local(advertised[0]) or bound[0] == advertised[0]:
        return advertised[0]
    if bound[0] not in _WILDCARDS:
        return bound[0]
    found = _route([*introducers, *_FAR])
    if found is None:
        raise ConfigError(f"bind={format_address(bound)} is a wildcard and no route tells which interface to use; bind to one")
    return found


def _route(targets: Iterable[Address]) -> str | None:
    """This host's address on the way to the first of ``targets`` that it can route to."""
    for target in targets:
        endpoint = numeric(target)
        if endpoint is None:
            continue
        with socket.socket(endpoint.family, socket.SOCK_DGRAM) as finder, contextlib.suppress(OSError):
            finder.connect(endpoint.sockaddr)  # UDP: chooses the route, sends nothing
            return str(finder.getsockname()[0])
    return None


def _is_local(host: str) -> bool:
    """Whether ``host`` (numeric) is an address of this host."""
    endpoint = numeric((host, _DISCARD))
    if endpoint is None:
        return False
    with socket.socket(endpoint.family, socket.SOCK_DGRAM) as probe:
        try:
            # Where ip_nonlocal_bind is set every address can be bound, but IPv4 has no route from one of another host.
            if endpoint.family == socket.AF_INET:
                probe.bind((host, 0))
            probe.connect(endpoint.sockaddr)  # UDP: chooses the route, sends nothing
        except OSError:
            return False
        # IPv6 would take such a source, but chooses the address itself only if it is this host's.
        return host in _WILDCARDS or probe.getsockname()[0] == endpoint.sockaddr[0]
