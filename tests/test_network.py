"""The hosts and links that other tests are made of: what is cut, lost and delayed really is."""

from __future__ import annotations

import socket
import time

import pytest

from tests.network import Host, Network, needs_bridge_filter, needs_delay, needs_network

pytestmark = [needs_network, needs_bridge_filter, pytest.mark.timeout(30)]


def receiver(host: Host) -> socket.socket:
    with host.inside():
        sock = socket.socket(type=socket.SOCK_DGRAM)
    sock.bind((host.v4, 9))
    return sock


def arrive(source: socket.socket, target: socket.socket, count: int = 1, wait: float = 0.2) -> int:
    """How many of so many datagrams arrive."""
    for number in range(count):
        source.sendto(bytes([number % 256]), target.getsockname())
    target.settimeout(wait)
    arrived = 0
    try:
        while arrived < count:
            target.recv(9)
            arrived += 1
    except TimeoutError:
        pass
    return arrived


def test_cuts_have_a_direction_and_heal() -> None:
    network = Network(3)
    with network as hosts:
        one, two, three = map(receiver, hosts)
        with one, two, three:
            assert arrive(one, two) == arrive(two, one) == arrive(one, three) == 1
            network.cut(hosts[0], hosts[1])
            assert (arrive(one, two), arrive(two, one), arrive(one, three)) == (0, 1, 1)
            network.isolate(hosts[2])
            assert (arrive(one, three), arrive(three, two), arrive(two, one)) == (0, 0, 1)
            network.heal()
            for source, target in [(one, two), (three, two), (one, three)]:
                assert arrive(source, target, wait=3.0) == 1  # the kernel asks every second where somebody is


@needs_delay
def test_degraded_links_lose_and_delay() -> None:
    network = Network(2, delay=0.03, jitter=0.01)
    with network as hosts:
        one, two = map(receiver, hosts)
        with one, two:
            arrive(one, two)  # the first one waits for ARP
            times = []
            for _ in range(5):
                began = time.monotonic()
                assert arrive(one, two) == 1
                times.append(time.monotonic() - began)
            assert min(times) >= 0.02
            network.degrade(0.3)
            assert 20 < arrive(one, two, 100) < 95
