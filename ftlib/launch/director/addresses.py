"""At which address the workers of a host listen: the one at which the host was reached, as far as the others can use it."""

from __future__ import annotations

import ipaddress
import socket

from ...errors import ConfigError
from ..hosts.transport import is_local
from ..processes.sockets import HOST
from ..stream.messages import Here
from .plan import Plan


def bind_address(host: str, here: Here, plan: Plan) -> str:
    """The numeric address. ConfigError if none is known."""
    others = [name for name, _ in plan.hosts if name != host]
    if is_local(host) and not here.reached:
        return _towards(others) if any(not is_local(name) for name in others) else HOST
    if here.reached:
        return here.reached
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
    except OSError:
        return None
    return min((str(place[0]) for *_, place in found), key=lambda address: ":" in address, default=None)
