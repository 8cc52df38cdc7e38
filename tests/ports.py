"""Ports that nobody has, and that nobody is likely to get before whoever asked for them binds them."""

from __future__ import annotations

import contextlib
import random
import socket
from contextlib import ExitStack

__all__ = ["free_ports"]

_RANGE = range(10_000, 32_768)
"""Below those that a kernel gives away by itself: a port of these may be let go for a moment, as for a restart."""


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """So many, free for TCP and for UDP."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    chance = random.SystemRandom()  # tests that run at the same time may have seeded theirs alike
    found: list[int] = []
    with ExitStack() as held:
        while len(found) < count:
            port = chance.choice(_RANGE)
            with contextlib.suppress(OSError):
                for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
                    held.enter_context(socket.socket(family, kind)).bind((host, port))
                found.append(port)
    return found
