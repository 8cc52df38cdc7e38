"""The network interface that has an address: NCCL is told interfaces by their names."""

from __future__ import annotations

import ctypes
import ipaddress
import socket
from collections.abc import Iterator

__all__ = ["interface_of"]

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class _Entry(ctypes.Structure):
    """``struct ifaddrs`` of getifaddrs(3), as far as it is read."""

    _fields_ = [
        ("next", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("flags", ctypes.c_uint),
        ("address", ctypes.c_void_p),
    ]


def interface_of(address: str) -> str:
    """Its name; empty if no interface has this address, or if it stands for all."""
    wanted = ipaddress.ip_address(address.partition("%")[0])
    if wanted.is_loopback:  # every address of 127.0.0.0/8 is there, though only one is listed
        wanted = type(wanted)("127.0.0.1" if wanted.version == 4 else "::1")
    return next((name for name, there in _listed() if there == wanted), "")


def _listed() -> Iterator[tuple[str, _Address]]:
    """The addresses of all interfaces."""
    library = ctypes.CDLL(None, use_errno=True)
    first = ctypes.c_void_p()
    if library.getifaddrs(ctypes.byref(first)):
        return
    try:
        pointer = first.value
        while pointer:
            entry = _Entry.from_address(pointer)
            there = _read(entry.address)
            if there is not None:
                yield entry.name.decode(), there
            pointer = entry.next
    finally:
        library.freeifaddrs(first)


def _read(pointer: int | None) -> _Address | None:
    """The address in a ``struct sockaddr_in`` or ``sockaddr_in6``; None if it is of another family."""
    if not pointer:
        return None
    family = ctypes.c_ushort.from_address(pointer).value
    if family == socket.AF_INET:
        return ipaddress.IPv4Address(ctypes.string_at(pointer + 4, 4))
    if family == socket.AF_INET6:
        return ipaddress.IPv6Address(ctypes.string_at(pointer + 8, 16))
    return None
