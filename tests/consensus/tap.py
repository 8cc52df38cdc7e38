"""An eavesdropper on the loopback interface (needs CAP_NET_RAW): the UDP packets that really went over it."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator

_ETH_P_IP = 0x0800


def may_listen() -> bool:
    """Whether this process may open packet sockets."""
    try:
        socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.ntohs(_ETH_P_IP)).close()
    except (OSError, AttributeError):
        return False
    return True


@contextlib.contextmanager
def tap(ports: set[int] | None = None) -> Iterator[list[bytes]]:
    """Payloads of UDP packets over loopback to one of ``ports`` (None: all of ftlib's sealed ones), as they come."""
    found: list[bytes] = []
    with socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.ntohs(_ETH_P_IP)) as sock:
        sock.bind(("lo", _ETH_P_IP))
        sock.settimeout(0.1)
        over = threading.Event()

        def listen() -> None:
            while not over.is_set():
                with contextlib.suppress(TimeoutError):
                    data = sock.recv(65536)
                    start = (data[0] & 15) * 4
                    if data[9] != socket.IPPROTO_UDP:
                        continue
                    (port,) = struct.unpack_from(">H", data, start + 2)
                    payload = data[start + 8 :]
                    if payload.startswith(b"\xf6") if ports is None else port in ports:
                        found.append(payload)

        thread = threading.Thread(target=listen)
        thread.start()
        try:
            yield found
        finally:
            over.set()
            thread.join()
