"""Streams between the programs of two members: who is meant is proven, nobody has to be first, and who is over is told."""

from __future__ import annotations

import dataclasses
import math
import os
import queue
import socket
import threading
import time
from collections.abc import Callable

import pytest

from consensus import ConfigError, ConsensusError, DialError, Gossip, Home, KeyRing, Member, SecretError, Stream, parse_address
from consensus.tools.dial import dial
from tests.harness.basics import eventually
from tests.harness.drip import dripping

from .group import address, agree, begin, members, peers
from .secret import OTHER, SECRET

PATH = "/streams"
TIMEOUT = 120.0
SECURED = pytest.mark.parametrize("secret", [(), SECRET], ids=["open", "secret"])


def arrivals() -> tuple[queue.Queue[Stream], Callable[[Stream], None]]:
    found = queue.Queue[Stream]()
    return found, found.put


@SECURED
@pytest.mark.parametrize("home", Home)
def test_both_ends_know_each_other(secret: str, home: Home) -> None:
    with members(2, agent=home, secret=secret) as group:
        agree(group, 2)
        found, handler = arrivals()
        group[1].accept(PATH, handler)
        ours = group[0].dial(group[1].member, PATH, timeout=TIMEOUT)
        theirs = found.get(timeout=TIMEOUT)
        with ours.socket, theirs.socket:
            assert ours.peer.id == theirs.here.id == group[1].id and theirs.peer == ours.here == group[0].member
            assert (ours.dialled, theirs.dialled) == (True, False)
            assert len(ours.key) == 32 and ours.key == theirs.key
            big = os.urandom(1 << 20)
            threading.Thread(target=theirs.socket.sendall, args=(big,), daemon=True).start()
            got = b""
            while len(got) < len(big):
                got += ours.socket.recv(1 << 16)
            assert got == big
            ours.socket.sendall(b"and back")
            assert theirs.socket.recv(100) == b"and back"
            again = group[0].dial(group[1].member, PATH, timeout=TIMEOUT)
            with again.socket, found.get(timeout=TIMEOUT).socket:
                assert again.key != ours.key
        assert ours.key.hex() not in repr(ours)


def test_what_is_said_at_once_is_not_lost() -> None:
    def greet(stream: Stream) -> None:
        with stream.socket:
            stream.socket.sendall(b"welcome" * 1000)

    with members(2, secret=SECRET) as group:
        agree(group, 2)
        group[1].accept(PATH, greet)
        with group[0].dial(group[1].member, PATH, timeout=TIMEOUT).socket as ours:
            got = b""
            while piece := ours.recv(1 << 16):
                got += piece
            assert got == b"welcome" * 1000


def test_who_asks_first_waits() -> None:
    with members(2) as group:
        agree(group, 2)
        with pytest.raises(DialError, match=r"accepts /streams within 0\.2 s"):
            group[0].dial(group[1].member, PATH, timeout=0.2)
        dialled = queue.Queue[Stream]()
        ask = threading.Thread(target=lambda: dialled.put(group[0].dial(group[1].member, PATH, timeout=TIMEOUT)))
        ask.start()
        host = group[1]._host
        assert host is not None
        waiting = host._acceptors._waiting
        eventually(lambda: len(waiting) == 1 and waiting[0].until > time.monotonic() + 1, "the request waits")
        found, handler = arrivals()
        cancel = group[1].accept(PATH, handler)
        with found.get(timeout=TIMEOUT).socket, dialled.get(timeout=TIMEOUT).socket:
            ask.join()
        assert not waiting and found.empty(), "the one that had given up is not taken"
        with pytest.raises(ConfigError, match="accepted already"):
            group[1].accept(PATH, handler)
        cancel()
        group[1].accept(PATH, handler)


@SECURED
def test_what_is_accepted_no_more_is_refused_at_once(secret: str) -> None:
    with members(2, secret=secret) as group:
        agree(group, 2)
        group[1].accept(PATH, lambda stream: stream.socket.close())()
        with pytest.raises(DialError, match="accepts that path no more") as refusal:
            group[0].dial(group[1].member, PATH, timeout=TIMEOUT)
        assert refusal.value.ended and not refusal.value.gone
        found, handler = arrivals()
        group[1].accept(PATH, handler)
        with group[0].dial(group[1].member, PATH, timeout=TIMEOUT).socket, found.get(timeout=TIMEOUT).socket:
            pass


def test_who_ends_an_acceptance_twice_ends_no_later_one() -> None:
    with members(2) as group:
        agree(group, 2)
        found, handler = arrivals()
        end = group[1].accept(PATH, handler)
        end()
        group[1].accept(PATH, handler)
        end()
        with pytest.raises(ConfigError, match="accepted already"):
            group[1].accept(PATH, handler)
        with group[0].dial(group[1].member, PATH, timeout=math.inf).socket, found.get(timeout=TIMEOUT).socket:
            pass


def test_it_is_accepted_before_the_start() -> None:
    found, handler = arrivals()
    with members(1) as [first]:
        second = Gossip(dataclasses.replace(first.config, introducers=(address(first),)))
        cancel = second.accept(PATH, handler)
        try:
            second.start()
            second.seek_admission()
            agree([first, second], 2)
            with first.dial(second.member, PATH, timeout=TIMEOUT).socket, found.get(timeout=TIMEOUT).socket:
                cancel()
            with pytest.raises(DialError):
                first.dial(second.member, PATH, timeout=TIMEOUT)
        finally:
            second.stop()


