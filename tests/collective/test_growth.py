"""What comes and goes a thousand times leaves no thread, no descriptor, no memory: links made and closed, peers killed."""

from __future__ import annotations

import gc
import itertools
import os
import resource
import signal
import socket
import threading
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from consensus import Stream
from ftlib.links.link import Link
from ftlib.links.loop import LinkLoop
from tests.harness.basics import TIMEOUT, eventually

from .test_groups import collectives
from .test_links import A, B, Inbox, Outbox, pair

PATHS = pytest.mark.parametrize("ring", [True, False], ids=["ring", "tcp"])


def resident() -> int:
    """KB of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() // 1024


def nothing_grows(once: Callable[[], None], rounds: int, idle: Callable[[], bool]) -> None:
    def counts() -> tuple[int, int, int]:
        eventually(idle, "all links are gone")
        gc.collect()
        return threading.active_count(), len([*Path("/proc/self/fd").iterdir()]), resident()

    for _ in range(max(5, rounds // 3)):  # until malloc has what it needs: some 20 MB, which stay what they are
        once()
    threads, files, memory = counts()
    for _ in range(rounds):
        once()
    until = time.monotonic() + TIMEOUT
    now = counts()
    while (now[0] > threads or now[1] > files) and time.monotonic() < until:  # a thread that has nothing to do ends by itself
        time.sleep(0.05)
        now = counts()
    assert now[0] <= threads and now[1] <= files, (now, threads, files)
    assert now[2] - memory < 20_000 + rounds * 4, "KB"


def answered(link: Link, size: int = 100_000) -> None:
    """There and back."""
    outbox, inbox = Outbox(link), Inbox(link)
    inbox.ask()
    outbox.put(bytes(size))
    assert len(inbox.take()) == size


def made_and_closed(ring: bool, rounds: int) -> None:
    loops = LinkLoop(ring=ring), LinkLoop(ring=ring)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def once() -> None:
            theirs = socket.create_connection(server.getsockname())
            ours, _ = server.accept()
            a = loops[0].connect(Stream(ours, bytes(32), B, dialled=False, here=A))
            b = loops[1].connect(Stream(theirs, bytes(32), A, dialled=True, here=B))
            inbox, outbox = Inbox(b), Outbox(a)
            inbox.ask()
            outbox.put(bytes(100_000))
            assert len(inbox.take()) == 100_000
            a.close(TIMEOUT)

        nothing_grows(once, rounds, lambda: not any(loop._links or loop._timers for loop in loops))
    for loop in loops:
        loop.close()


def killed(ring: bool, rounds: int) -> None:
    loop = LinkLoop(ring=ring)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def once() -> None:
            child = os.fork()
            if not child:
                sock = socket.create_connection(server.getsockname())
                link = LinkLoop(ring=ring).connect(Stream(sock, bytes(32), A, dialled=True, here=B))
                answered(link)
                Outbox(link).put(bytes(50_000_000))  # and dies in the middle of it
                signal.pause()
            ours, _ = server.accept()
            link = loop.connect(Stream(ours, bytes(32), B, dialled=False, here=A))
            answered(link)
            lost = Inbox(link)
            lost.ask()
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            while lost.got.get(timeout=TIMEOUT)[2] is None:
                lost.ask()

        nothing_grows(once, rounds, lambda: not loop._links and not loop._timers)
    loop.close()


@PATHS
def test_links_made_and_closed(ring: bool) -> None:
    made_and_closed(ring, 30)


@PATHS
def test_an_ended_link_has_no_buffers(ring: bool) -> None:
    """Links lie in circles of references, which Python may look for hundreds of links later: until then they stay small."""
    loops, ended = (LinkLoop(ring=ring), LinkLoop(ring=ring)), []
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(20):
            ended += pair(*loops)
            inbox, outbox = Inbox(ended[-1]), Outbox(ended[-2])
            inbox.ask()
            outbox.put(bytes(100_000))
            assert len(inbox.take()) == 100_000
            ended[-2].close(TIMEOUT)
        del inbox, outbox
        eventually(lambda: not any(loop._links or loop._timers for loop in loops), "all links are gone")
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        for loop in loops:
            loop.close()
    assert after - before < 20_000 * len(ended)


@pytest.mark.process
@PATHS
def test_peers_killed(ring: bool) -> None:
    killed(ring, 5)


def groups_made_and_closed(rounds: int) -> None:
    """By turns: closed by either side, by both, or used by nobody."""
    with collectives(2) as (made, ids):
        count = itertools.count()

        def once() -> None:
            number = next(count)
            a, b = (each.create_collective_group(ids, f"group {number % 3}") for each in made)
            if number % 4:
                a.send(number, timeout=TIMEOUT)
                assert b.recv(timeout=TIMEOUT) == number
            first, second = (a, b) if number % 2 else (b, a)
            first.close()
            second.close()

        loops = [each._loop for each in made]
        nothing_grows(once, rounds, lambda: not any(loop._links or loop._timers for loop in loops))
        assert not any(each._groups for each in made)


def test_groups_made_and_closed() -> None:
    groups_made_and_closed(20)


@pytest.mark.soak
def test_a_thousand_groups() -> None:
    groups_made_and_closed(1000)


@pytest.mark.soak
@PATHS
def test_a_thousand_links(ring: bool) -> None:
    made_and_closed(ring, 1000)


@pytest.mark.soak
@PATHS
def test_five_hundred_peers(ring: bool) -> None:
    killed(ring, 250)
