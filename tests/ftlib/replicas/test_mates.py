"""Connections of one replica: how the end of a process is told from its death."""

from __future__ import annotations

import functools
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from consensus import Member
from ftlib.core.replicas.whole import Replica
from ftlib.core.replicas.words import Word
from ftlib.errors import JobEnded, ReplicaLost
from ftlib.lifecycle.replica.mates import Connections
from tests.harness.basics import TIMEOUT, eventually
from tests.harness.company import at_once

WORD = Word(1, 5)


class Pair:
    """The two processes of a replica."""

    def __init__(self) -> None:
        self.lost: list[list[ReplicaLost]] = [[], []]
        self.both = [Connections(shard, self.lost[shard].append) for shard in range(2)]
        facts = [each.listen("127.0.0.1") for each in self.both]
        members = [Member(f"m{shard}", "127.0.0.1", 1, tuple(sorted(each.items()))) for shard, each in enumerate(facts)]
        replica = Replica("r", tuple(members))
        at_once(*[functools.partial(each.connect, replica, TIMEOUT, lambda: True) for each in self.both])
        self.here, self.other = self.both
        self.here.enter(WORD)

    def dies(self) -> None:
        """The other one ends without a word."""
        for sock in self.other._socks.values():
            sock.shutdown(socket.SHUT_RDWR)

    def verdict(self) -> object:
        found: list[object] = []
        eventually(lambda: found.append(self.here.verdict(0.05)) or found[-1], "there is a verdict", 60.0)
        return found[-1]


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    for each in made.both:
        each.close()
    for each in made.both:
        eventually(
            lambda each=each: all(sock.fileno() < 0 for sock in each._socks.values()), "the connections are closed", 20.0
        )


class Slow:
    """A connection whose reader is held up between reading and noting what it has read."""

    def __init__(self, sock: socket.socket, held: Callable[[], object]) -> None:
        self._sock, self._held = sock, held

    def recv(self, *arguments: int) -> bytes:
        data = self._sock.recv(*arguments)
        if data:
            self._held()
        return data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)


@pytest.mark.parametrize("ended", [True, False])
def test_a_goodbye_that_was_read_and_not_noted_yet_is_no_death(pair: Pair, ended: bool) -> None:
    """The connection ends while another thread has the goodbye in its hands."""
    told = threading.Event()
    pair.here._lost = lambda _: told.set()
    read = threading.Event()

    def held() -> None:
        if not read.is_set():
            read.set()
            told.wait(0.5)  # for who would take it for a death

    pair.here._socks[1] = Slow(pair.here._socks[1], held)  # type: ignore[assignment]
    pair.other.part(ended=ended)
    pair.dies()
    with pytest.raises(JobEnded if ended else ReplicaLost, match="has come to the end" if ended else "has left"):
        pair.verdict()
    assert pair.here.ended is ended
    assert not told.is_set()


@pytest.mark.parametrize("ended", [True, False])
def test_a_goodbye_counts_whoever_reads_it(pair: Pair, ended: bool) -> None:
    pair.other.enter(WORD)
    pair.other.part(ended=ended)
    pair.dies()
    eventually(lambda: 1 in pair.here._over, "all was read")
    assert pair.here.ended is ended
    assert pair.verdict(), "it was said before the goodbye"
    assert not pair.lost[0]


def test_an_end_without_a_word_is_a_death_and_is_said_once(pair: Pair) -> None:
    """Who is told may ask whether a mate has come to its end."""
    asked: list[bool] = []
    lost = pair.here._lost
    pair.here._lost = lambda error: (lost(error), asked.append(pair.here.ended))  # type: ignore[assignment,func-returns-value]
    pair.dies()
    with pytest.raises(ReplicaLost, match="shard 1 of replica r is lost"):
        pair.verdict()
    eventually(lambda: asked, "the death was said")
    assert asked == [False]
    assert len(pair.lost[0]) == 1
    assert not pair.here.ended
