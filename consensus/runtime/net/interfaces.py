"""Finds the interface of this host that has an address, and its MTU. Linux only; other systems get an empty result."""

from __future__ import annotations

import contextlib
import socket
import struct
from pathlib import Path

try:
    import fcntl
except ImportError:  # not Unix
    fcntl = None  # type: ignore[assignment]

_SIOCGIFADDR, _SIOCGIFMTU = 0x8915, 0x8921


def interface_of(host: str) -> tuple[str, int]:
    """Name and MTU of the interface that has the address ``host``; "" and 0 if that is unknown (Linux only)."""
    names = [name for _, name in socket.if_nameindex()]
    found = _v6_interface(host) if ":" in host else next((name for name in names if _v4_address(name) == host), "")
    if not found and host.startswith("127."):
        found = "lo"  # for all of 127.0.0.0/8
    return found, _mtu(found) if found else 0


def _v4_address(name: str) -> str:
    """The first address of an interface."""
    answer = _ask_interface(name, _SIOCGIFADDR)
    return socket.inet_ntoa(answer[20:24]) if answer else ""


def _v6_interface(host: str) -> str:
    wanted = socket.inet_pton(socket.AF_INET6, host.partition("%")[0]).hex()
    with contextlib.suppress(OSError):
        for line in Path("/proc/net/if_inet6").read_text().splitlines():
            parts = line.split()
            if parts[0] == wanted:
                return parts[-1]
    return ""


def _mtu(name: str) -> int:
    answer = _ask_interface(name, _SIOCGIFMTU)
    return int(struct.unpack_from("i", answer, 16)[0]) if answer else 0


def _ask_interface(name: str, request: int) -> bytes:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock, contextlib.suppress(OSError):
        return fcntl.ioctl(sock.fileno(), request, struct.pack("256s", name.encode()[:15]))
    return b""
