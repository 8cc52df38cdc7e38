"""Heads of HTTP/1.1 where no library's server or client stands: on bare sockets, and before one is asked."""

from __future__ import annotations

from collections.abc import Mapping

END = b"\r\n\r\n"
"""What ends a head."""


def write(first: str, fields: Mapping[str, str] | None = None) -> bytes:
    """A head that begins with the line ``first``."""
    lines = [first, *(f"{name}: {value}" for name, value in (fields or {}).items())]
    return "\r\n".join(lines).encode("latin-1") + END


def read(head: bytes) -> tuple[str, dict[str, str]]:
    """The first line of a head, and its fields by lower-case name: of two with one name the first, as with aiohttp.

    What follows the head is left out.
    """
    first, *lines = head.partition(END)[0].decode("latin-1").split("\r\n")
    fields: dict[str, str] = {}
    for name, _, value in (line.partition(":") for line in lines):
        fields.setdefault(name.strip().lower(), value.strip())
    return first, fields
