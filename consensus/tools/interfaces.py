"""Finds the interface of this host that has an address, and its MTU."""

from __future__ import annotations

import ipaddress

import psutil


def interface_of(host: str) -> tuple[str, int]:
    """Name and MTU of the interface that has the numeric address ``host``; "" and 0 if none has it."""
    wanted = _numeric(host)
    if wanted is None:
        return "", 0
    if wanted.is_loopback:  # every address of 127.0.0.0/8 is there, though only one is listed
        wanted = ipaddress.ip_address("127.0.0.1" if wanted.version == 4 else "::1")
    listed = ((name, each.address) for name, addresses in psutil.net_if_addrs().items() for each in addresses)
    found = next((name for name, address in listed if _numeric(address) == wanted), "")
    known = psutil.net_if_stats().get(found)
    return found, 0 if known is None else int(known.mtu)


def interface_name(host: str) -> str:
    """Name alone, see ``interface_of``."""
    return interface_of(host)[0]


def _numeric(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address without its zone; None for what is no IP address, as those of hardware."""
    try:
        return ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
