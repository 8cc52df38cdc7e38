"""Links between two ends of this process, over real sockets: order, memory, back-pressure, and what every ending is called."""

from __future__ import annotations

import contextlib
import functools
import os
import queue
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from consensus import Member, Stream
from ftlib.collective.frames import Sort
from ftlib.collective.lane import Lane, Terms
from ftlib.collective.operations import Receive
from ftlib.collective.values import Classes, encode
from ftlib.links import incoming
from ftlib.links.errors import CollectiveError, GroupClosed, LinkBroken, PeerLost
from ftlib.links.link import Link
from ftlib.links.loop import LinkLoop
from ftlib.links.ring import RingPath, make
from ftlib.links.verdict import verdict
from ftlib.links.wire import PREFIX
from tests.harness.basics import TIMEOUT, eventually

A, B = Member("a" * 16, "127.0.0.1", 1), Member("b" * 16, "127.0.0.1", 1)


Linked = Callable[..., contextlib.AbstractContextManager[tuple[Link, Link]]]


@pytest.fixture(params=["ring", "tcp"])
def linked(request: pytest.FixtureRequest) -> Linked:
    """Both ends of a link, by either path."""
    return functools.partial(joined, ring=request.param == "ring")


def pair(loop_a: LinkLoop, loop_b: LinkLoop) -> tuple[Link, Link]:
    """Two links, joined by a real socket pair."""
    near, far = socket.socketpair()
    key = os.urandom(32)
    first = loop_a.connect(Stream(near, key, B, dialled=True, here=A))
    return first, loop_b.connect(Stream(far, key, A, dialled=False, here=B))


def test_what_was_written_to_a_ring_at_last_is_read_though_its_writer_ended_meanwhile() -> None:
    """The end is heard of by another thread than the one that reads, which may be about to look for more."""
    descriptors = make()
    there = tuple(map(os.dup, descriptors))
    near, far = RingPath(descriptors, made=True), RingPath(there, made=False)
    into = bytearray(9)
    try:
        assert near.write([memoryview(b"first")]) == 5
        far.refresh()
        assert far.read([memoryview(into)]) == 5
        assert near.write([memoryview(b"last")]) == 4
        far.cut()
        assert far.read([memoryview(into)]) == 4
        assert bytes(into[:4]) == b"last"
        with pytest.raises(EOFError):
            far.read([memoryview(into)])
    finally:
        near.close()
        far.close()


@contextmanager
def joined(**settings: Any) -> Iterator[tuple[Link, Link]]:
    loops = LinkLoop(**settings), LinkLoop(**settings)
    try:
        links = pair(*loops)
        path = "ring" if settings.get("ring", True) else "tcp"
        eventually(lambda: all(link.path == path and link._out._path is not None for link in links), "they have met")
        yield links
    finally:
        for loop in loops:
            loop.close()


@contextmanager
def tcp(near: Member = A, far: Member = B, **settings: Any) -> Iterator[tuple[Link, socket.socket]]:
    """A link over TCP, and the bare socket at its other end."""
    loop = LinkLoop(**settings)
    with socket.create_server(("127.0.0.1", 0)) as server:
        theirs = socket.create_connection(server.getsockname())
        ours, _ = server.accept()
    try:
        yield loop.connect(Stream(ours, bytes(32), far, dialled=True, here=near)), theirs
    finally:
        theirs.close()
        loop.close()


