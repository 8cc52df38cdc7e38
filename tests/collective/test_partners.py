"""Links to real processes, dialled through the agreement: they are killed and stopped, exit, and live behind bad networks."""

from __future__ import annotations

import contextlib
import os
import queue
import resource
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from consensus import Gossip, Member
from ftlib.links.errors import GroupClosed, LinkBroken, PeerLost
from ftlib.links.link import Link
from ftlib.links.loop import LinkLoop
from tests.consensus.group import agree, begin
from tests.consensus.peer import Peer
from tests.harness.basics import PATIENT, TIMEOUT, eventually
from tests.harness.network import Host, Network, needs_bridge_filter, needs_delay, needs_network

from .partner import PATH, partner

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]
PATHS = pytest.mark.parametrize("ring", [True, False], ids=["ring", "tcp"])
SOON = 60.0
"""Seconds from a death to every error, on a machine as busy as can be; the benchmark has the bar."""


class Operations:
    """Sends and receives under way on a link, and what became of them."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.ended = queue.Queue[tuple[str, bytes, BaseException | None]]()

    def send(self, order: bytes, size: int) -> None:
        data = memoryview(bytes(size))
        self.link.send(b"%d %b" % (size, order), [data], lambda error: self.ended.put(("send", b"", error)))

    def receive(self) -> None:
        memory = bytearray()

        def place(header: bytes) -> list[memoryview]:
            nonlocal memory
            memory = bytearray(int(header))
            return [memoryview(memory)]

        self.link.receive(place, lambda header, error: self.ended.put(("receive", bytes(memory), error)))

    def wait(self) -> tuple[str, bytes, BaseException | None]:
        return self.ended.get(timeout=TIMEOUT)

    def errors(self, count: int) -> list[BaseException]:
        """Those of so many operations that have all ended, without those that went well."""
        return [error for _ in range(count) if (error := self.wait()[2]) is not None]


@contextlib.contextmanager
def member(**settings: Any) -> Iterator[Gossip]:
    first = begin(**{"job": "test", "initial_size": 1, "exclude_after": PATIENT["exclude_after"], **settings})
    try:
        agree([first], 1)
        yield first
    finally:
        first.stop()


@contextlib.contextmanager
def dialled(first: Gossip, peer: Peer, **settings: Any) -> Iterator[Operations]:
    """A link to ``peer``, which hears from the agreement who is over."""
    loop = LinkLoop(**settings)
    eventually(lambda: any(each.id == peer.member.id for each in first.get_member_list()), "it is a member")
    link = loop.connect(first.dial(peer.member, PATH, timeout=TIMEOUT))

    def over(who: Member, why: str) -> None:
        if who.id in (peer.member.id, first.id):
            link.fail(PeerLost(f"{who}: {why}", peer=who))

    cancel = first.watch(over)
    try:
        yield Operations(link)
    finally:
        cancel()
        loop.close()


def ended_with(operations: Operations, count: int, since: float, limit: float) -> None:
    """All of so many have ended by then, and those that failed know that the peer is lost."""
    errors = operations.errors(count)
    assert time.monotonic() - since < limit
    assert errors and {type(error) for error in errors} == {PeerLost}, errors


def burden(operations: Operations) -> int:
    """Many operations both ways, none of which ends. Returns how many will have to end."""
    operations.send(b"flood 40", 1 << 20)
    for _ in range(60):
        operations.receive()
    for _ in range(40):
        operations.send(b"keep", 4 << 20)
    for _ in range(3):
        assert operations.wait()[2] is None, "messages pass"
    return 1 + 60 + 40 - 3


@PATHS
def test_killed_in_mid_message(ring: bool) -> None:
    kill(ring, 3)


@pytest.mark.soak
@PATHS
def test_killed_fifty_times(ring: bool) -> None:
    kill(ring, 25)


def kill(ring: bool, rounds: int) -> None:
    with member() as first:
        for _ in range(rounds):
            with partner(first) as peer, dialled(first, peer, ring=ring) as operations:
                left = burden(operations)
                assert operations.link.path == ("ring" if ring else "tcp")
                killed = time.monotonic()
                peer.kill()
                ended_with(operations, left, killed, 2 * SOON)
                operations.receive()
                operations.send(b"keep", 1)
                ended_with(operations, 2, time.monotonic(), SOON)


@PATHS
def test_killed_and_nobody_says_so(ring: bool) -> None:
    """The end of the socket is enough, and the refusal of its port: where half of a job is gone nobody agrees on anything."""
    with member() as first, partner(first) as peer, dialled(first, peer, ring=ring) as operations:
        operations.link.fail = lambda error: Link.fail(operations.link, error) if "port is refused" in str(error) else None  # type: ignore[method-assign]
        left = burden(operations)
        killed = time.monotonic()
        peer.kill()
        ended_with(operations, left, killed, 2 * SOON)


@PATHS
def test_stopped_in_mid_message(ring: bool) -> None:
    exclude = 3.0
    with (
        member(exclude_after=exclude) as first,
        partner(first, exclude_after=exclude) as peer,
        dialled(first, peer, ring=ring) as operations,
    ):
        left = burden(operations)
        stopped = time.monotonic()
        os.kill(peer.process.pid, signal.SIGSTOP)
        ended_with(operations, left, stopped, exclude + 2 * SOON)


@PATHS
def test_it_exits_with_sends_pending(ring: bool) -> None:
    with member() as first, partner(first) as peer, dialled(first, peer, ring=ring, buffer=1 << 16) as operations:
        operations.send(b"exit 8", 3_000_000)
        assert operations.wait()[2] is None
        eventually(lambda: operations.link._in.paused, "it has more to say than is kept")
        for number in range(8):
            operations.receive()
            kind, memory, error = operations.wait()
            assert (kind, len(memory), error) == ("receive", 3_000_000, None)
            if number == 6:  # the last one is on its way, or here; its sender is gone, as the agreement knows
                assert peer.process.wait(TIMEOUT) == 0
                eventually(lambda: len(first.get_member_list()) == 1, "its death is agreed on")
        operations.receive()
        _, _, error = operations.wait()
        assert isinstance(error, (GroupClosed, PeerLost))


@PATHS
def test_memory_is_only_what_is_held(ring: bool) -> None:
    hold(ring, 10)


@pytest.mark.soak
@PATHS
def test_memory_for_long(ring: bool) -> None:
    hold(ring, 100)


def hold(ring: bool, rounds: int) -> None:
    """Receives of 100 MB with one held: two of them at a time here, and nothing beside them."""
    size = 100_000_000
    with member() as first, partner(first) as peer, dialled(first, peer, ring=ring) as operations:
        into, other = bytearray(size), bytearray(size)
        data = memoryview(bytes(size))
        ended = queue.Queue[BaseException | None]()
        operations.link.send(b"%d flood %d" % (size, rounds), [data], ended.put)
        before = 0
        for _ in range(rounds):
            into, other = other, into
            view = memoryview(into)
            operations.link.receive(lambda _header, view=view: [view], lambda _header, error: ended.put(error))
            assert ended.get(timeout=TIMEOUT) is None
            before = before or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        assert ended.get(timeout=TIMEOUT) is None, "the send has ended, too"
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000, "KB"


# Behind networks


@contextlib.contextmanager
def far(network: Network, **settings: Any) -> Iterator[tuple[list[Host], Gossip, Peer]]:
    """A member on one host, and a partner on another."""
    with network as hosts:
        with hosts[0].inside():
            first = begin(job="test", initial_size=1, bind=f"{hosts[0].v4}:7001", insecure=True, exclude_after=120.0)
        try:
            agree([first], 1)
            at = {"bind": f"{hosts[1].v4}:7001", "insecure": True, "exclude_after": 120.0}
            with partner(first, prefix=hosts[1].prefix, loop=settings, **at) as peer, hosts[0].inside():
                yield hosts, first, peer
        finally:
            first.stop()


@needs_network
@needs_bridge_filter
def test_a_cut_link_is_broken() -> None:
    """The peer lives: no exclusion within the test. Both ends learn it, in mid-message and idle."""
    network, timeout = Network(2), 2.0
    with far(network, link_timeout=timeout) as (hosts, first, peer):
        with dialled(first, peer, link_timeout=timeout) as operations, dialled(first, peer, link_timeout=timeout) as idle:
            idle.send(b"echo", 10)
            idle.receive()
            assert idle.wait()[2] is None and idle.wait()[2] is None
            eventually(lambda: "another network" in operations.link.why, "it was agreed that there is no ring")
            assert operations.link.path == "tcp"
            left = burden(operations)
            idle.receive()
            network.isolate(hosts[1])
            cut = time.monotonic()
            errors = operations.errors(left)
            assert time.monotonic() - cut < timeout + SOON
            assert errors and {type(error) for error in errors} == {LinkBroken}
            assert [type(error) for error in idle.errors(1)] == [LinkBroken]
            assert time.monotonic() - cut < timeout + SOON
        network.heal()
        with dialled(first, peer, link_timeout=timeout) as again:
            again.send(b"echo", 1 << 20)
            again.receive()
            assert again.wait()[2] is None and again.wait()[2] is None


@needs_network
@needs_delay
@needs_bridge_filter
def test_long_and_lossy_cables() -> None:
    network = Network(2, delay=0.02, jitter=0.005)
    with far(network, link_timeout=10.0) as (_, first, peer), dialled(first, peer, link_timeout=10.0) as operations:
        network.degrade(0.02)
        for size in (0, 10, 100_000, 1_000_000):
            operations.send(b"echo", size)
            operations.receive()
        found = [operations.wait() for _ in range(8)]
        assert [len(memory) for kind, memory, error in found if kind == "receive"] == [0, 10, 100_000, 1_000_000]
        assert not any(error for *_, error in found)


@needs_network
def test_a_slow_program_is_no_broken_link() -> None:
    """It reads nothing for longer than ``link_timeout``: its host still answers."""
    timeout = 1.0
    network = Network(2)
    with (
        far(network, buffer=1 << 16, link_timeout=timeout) as (_, first, peer),
        dialled(first, peer, link_timeout=timeout) as operations,
    ):
        operations.send(b"sleep", 0)
        for _ in range(30):
            operations.send(b"keep", 1 << 20)
        eventually(lambda: operations.link._out.blocked, "its window is shut")
        time.sleep(4 * timeout)
        assert operations.link.stats.queued_out > 5
        assert not operations.errors(operations.ended.qsize())
