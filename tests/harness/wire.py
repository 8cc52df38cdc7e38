"""Long cables for kernels without netem: Ethernet frames on their way to a host are held back for a while.

    python -m tests.harness.wire DELAY JITTER HOST,PORT [HOST,PORT ...]

``HOST,PORT``: descriptors of two TAP devices, the host's own and its port at the bridge. A frame from the port reaches the host
``DELAY`` plus or minus up to ``JITTER`` seconds later, so that frames overtake each other, as with netem; the other way it is
passed on at once. Between two hosts that is once each way.
"""

from __future__ import annotations

import fcntl
import heapq
import os
import random
import select
import struct
import sys
import time

from tests.harness.namespace import inside
from tests.harness.zygote import die_with_parent

_TUNSETIFF, _IFF_TAP, _IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
_FRAME = 65_536
_QUEUE = 10_000
"""Frames under way; more are lost."""


def make_tap(device: str, namespace: str) -> int:
    """A new TAP device there; its descriptor, with which it ends."""
    with inside(namespace):
        tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tap, _TUNSETIFF, struct.pack("16sH", device.encode(), _IFF_TAP | _IFF_NO_PI))
    return tap


def _read(tap: int) -> bytes:
    try:
        return os.read(tap, _FRAME)
    except OSError:  # nothing left, or the device is down
        return b""


def _write(tap: int, frame: bytes) -> None:
    try:
        os.write(tap, frame)
    except OSError:  # its queue is full, or it is down: lost
        return


def _carry(pairs: list[tuple[int, int]], delay: float, jitter: float) -> None:
    hosts, ports = dict(pairs), {port: host for host, port in pairs}
    taps, chance = [*hosts, *ports], random.Random(1)
    held: list[tuple[float, int, int, bytes]] = []
    number = 0
    while True:
        wait = max(0.0, held[0][0] - time.monotonic()) if held else None
        for tap in select.select(taps, [], [], wait)[0]:
            while frame := _read(tap):
                if tap in hosts:
                    _write(hosts[tap], frame)
                elif len(held) < _QUEUE:
                    due = time.monotonic() + delay + chance.uniform(-jitter, jitter)
                    number += 1
                    heapq.heappush(held, (due, number, ports[tap], frame))
        now = time.monotonic()
        while held and held[0][0] <= now:
            _, _, host, frame = heapq.heappop(held)
            _write(host, frame)


def main() -> int:
    """Until killed."""
    die_with_parent(os.getppid())
    delay, jitter, *texts = sys.argv[1:]
    pairs = [tuple(map(int, text.split(","))) for text in texts]
    _carry([(host, port) for host, port in pairs], float(delay), float(jitter))
    return 0


if __name__ == "__main__":
    sys.exit(main())