class Inbox:
    """Asks for messages, and keeps what became of each."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.got = queue.Queue[tuple[bytes | None, bytes, BaseException | None]]()

    def ask(self) -> None:
        memory = bytearray()

        def place(header: bytes) -> list[memoryview]:
            nonlocal memory
            memory = bytearray(int(header))
            return [memoryview(memory)]

        self.link.receive(place, lambda header, error: self.got.put((header, bytes(memory), error)))

    def take(self) -> bytes:
        _, payload, error = self.got.get(timeout=TIMEOUT)
        if error is not None:
            raise error
        return payload


class Outbox:
    def __init__(self, link: Link) -> None:
        self.link = link
        self.done = queue.Queue[BaseException | None]()

    def put(self, payload: bytes, *, sealed: bool = False) -> None:
        self.link.send(b"%d" % len(payload), [memoryview(payload)], self.done.put, sealed=sealed)


@pytest.mark.parametrize("sealed", [False, True])
def test_both_directions_in_order(linked: Linked, sealed: bool) -> None:
    chance = random.Random(1)
    sizes = [chance.choice((0, 1, 4096, 70_000, 3_000_000)) for _ in range(60)]
    with linked(seal_all=sealed) as links:
        ends = [(Inbox(link), Outbox(link)) for link in links]
        payloads = [chance.randbytes(size) for size in sizes]
        for payload in payloads:
            for inbox, outbox in ends:
                outbox.put(payload)
                inbox.ask()
        for payload in payloads:
            for inbox, outbox in ends:
                assert inbox.take() == payload and outbox.done.get(timeout=TIMEOUT) is None
        stats = links[0].stats
        assert stats.sent == stats.received == len(sizes) and stats.queued_in == stats.queued_out == 0
        assert stats.sent_bytes > sum(sizes) and time.monotonic() - links[0].last_received < TIMEOUT


def test_both_may_send_first_and_no_more_than_the_buffer_is_kept(linked: Linked) -> None:
    with linked(buffer=1 << 20) as links:
        ends = [(Inbox(link), Outbox(link)) for link in links]
        for _, outbox in ends:
            outbox.put(bytes(900_000))
        for _, outbox in ends:
            assert outbox.done.get(timeout=TIMEOUT) is None, "nobody has asked for it yet"
        for number in range(10):
            ends[0][1].put(bytes([number]) * 900_000)
        eventually(lambda: links[1]._in.paused, "the second one is not read")
        assert links[1].stats.queued_in == 1 and links[0].stats.queued_out > 3
        for number in range(-1, 10):
            ends[1][0].ask()
            assert ends[1][0].take()[:1] == bytes([max(number, 0)])


def test_a_waiting_thread_reads_itself(linked: Linked) -> None:
    with linked() as (a, b):
        outbox, inbox = Outbox(a), Inbox(b)
        inbox.ask()
        helped = threading.Thread(target=b.help, args=(lambda: not inbox.got.empty(), time.monotonic() + TIMEOUT))
        helped.start()
        eventually(lambda: b._turn.taken, "it reads")
        b.help(lambda: False, time.monotonic() + TIMEOUT)  # somebody does so already
        b.help(lambda: True, time.monotonic() + TIMEOUT)
        outbox.put(b"x" * 5_000_000)
        helped.join(TIMEOUT)
        assert not helped.is_alive() and len(inbox.take()) == 5_000_000
        began = time.monotonic()
        b.help(lambda: False, began + 0.05)
        assert time.monotonic() - began > 0.04
        outbox.put(b"the loop reads again")
        inbox.ask()
        assert inbox.take() == b"the loop reads again"


def test_who_waits_for_another_reader_waits_no_longer_than_it_wants(linked: Linked) -> None:
    """As where a peer sends all the time: the thread that reads has no end."""
    reads, over = threading.Event(), threading.Event()
    with linked() as (a, b):
        b.receive(lambda _: [], lambda *_: reads.set() or over.wait(TIMEOUT))
        Outbox(a).put(b"")
        assert reads.wait(TIMEOUT)
        b.help(lambda: False, time.monotonic() + 0.05)
        b.help(lambda: True, time.monotonic() + TIMEOUT)
        assert not b.catch_up(0.01)
        over.set()
        assert b.catch_up(TIMEOUT)


def test_who_helps_hears_of_an_end_that_another_reader_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    """It sees the end of the stream beside a ring while another thread is still busy with what came before."""
    waits, waits_again, reads, over = (threading.Event() for _ in range(4))

    def busy(_: bytes) -> None:
        reads.set()
        over.wait(TIMEOUT)

    with joined() as (a, b):
        Outbox(b).put(b"kept")
        eventually(lambda: len(a._in) == 1, "it is kept")
        told(monkeypatch, a._watch, "wait", waits)
        helped = threading.Thread(target=a.help, args=(lambda: False, time.monotonic() + 10 * TIMEOUT), daemon=True)
        helped.start()
        assert waits.wait(TIMEOUT), "one waits for more"
        told(monkeypatch, a._watch, "wait", waits_again)
        told(monkeypatch, a._in, "rest", waits_again)
        reader = threading.Thread(target=a.receive, args=(busy, lambda *_: None))
        reader.start()
        assert reads.wait(TIMEOUT), "another one reads"
        b.fail(GroupClosed("its stream ends without a goodbye", peer=A))
        assert waits_again.wait(TIMEOUT), "the first one has seen the end"
        over.set()
        helped.join(TIMEOUT)
        assert not helped.is_alive()
        reader.join(TIMEOUT)


def test_room_that_whoever_reads_finds_is_used() -> None:
    """One eventfd tells of bytes and of room: a thread that asked for a message took both, and nobody wrote on."""
    with joined(buffer=1 << 16) as (a, b):
        outbox, inbox = Outbox(a), Inbox(b)
        for number in range(3):
            outbox.put(bytes([number]) * 3_000_000)
        eventually(lambda: a._out.blocked, "the ring is full")
        eventually(a._turn.take, "the loop does not read: it is this thread's turn")
        a._interest()
        for _ in range(3):
            inbox.ask()
        eventually(lambda: b._in.bytes > 4_000_000 and b._in.rest(0.0), "all that it holds is read")
        a._in.pump(news=True)
        a._turn.hand_back()
        assert [inbox.take()[:1] for _ in range(3)] == [bytes([number]) for number in range(3)]


def told(monkeypatch: pytest.MonkeyPatch, owner: object, method: str, called: threading.Event) -> None:
    """Set ``called`` whenever ``method`` of ``owner`` is called from now on."""
    real = getattr(owner, method)

    def noted(*args: Any) -> Any:
        called.set()
        return real(*args)

    monkeypatch.setattr(owner, method, noted)


def test_a_reader_that_fails_ends_the_link_and_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is raised: no memory is left for what comes, say."""

    def fails(*_: object) -> None:
        raise MemoryError("no memory is left")

    monkeypatch.setattr(incoming, "read_prefix", fails)
    with tcp() as (link, theirs):
        inbox = Inbox(link)
        inbox.ask()
        theirs.sendall(bytes(PREFIX))
        with pytest.raises(CollectiveError, match="no memory is left"):
            inbox.take()
        assert link.catch_up(TIMEOUT)


