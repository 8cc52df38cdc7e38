"""The control address of a first worker, bound before it exists.

All addresses of the founding members must be known before the first of them starts, so the launcher binds them and
hands the sockets down. It closes its own copies right after the spawn: from then on "connection refused" proves a
worker's death.
"""

from __future__ import annotations

import contextlib
import errno
import socket
from dataclasses import dataclass

from ...errors import ConfigError

HOST = "127.0.0.1"
_ATTEMPTS = 64


@dataclass(frozen=True, slots=True)
class ControlSockets:
    """A bound UDP socket and a listening TCP socket with the same port number."""

    udp: socket.socket
    tcp: socket.socket

    @property
    def port(self) -> int:
        """Their common port."""
        return int(self.tcp.getsockname()[1])

    @property
    def fds(self) -> tuple[int, int]:
        """Descriptors as ``FTLIB_SOCKET_FDS`` lists them: UDP, TCP."""
        return (self.udp.fileno(), self.tcp.fileno())

    def close(self) -> None:
        """Close this process's copies."""
        self.udp.close()
        self.tcp.close()


def listen(port: int = 0, host: str = HOST) -> socket.socket:
    """A TCP socket listening at ``host``, a numeric address of this machine: loopback, unless others shall reach it."""
    tcp = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        tcp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections of the port's previous owner may linger
        tcp.bind((host, port))
        tcp.listen(128)
    except BaseException:
        tcp.close()
        raise
    return tcp


def bind_control(port: int = 0, host: str = HOST) -> ControlSockets:
    """Bind both sockets to one port: ``port``, or with 0 any that is free for both. Raises OSError if ``port`` is taken."""
    for _ in range(_ATTEMPTS):
        with contextlib.ExitStack() as undo:
            tcp = undo.enter_context(listen(port, host))
            udp = undo.enter_context(socket.socket(tcp.family, socket.SOCK_DGRAM))
            try:
                udp.bind(tcp.getsockname())
            except OSError as error:
                if port or error.errno != errno.EADDRINUSE:
                    raise
                continue  # free for TCP but not for UDP: draw another
            undo.pop_all()
            return ControlSockets(udp, tcp)
    raise ConfigError(
        f"no port of {host} was free for both TCP and UDP in {_ATTEMPTS} attempts: stop something that holds many"
    )


def address_of(host: str, port: int) -> str:
    """``host:port`` as everything here writes it: brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
