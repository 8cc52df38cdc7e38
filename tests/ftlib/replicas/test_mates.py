"""Connections of one replica: how they come about, and how the end of a process is told from its death."""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from consensus import Member
from ftlib.core.replicas.whole import Replica
from ftlib.core.replicas.words import Word
from ftlib.errors import GroupError, JobEnded, ReplicaLost
from ftlib.lifecycle.replica.mates import Connections
from tests.harness.basics import TIMEOUT, eventually
from tests.harness.company import at_once, in_thread
from tests.harness.threads import no_threads

WORD = Word(1, 5)


def listening(processes: Sequence[Connections]) -> Replica:
    """These, which listen from now on, are its processes."""
    facts = [each.listen("127.0.0.1") for each in processes]
    members = [Member(f"m{shard}", "127.0.0.1", 1, tuple(sorted(each.items()))) for shard, each in enumerate(facts)]
    return Replica("r", tuple(members))


class Pair:
    """The two processes of a replica."""

    def __init__(self) -> None:
        self.lost: list[list[ReplicaLost]] = [[], []]
        self.both = [Connections(shard, self.lost[shard].append) for shard in range(2)]
        replica = listening(self.both)
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


@pytest.mark.parametrize("again", [True, False])
def test_a_moment_without_threads_costs_an_attempt_to_connect(again: bool) -> None:
    """The ends of mates are seen after the next attempt, and without one all is closed."""
    lost: list[list[ReplicaLost]] = [[], []]
    here, other = (Connections(shard, lost[shard].append) for shard in range(2))
    replica = listening([here, other])
    with no_threads("ftlib-mates"):
        for failed in at_once(*[functools.partial(refused, each, replica) for each in (here, other)]):
            assert "can't start new thread" in failed
    if again:
        for each in (here, other):
            each.connect(replica, TIMEOUT, lambda: True)
        other._socks[0].shutdown(socket.SHUT_RDWR)
        eventually(lambda: lost[0], "the death is seen")
    for each in (here, other):
        each.close()
        eventually(lambda each=each: all(sock.fileno() < 0 for sock in each._socks.values()), "all is closed")


def refused(process: Connections, replica: Replica) -> str:
    """Why ``process`` cannot connect."""
    with pytest.raises(GroupError) as caught:
        process.connect(replica, TIMEOUT, lambda: True)
    return str(caught.value)


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


class Strangers:
    """Some connect and say nothing; one says a byte now and then, of as many as a hello has."""

    def __init__(self, replica: Replica, *, silent: int) -> None:
        host, port = str(replica.members[0].fact("_mates")).rsplit(":", 1)
        self._socks = [socket.create_connection((host, int(port)), TIMEOUT) for _ in range(silent + 1)]
        self._over = threading.Event()
        self.said = 0
        self._thread = in_thread(self._talk)

    def _talk(self) -> None:
        with contextlib.suppress(OSError):
            while self.said < 36 and not self._over.wait(0.3):
                self._socks[-1].sendall(b"x")
                self.said += 1

    def close(self) -> None:
        self._over.set()
        self._thread.join(TIMEOUT)
        for sock in self._socks:
            sock.close()


@pytest.fixture
def closing() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


def test_strangers_hold_no_mate_up(closing: contextlib.ExitStack) -> None:
    """Each was waited for by itself, two seconds after its last byte."""
    both = [Connections(shard, lambda _: None) for shard in range(2)]
    replica = listening(both)
    strangers = Strangers(replica, silent=6)
    for each in (strangers, *both):
        closing.callback(each.close)
    eventually(lambda: strangers.said, "they are there")
    began = time.monotonic()
    at_once(*[functools.partial(each.connect, replica, TIMEOUT, lambda: True) for each in both])
    assert time.monotonic() - began < 9


@pytest.mark.parametrize("ends", ["the time is up", "the view is not wanted"])
def test_strangers_do_not_prolong_the_wait_for_a_mate(ends: str, closing: contextlib.ExitStack) -> None:
    both = [Connections(shard, lambda _: None) for shard in range(2)]
    replica = listening(both)
    strangers = Strangers(replica, silent=0)
    for each in (strangers, *both):
        closing.callback(each.close)
    timeout, wanted, why = {
        "the time is up": (0.2, lambda: True, "shard 1 of replica r did not connect"),
        "the view is not wanted": (TIMEOUT, lambda: not strangers.said, "not wanted any more"),
    }[ends]
    with pytest.raises(GroupError, match=why):
        both[0].connect(replica, timeout, wanted)
    assert strangers.said < 20


