"""The address on which a worker listens. Allowed are loopback addresses, and any address if strangers are kept out."""

from __future__ import annotations

import ipaddress
import socket

from consensus import Bound, Consensus, format_address, parse_address
from consensus import ConfigError as ConsensusConfigError

from ..errors import ConfigError
from ..settings.config import Settings
from .meeting import publish


def bind(consensus: Consensus, settings: Settings) -> str:
    """Bind the control address; returns the host that the framework listens on. Raises ConfigError if it is not allowed."""
    _check_bind(settings)
    try:
        bound = consensus.bind()
    except ConsensusConfigError as error:
        launch = settings.launched
        derived = launch is not None and launch.settings.get("bind") == settings.consensus.bind and launch.store is None
        hint = f"; under {launch.by} that is FTLIB_PORT, the same for all workers" if launch is not None and derived else ""
        raise ConfigError(f"{error}{hint}") from None
    if bound is None:
        return parse_address(settings.consensus.bind)[0]
    _check_bound(settings, bound)
    publish(settings, bound)
    return bound.interface


def _trust(settings: Settings, where: str) -> None:
    """Raise ConfigError unless members authenticate each other, or the user set ``insecure``."""
    if not (settings.consensus.secured or settings.consensus.insecure):
        raise ConfigError(
            f"bind={where} is reachable from other hosts: give all workers the same secret or secret_file (ftlib keys new "
            "makes one), or insecure=True where you trust everybody in that network"
        )


def _check_bind(settings: Settings) -> None:
    """Check before anything listens. Raises ConfigError unless the address is loopback, or strangers are kept out."""
    bind = settings.consensus.bind
    if not bind or bind.startswith(":"):
        return  # known once it is bound
    host = parse_address(bind)[0]
    try:
        found = {ipaddress.ip_address(item[4][0]) for item in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except (OSError, UnicodeError):
        raise ConfigError(f"bind={bind}: cannot resolve {host!r}; give an address of this host") from None
    if not all(address.is_loopback for address in found):
        _trust(settings, bind)


def _check_bound(settings: Settings, bound: Bound) -> None:
    """Check a derived address in the same way; a loopback address is also refused if the job has other hosts."""
    host, where = bound.interface, format_address(bound.address)
    loopback = ipaddress.ip_address(host).is_loopback
    if not loopback:
        _trust(settings, where)
    launch = settings.launched
    if loopback and launch is not None and launch.several_hosts:
        way_out = (
            "FTLIB_BIND=ADDRESS:0 here" if launch.store else "FTLIB_INTRODUCERS=ADDRESS:PORT and FTLIB_INITIAL_SIZE everywhere"
        )
        raise ConfigError(
            f"{launch.by} runs workers on several hosts, but here {where} is what leads to the first of them, which "
            f"is loopback: correct /etc/hosts, or set {way_out}, with an address that the others reach"
        )