def test_a_callback_may_go_on_at_once(linked: Linked) -> None:
    with linked() as (a, b):
        left, over = 200, threading.Event()

        def ball(link: Link) -> None:
            link.receive(lambda header: [], lambda header, error: None if error else hit(link))

        def hit(link: Link) -> None:
            nonlocal left
            left -= 1
            if left <= 0:
                over.set()
            link.help(lambda: False, time.monotonic() + TIMEOUT)  # cannot wait here: it returns
            ball(link)
            link.send(b"", [], lambda error: None)

        ball(a)
        ball(b)
        a.send(b"", [], lambda error: None)
        assert over.wait(TIMEOUT)


def test_a_goodbye_comes_after_all_that_was_sent(linked: Linked) -> None:
    with linked(buffer=1 << 16) as (a, b):
        outbox, inbox = Outbox(a), Inbox(b)
        for number in range(20):
            outbox.put(bytes([number]) * 50_000)
        closing = threading.Thread(target=a.close, args=(TIMEOUT,))
        closing.start()
        for number in range(20):
            inbox.ask()
            assert inbox.take() == bytes([number]) * 50_000
        closing.join(TIMEOUT)
        inbox.ask()
        with pytest.raises(GroupClosed, match="has closed the link") as caught:
            inbox.take()
        assert caught.value.peer == A
        answer = Outbox(b)
        answer.put(b"too late")
        assert isinstance(answer.done.get(timeout=TIMEOUT), GroupClosed)
        late = Inbox(a)
        late.ask()
        with pytest.raises(GroupClosed, match="here"):
            late.take()
        outbox.put(b"too late")
        assert all(outbox.done.get(timeout=TIMEOUT) is None for _ in range(20))
        assert isinstance(outbox.done.get(timeout=TIMEOUT), GroupClosed)