@SECURED
def test_another_lifetime_is_another_member(secret: str) -> None:
    with members(2, secret=secret) as group:
        agree(group, 2)
        group[1].accept(PATH, lambda stream: stream.socket.close())
        there = group[1].member
        with pytest.raises(DialError, match="another lifetime") as caught:
            group[0].dial(Member("0" * 16, there.host, there.port), PATH, timeout=TIMEOUT)
        assert caught.value.gone
        group[1].stop()
        with pytest.raises(DialError, match="cannot be reached") as caught:
            group[0].dial(there, PATH, timeout=TIMEOUT)
        assert not caught.value.gone
        with pytest.raises(DialError, match="itself"):
            group[0].dial(group[0].member, PATH, timeout=TIMEOUT)


def test_strangers_get_none() -> None:
    taken = list[Stream]()
    with members(1, secret=SECRET) as [member]:
        agree([member], 1)
        member.accept(PATH, taken.append)
        there, me = member.member, Member("1" * 16, "127.0.0.1", 1)
        with pytest.raises(SecretError):
            dial(there, PATH, me, "test", KeyRing([OTHER]), TIMEOUT)
        with pytest.raises(SecretError):
            dial(there, PATH, me, "test", None, TIMEOUT)
        with pytest.raises(DialError, match="another job"):
            dial(there, PATH, me, "elsewhere", KeyRing([SECRET]), TIMEOUT)
        with pytest.raises(SecretError), begun_open() as other:
            dial(other.member, PATH, me, "test", KeyRing([SECRET]), TIMEOUT)
    assert not taken


def test_an_answer_without_an_end_has_a_deadline() -> None:
    with dripping() as slow:
        there, me = Member("2" * 16, *parse_address(slow)), Member("1" * 16, "127.0.0.1", 1)
        with pytest.raises(DialError, match=r"within 0\.3 s"):
            dial(there, PATH, me, "test", None, 0.3)


def begun_open() -> _Begun:
    return _Begun(begin(job="test", initial_size=1))


class _Begun:
    def __init__(self, member: Gossip) -> None:
        self.member = member

    def __enter__(self) -> Gossip:
        return self.member

    def __exit__(self, *error: object) -> None:
        self.member.stop()


def test_a_failing_handler_ends_no_other(caplog: pytest.LogCaptureFixture) -> None:
    def broken(stream: Stream) -> None:
        raise RuntimeError("not today")

    with members(2) as group:
        agree(group, 2)
        group[1].accept("/broken", broken)
        found, handler = arrivals()
        group[1].accept(PATH, handler)
        with group[0].dial(group[1].member, "/broken", timeout=TIMEOUT).socket as ours:
            assert ours.recv(1) == b""
        with group[0].dial(group[1].member, PATH, timeout=TIMEOUT).socket, found.get(timeout=TIMEOUT).socket:
            pass
    assert "could not be taken" in caplog.text


def test_before_the_start_and_in_callbacks() -> None:
    gossip = Gossip()
    with pytest.raises(ConsensusError, match="start first"):
        gossip.dial(Member("1" * 16, "127.0.0.1", 1), PATH, timeout=1.0)
    with pytest.raises(ConfigError):
        gossip.accept("/status", lambda stream: None)


@pytest.mark.process
def test_who_is_over_is_told() -> None:
    with members(1, job="test", exclude_after=60.0) as [first]:  # no silence would do
        agree([first], 1)
        told = queue.Queue[tuple[Member, str]]()

        def broken(member: Member, why: str) -> None:
            raise RuntimeError("not today")

        first.watch(broken)
        first.watch(lambda member, why: told.put((member, why)))
        silent = queue.Queue[Member]()
        first.watch(lambda member, why: silent.put(member))()
        with peers(1, job="test", initial_size=1, introducers=[address(first)], agent="process", exclude_after=60.0) as [peer]:
            agree([first], 2)
            peer.kill()
            member, why = told.get(timeout=TIMEOUT)
            assert member.id == peer.member.id and why.startswith("proof")
        leaver = begin(job="test", initial_size=1, introducers=(address(first),), exclude_after=60.0)
        try:
            leaver.seek_admission()
            agree([first, leaver], 2)
            own = queue.Queue[tuple[Member, str]]()
            leaver.watch(lambda member, why: own.put((member, why)))
            leaver.leave()
            member, why = told.get(timeout=TIMEOUT)
            assert member.id == leaver.id and why.startswith("left")
            assert own.get(timeout=TIMEOUT)[0] == leaver.member
        finally:
            leaver.stop()
        assert told.empty() and silent.empty()


def test_a_socket_is_no_childs() -> None:
    with members(2, agent=Home.PROCESS) as group:
        agree(group, 2)
        found, handler = arrivals()
        group[1].accept(PATH, handler)
        ours = group[0].dial(group[1].member, PATH, timeout=TIMEOUT)
        with ours.socket, found.get(timeout=TIMEOUT).socket as theirs:
            assert isinstance(ours.socket, socket.socket)
            assert not os.get_inheritable(ours.socket.fileno()) and not os.get_inheritable(theirs.fileno())


def test_sockets_that_an_agent_on_a_thread_has_are_no_childs() -> None:
    with members(1, agent=Home.THREAD) as [alone]:
        agree([alone], 1)
        child = alone._host.child  # type: ignore[union-attr]
        assert not any(map(os.get_inheritable, child.descriptors()))
