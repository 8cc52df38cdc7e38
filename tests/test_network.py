"""The hosts and links that other tests are made of: what is cut, lost and delayed really is."""

from __future__ import annotations

import contextlib
import os
import socket
import time

import pytest

from tests.harness.network import Host, Network, needs_bridge_filter, needs_delay, needs_network

pytestmark = [needs_network, needs_bridge_filter, pytest.mark.timeout(600)]


def receiver(host: Host) -> socket.socket:
    with host.inside():
        sock = socket.socket(type=socket.SOCK_DGRAM)
    sock.bind((host.v4, 9))
    return sock


def arrive(source: socket.socket, target: socket.socket, count: int = 1, wait: float = 0.3) -> int:
    """How many of so many new datagrams arrive, each at most ``wait`` seconds after the one before."""
    sent = {os.urandom(8) for _ in range(count)}
    for datagram in sent:
        source.sendto(datagram, target.getsockname())
    target.settimeout(wait)
    arrived = set[bytes]()
    with contextlib.suppress(TimeoutError):
        while arrived != sent:
            arrived |= {target.recv(9)} & sent  # others may be late ones
    return len(arrived)


def passes(source: socket.socket, target: socket.socket) -> bool:
    """Whether a datagram arrives; the kernel may have to ask first where its target is, which it does every second."""
    return any(arrive(source, target, wait=2.0) for _ in range(3))


def test_cuts_have_a_direction_and_heal() -> None:
    network = Network(3)
    with network as hosts:
        one, two, three = map(receiver, hosts)
        with one, two, three:
            assert passes(one, two) and passes(two, one) and passes(one, three) and passes(three, two)
            network.cut(hosts[0], hosts[1])
            assert not arrive(one, two)
            assert passes(two, one) and passes(one, three)
            network.isolate(hosts[2])
            assert not arrive(one, three) and not arrive(three, two)
            assert passes(two, one)
            network.heal()
            assert passes(one, two) and passes(three, two) and passes(one, three)


@needs_delay
def test_degraded_links_lose_and_delay() -> None:
    network = Network(2, delay=0.03, jitter=0.01)
    with network as hosts:
        one, two = map(receiver, hosts)
        with one, two:
            assert passes(one, two)
            for _ in range(5):
                began = time.monotonic()
                assert arrive(one, two, wait=2.0) == 1
                assert time.monotonic() - began >= 0.02
            network.degrade(0.3)
            assert 30 < arrive(one, two, 100, wait=1.0) < 95
