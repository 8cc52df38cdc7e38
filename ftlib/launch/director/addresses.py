"""At which address the workers of a host listen: the one at which the host was reached, as far as the others can use it."""

from __future__ import annotations

import ipaddress
import socket

from ...common.apart import apart
from ...errors import ConfigError
from ..hosts.transport import is_local
from ..processes.sockets import HOST
from ..stream.messages import Here
from .plan import Plan

_LOOKUP = 30.0
"""Seconds that a name's lookup may take."""


async def bind_address(host: str, here: Here, plan: Plan) -> str:
    """The numeric address. ConfigError if none is known. Names are looked up elsewhere: a resolver may take long to give up."""
    if here.reached:
        return here.reached
    try:
        return await apart(lambda: _searched(host, here, plan), _LOOKUP)
    except TimeoutError:
        raise ConfigError(f"the name {host} was looked up for {_LOOKUP:g} s in vain: name it by its address") from None


def _searched(host: str, here: Here, plan: Plan) -> str:
    others = [name for name, _ in plan.hosts if name != host]
    if is_local(host):
        return _towards(others) if any(not is_local(name) for name in others) else HOST
    if address := _looked_up(host):
        return address
    if here.addresses:
        return here.addresses[0]
    raise ConfigError(f"no address is known at which the workers of {host} could listen: name it by its address")


def _towards(others: list[str]) -> str:
    """This machine's address on the way to the first of the others that is elsewhere."""
    for name in others:
        address = None if is_local(name) else _looked_up(name)
        if address is None:
            continue
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect((address, 9))  # sends nothing
                return str(probe.getsockname()[0])
            except OSError:
                continue
    return HOST


def _looked_up(host: str) -> str | None:
    name = host.rpartition("@")[2]
    try:
        return str(ipaddress.ip_address(name))
    except ValueError:
        pass
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):  # the latter for labels that no name has
        return None
    return min((str(place[0]) for *_, place in found), key=lambda address: ":" in address, default=None)