def test_a_close_does_not_wait_for_ever(linked: Linked) -> None:
    with linked(buffer=1 << 16) as (a, _b):
        outbox = Outbox(a)
        for _ in range(50):
            outbox.put(bytes(1 << 20))
        a.close(0.2)
        assert isinstance([outbox.done.get(timeout=TIMEOUT) for _ in range(50)][-1], GroupClosed)


def test_a_failure_reaches_everything(linked: Linked) -> None:
    with linked(buffer=1 << 16) as (a, _b):
        outbox, inbox = Outbox(a), Inbox(a)
        for _ in range(10):
            outbox.put(bytes(1 << 20))
            inbox.ask()
        helped = threading.Thread(target=a.help, args=(lambda: inbox.got.qsize() == 10, time.monotonic() + TIMEOUT))
        helped.start()
        a.fail(PeerLost("it died", peer=B))
        a.fail(LinkBroken("later"))
        helped.join(TIMEOUT)
        assert not helped.is_alive()
        errors = [outbox.done.get(timeout=TIMEOUT) for _ in range(10)] + [inbox.got.get(timeout=TIMEOUT)[2] for _ in range(10)]
        assert {type(error) for error in errors if error is not None} == {PeerLost} and len([*filter(None, errors)]) >= 15


def test_what_a_lost_peer_had_sent_can_be_received(linked: Linked) -> None:
    with linked(buffer=1 << 16) as (a, b):
        inbox, outbox = Inbox(a), Outbox(b)
        for number in range(8):
            outbox.put(bytes([number]) * 20_000)
        eventually(lambda: a._in.paused, "three of them are kept, the rest waits")
        a.fail(PeerLost("it died", peer=B))
        a.fail(PeerLost("it died again", peer=B))
        sent = Outbox(a)
        sent.put(b"x")
        assert isinstance(sent.done.get(timeout=TIMEOUT), PeerLost)
        for number in range(8):
            inbox.ask()
            assert inbox.take() == bytes([number]) * 20_000
        inbox.ask()
        with pytest.raises(PeerLost, match=r"it died$"):
            inbox.take()


def test_who_closes_a_lost_link_has_enough(linked: Linked) -> None:
    with linked(buffer=1 << 16) as (a, b):
        outbox = Outbox(b)
        for _ in range(8):
            outbox.put(bytes(20_000))
        eventually(lambda: a._in.paused, "it waits")
        a.fail(PeerLost("it died", peer=B))
        assert a._loop._links, "somebody may still ask"  # type: ignore[attr-defined]
        a.close(1.0)
        eventually(lambda: not a._loop._links, "it is gone")  # type: ignore[attr-defined]


def test_a_dead_peers_last_bytes_are_waited_for_while_they_come(linked: Linked) -> None:
    """However long the machine takes from one to the next: it is looked again after each."""
    looks, ends = list[Callable[[], None]](), list[str]()
    with linked() as (a, b):
        inbox, outbox = Inbox(a), Outbox(b)
        lane = Lane("group", B, Terms(False, 1 << 20), lambda _: None, seal=False)
        assert lane.attach(a, Terms(False, 1 << 20))
        lane.lost(lambda _, look: looks.append(look), lambda: ends.append("end"))
        for number in range(3):
            outbox.put(bytes([number]))
            inbox.ask()
            assert inbox.take() == bytes([number])
            looks.pop()()
            assert not ends, "bytes came since it was looked last"
        looks.pop()()
        assert ends == ["end"] and not looks