def test_a_mate_is_heard_however_late_it_says_the_rest(closing: contextlib.ExitStack) -> None:
    """Time may be up between its call and its hello: the next view waits for the rest of it."""
    both = [Connections(shard, lambda _: None) for shard in range(2)]
    replica = listening(both)
    for each in both:
        closing.callback(each.close)
    hello = b"".join(_said_by(both[1], replica))
    host, port = str(replica.members[0].fact("_mates")).rsplit(":", 1)
    mate = closing.enter_context(socket.create_connection((host, int(port)), TIMEOUT))
    mate.sendall(hello[:20])
    with pytest.raises(GroupError, match="did not connect"):
        both[0].connect(replica, 0.2, lambda: True)
    mate.sendall(hello[20:] + WORD.pack())
    both[0].connect(replica, TIMEOUT, lambda: True)
    both[0].enter(WORD)
    eventually(lambda: both[0].verdict(0.05), "the word after the hello was heard")


def _said_by(process: Connections, replica: Replica) -> Iterator[bytes]:
    """What it says to shard 0 as it connects, and then no more."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        elsewhere = (("_mates", f"127.0.0.1:{server.getsockname()[1]}"), ("_mates_key", replica.members[0].fact("_mates_key")))
        first = Member("m0", "127.0.0.1", 1, elsewhere)  # type: ignore[arg-type]
        process.connect(Replica("r", (first, replica.members[1])), TIMEOUT, lambda: True)
        sock, _ = server.accept()
        with sock:
            process.close()
            sock.settimeout(TIMEOUT)
            yield sock.recv(36)


def test_closing_while_it_connects_leaves_the_programs_descriptors_alone(closing: contextlib.ExitStack) -> None:
    """The last mate comes in the moment in which this one closes. What closing has freed is the program's from then on."""
    both = [Connections(shard, lambda _: None) for shard in range(2)]
    replica, (other, here) = listening(both), both
    closing.callback(other.close)
    own: list[int] = []

    def wanted() -> bool:
        if not own:
            here.close()
            for _ in range(8):
                own.extend(os.pipe())
        return True

    with pytest.raises(GroupError, match="not wanted any more"):
        here.connect(replica, TIMEOUT, wanted)
    for read, write in zip(own[::2], own[1::2], strict=True):
        os.write(write, b"the program's")
        eventually(lambda: "ftlib-mates" not in [each.name for each in threading.enumerate()], "nobody reads there", 1.0)
        assert os.read(read, 20) == b"the program's"
        os.close(read)
        os.close(write)
    with pytest.raises(GroupError, match="not wanted any more"):
        here.connect(replica, TIMEOUT, lambda: True)


def test_closing_wakes_who_waits_for_its_mates_and_frees_all() -> None:
    before = descriptors()
    here, other = (Connections(shard, lambda _: None) for shard in range(2))
    replica, failed = listening([here, other]), threading.Event()

    def connect() -> None:
        with pytest.raises(GroupError, match="not wanted any more"):
            here.connect(replica, TIMEOUT, lambda: True)
        failed.set()

    thread = in_thread(connect)
    eventually(lambda: here._connecting, "it waits for the other one")
    here.close()
    other.close()
    thread.join(TIMEOUT)
    assert failed.is_set()
    assert descriptors() == before


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("ended", [True, False])
def test_a_goodbye_reaches_a_mate_that_connects_later(ended: bool, closing: contextlib.ExitStack) -> None:
    both = [Connections(shard, lambda _: None) for shard in range(2)]
    replica, (here, other) = listening(both), both
    for each in both:
        closing.callback(each.close)
    here.part(ended=ended)
    at_once(*[functools.partial(each.connect, replica, TIMEOUT, lambda: True) for each in both])
    other.enter(WORD)
    with pytest.raises(JobEnded if ended else ReplicaLost, match="has come to the end" if ended else "has left"):
        eventually(lambda: other.verdict(0.05), "there is a verdict")


def test_one_may_ask_for_ends_while_the_rest_of_the_replica_connects(closing: contextlib.ExitStack) -> None:
    """The job may go on without this member just then."""
    three = [Connections(shard, lambda _: None) for shard in range(3)]
    replica, asked = listening(three), []
    for each in three:
        closing.callback(each.close)

    def wanted() -> bool:
        if three[1]._socks:
            asked.append(three[1].ended)
        return not asked

    with pytest.raises(GroupError, match="not wanted any more"):
        three[1].connect(replica, TIMEOUT, wanted)
    assert asked == [False]