def test_what_a_dead_peer_sent_is_received_though_its_stream_was_not_ready_here(linked: Linked) -> None:
    """It has said its last word, sent, and died, before the thread that reads here has come to that word."""
    looks = list[Callable[[], None]]()
    error = PeerLost("it died", peer=B)
    with linked() as (a, b):
        lane, theirs = (Lane("group", peer, Terms(False, 1 << 20), lambda _: None, seal=False) for peer in (B, A))
        assert theirs.attach(b, Terms(False, 1 << 20))
        wanted = lane.receive(Receive(lane, "recv", Sort.OBJECT, Classes()))
        sent = theirs.send(Sort.OBJECT, encode("the last", Classes()), "send")
        eventually(sent.done, "it is on its way")
        lane.lost(lambda _, look: looks.append(look), lambda: lane.end(error))
        assert not lane.over
        a.fail(error)
        assert lane.attach(a, Terms(False, 1 << 20))
        looks.pop()()
        assert lane.over is error
        assert wanted.finish(wanted.outcome.value) == "the last"


def test_a_death_is_heard_of_where_no_stream_was_ever_made() -> None:
    """Nor by any other lane: the first link is not what timers need."""
    loop, ended = LinkLoop(), threading.Event()
    lane = Lane("group", B, Terms(False, 1 << 20), lambda _: None, seal=False)
    try:
        lane.lost(loop.later, ended.set)
        assert ended.wait(TIMEOUT)
    finally:
        loop.close()
    loop.later(0.0, lambda: pytest.fail("it is closed"))
    unused = LinkLoop()
    unused.close()
    unused.later(0.0, lambda: pytest.fail("it is closed"))
    assert unused._thread is None


@pytest.mark.parametrize("ring", [True, False], ids=["ring", "tcp"])
def test_a_peer_that_says_nothing_for_long_is_no_broken_link(ring: bool) -> None:
    """From the first word on: its program may hold the interpreter, or the machine be busy. Its host answers."""
    timeout = 0.2
    with tcp(near=A, far=B, ring=ring, link_timeout=timeout) as (link, theirs):
        outbox = Outbox(link)
        outbox.put(b"early")
        time.sleep(6 * timeout)  # for as long nothing may happen
        late = LinkLoop(ring=ring)
        try:
            inbox = Inbox(late.connect(Stream(theirs, bytes(32), A, dialled=False, here=B)))
            inbox.ask()
            assert inbox.take() == b"early"
            assert link.path == ("ring" if ring else "tcp")
        finally:
            late.close()


@pytest.mark.parametrize("reset", [False, True])
def test_an_end_without_goodbye(reset: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as port:
        lives = Member("c" * 16, *port.getsockname())
        for peer, error in ((B, PeerLost), (lives, LinkBroken)):
            with tcp(far=peer) as (link, theirs):
                inbox = Inbox(link)
                inbox.ask()
                if reset:
                    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                began = time.monotonic()
                theirs.close()
                with pytest.raises(error):
                    inbox.take()
                assert time.monotonic() - began > 0.2, "the agreement has time to say more"


def test_a_refused_port_is_no_proof_where_a_firewall_may_refuse() -> None:
    with tcp(far=B, trust_refused=False, link_timeout=0.4) as (link, theirs):
        inbox = Inbox(link)
        inbox.ask()
        theirs.close()
        with pytest.raises(LinkBroken, match="port is refused, which is no proof with trust_refused=False"):
            inbox.take()


def test_a_question_that_the_kernel_connects_to_itself_is_answered_by_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may draw, as the asker's own port, the one that is asked."""

    def drawn(_address: object, _timeout: float) -> socket.socket:
        handle = socket.socket()
        handle.bind(("127.0.0.1", 0))
        handle.connect(handle.getsockname())
        return handle

    monkeypatch.setattr(socket, "create_connection", drawn)
    loop = LinkLoop()
    try:
        assert isinstance(verdict(B, EOFError("it ended"), threading.Event(), loop), PeerLost)
    finally:
        loop.close()


def test_an_end_that_nobody_can_ask_about_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "ftlib-link-ask":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with tcp(far=B) as (link, theirs):
        inbox = Inbox(link)
        inbox.ask()
        theirs.close()
        with pytest.raises(LinkBroken, match="whether it lives is not known: can't start new thread"):
            inbox.take()


@pytest.mark.parametrize("data", [os.urandom(100), b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", bytes(100)])
def test_a_peer_that_talks_nonsense(data: bytes) -> None:
    with tcp() as (link, theirs):
        inbox = Inbox(link)
        inbox.ask()
        theirs.sendall(data)
        with pytest.raises(LinkBroken, match="same release"):
            inbox.take()


def test_what_is_over_leaves_nothing() -> None:
    """No thread, no descriptor. What tests before this one have left may end meanwhile."""

    def open_files() -> set[tuple[str, str]]:
        found = set()
        for path in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # the one that lists them
                found.add((path.name, str(path.readlink())))
        return found

    first = open_files()
    loops = LinkLoop(), LinkLoop()
    link, _ = pair(*loops)
    link.close(TIMEOUT)
    eventually(lambda: not loops[0]._links and not loops[1]._links, "both ends are gone")
    files, threads = open_files(), set(threading.enumerate())
    for _ in range(20):
        a, b = pair(*loops)
        outbox, inbox = Outbox(a), Inbox(b)
        outbox.put(b"x")
        inbox.ask()
        assert inbox.take() == b"x"
        a.close(TIMEOUT)
    eventually(lambda: not loops[0]._links and not loops[1]._links, "all ends are gone")
    assert not open_files() - files and not set(threading.enumerate()) - threads
    for loop in loops:
        loop.close()
        loop.close()
    with pytest.raises(CollectiveError):
        loops[0].connect(Stream(socket.socket(), bytes(32), B, dialled=True, here=A))
    assert not open_files() - first


def test_a_header_has_a_bound(linked: Linked) -> None:
    with linked() as (a, _b), pytest.raises(ValueError, match="65536 are the most"):
        a.send(bytes(65537), [], lambda error: None)


def test_forked_children_keep_nothing_open(linked: Linked) -> None:
    with linked() as (a, b):
        inbox = Inbox(b)
        inbox.ask()
        read, write = os.pipe()
        child = os.fork()
        if not child:
            os.close(write)
            os.read(read, 1)  # until the test is over
            os._exit(0)
        os.close(read)
        try:
            a._socket.close()
            with pytest.raises((PeerLost, LinkBroken)):
                inbox.take()
        finally:
            os.close(write)
            os.waitpid(child, 0)


def test_the_order_of_threads(linked: Linked) -> None:
    """Many threads send at once: every message is whole, and those of one thread are in order."""
    with linked() as (a, b):
        inbox = Inbox(b)

        def send(number: int) -> None:
            for count in range(100):
                payload = b"%d %d " % (number, count) + bytes(random.Random(count).randrange(20_000))
                a.send(b"%d" % len(payload), [memoryview(payload)], lambda error: None)

        threads = [threading.Thread(target=send, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        found: dict[bytes, list[int]] = {}
        for _ in range(400):
            inbox.ask()
            number, count, rest = inbox.take().split(b" ", 2)
            assert rest == bytes(random.Random(int(count)).randrange(20_000))
            found.setdefault(number, []).append(int(count))
        assert all(counts == list(range(100)) for counts in found.values())


def test_memory_that_does_not_come_back_breaks_the_link(linked: Linked, monkeypatch: pytest.MonkeyPatch) -> None:
    """A callback waits, which it may not: whoever takes its memory back is told, and for whom it was."""
    monkeypatch.setattr(incoming, "_ASIDE", 0.2)
    held, free = threading.Event(), threading.Event()

    def hold(_header: bytes | None, _error: BaseException | None) -> None:
        held.set()
        free.wait(TIMEOUT)

    with linked() as (a, b):
        b.receive(lambda _header: [], hold)
        a.send(b"0", (), lambda _error: None)
        try:
            assert held.wait(TIMEOUT)
            b.redirect(lambda _header, _error: None, lambda: None)
            assert b.broken
            with pytest.raises(LinkBroken, match=r"a callback on the link to .*could not be taken back"):
                raise b._error or AssertionError
        finally:
            free.set()
