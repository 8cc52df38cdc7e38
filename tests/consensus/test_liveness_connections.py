from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from consensus.config import PROTOCOL_VERSION
from consensus.member import Member, format_address
from consensus.runtime.net import liveness_connection
from consensus.runtime.net.liveness_connection import CHECK_TIMEOUT, Identity, LivenessConnections, ask
from tests.harness.basics import TIMEOUT, free_ports

from .fake_core import rig, until
from .peer import Peer, spawn

Verdict = tuple[str, bool | None, str]


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may take its time to answer; ``hurried`` is for what never does."""
    monkeypatch.setattr(liveness_connection, "CHECK_TIMEOUT", 60.0)


@pytest.fixture
def hurried(patience: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is meant."""
    monkeypatch.setattr(liveness_connection, "CHECK_TIMEOUT", CHECK_TIMEOUT)


@dataclass
class Watch:
    """Liveness connections whose verdicts are kept with their time."""

    liveness: LivenessConnections = field(init=False)
    verdicts: list[Verdict] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    listening: list[bool] = field(default_factory=list)
    """For each verdict: whether somebody accepted a connection, though nothing came of it."""

    def report(self, member_id: str, alive: bool | None, detail: str, listens: bool) -> None:
        self.verdicts.append((member_id, alive, detail))
        self.listening.append(listens)
        self.times.append(time.perf_counter())

    async def verdict(self, number: int = 1) -> Verdict:
        await until(lambda: len(self.verdicts) >= number)
        return self.verdicts[number - 1]


@asynccontextmanager
async def watch(*, trust_refused: bool = True) -> AsyncIterator[Watch]:
    watching = Watch()
    watching.liveness = LivenessConnections(watching.report, trust_refused=trust_refused)
    try:
        yield watching
    finally:
        await watching.liveness.close()


async def with_peer(**settings: Any) -> Peer:
    return await asyncio.to_thread(lambda: spawn(**settings))


def listens(address: tuple[str, int]) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(address) == 0


def free_address() -> tuple[str, int]:
    return "127.0.0.1", free_ports(1)[0]


@pytest.mark.process
async def test_a_killed_process_is_proven_dead_at_once() -> None:
    for _ in range(5):
        peer = await with_peer()
        async with watch() as seen:
            seen.liveness.keep([peer.member])
            assert (await seen.verdict())[:2] == (peer.member.id, True)
            await asyncio.sleep(0.05)
            assert len(seen.verdicts) == 1  # nothing is said while the connection holds
            peer.kill()
            assert (await seen.verdict(2))[:2] == (peer.member.id, False)
        peer.close()


@pytest.mark.process
async def test_a_forked_child_does_not_hide_its_parents_death() -> None:
    peer = await with_peer(fork=True)
    async with watch() as seen:
        seen.liveness.keep([peer.member])
        assert (await seen.verdict())[1] is True
        peer.kill()
        assert (await seen.verdict(2))[1:] == (False, f"connection refused at {peer.address}")
    peer.close()


@pytest.mark.process
async def test_a_process_that_was_replaced_at_its_address_is_dead() -> None:
    first = await with_peer()
    async with watch() as seen:
        first.close()
        await until(lambda: not listens(first.member.address))  # its agent ends by itself
        second = await with_peer(bind=first.address)
        seen.liveness.check(first.member)
        _, alive, detail = await seen.verdict()
        assert alive is False
        assert f"another lifetime ({second.member.id[:6]})" in detail
        seen.liveness.check(second.member)
        assert (await seen.verdict(2))[:2] == (second.member.id, True)
    second.close()


@pytest.mark.process
@pytest.mark.usefixtures("hurried")
async def test_a_stopped_process_is_undecided() -> None:
    peer = await with_peer()
    peer.pause()
    async with watch() as seen:
        began = time.perf_counter()
        seen.liveness.check(peer.member)
        assert (await seen.verdict())[1] is None
        assert time.perf_counter() - began > CHECK_TIMEOUT * 0.9
        assert seen.listening == [True], "its host accepts connections for it"
    peer.close()


async def test_refused_is_proof_only_where_it_is_trusted() -> None:
    gone = Member("a" * 16, *free_address())
    for trust, expected in ((True, False), (False, None)):
        async with watch(trust_refused=trust) as seen:
            seen.liveness.check(gone)
            assert await seen.verdict() == (
                gone.id,
                expected,
                f"connection refused at {format_address(gone.address)}",
            )


async def test_one_question_at_a_time() -> None:
    async with rig() as a, watch() as seen:
        for _ in range(5):
            seen.liveness.check(a.member)
        await seen.verdict()
        await asyncio.sleep(0.05)
        assert len(seen.verdicts) == 1
        seen.liveness.check(a.member)
        assert (await seen.verdict(2))[1] is True


async def test_nothing_is_said_after_letting_go() -> None:
    async with watch() as seen:
        async with rig() as a:
            seen.liveness.keep([a.member])
            await seen.verdict()
            seen.liveness.keep([])
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.05)
        assert len(seen.verdicts) == 1


async def test_a_broken_connection_to_a_living_member_is_renewed() -> None:
    async with rig() as a, watch() as seen:
        seen.liveness.keep([a.member])
        await seen.verdict()
        web = a.agent._web.server._web
        assert web is not None
        for connection in list(web.connections):
            connection.transport.abort()
        assert (await seen.verdict(2))[1] is True
        await until(lambda: len(seen.verdicts) >= 3)  # held again
        assert all(alive for _, alive, _ in seen.verdicts)
        await until(lambda: len(web.connections) >= 1)


@asynccontextmanager
async def answering(behaviour: Callable[[socket.socket, int], None]) -> AsyncIterator[Member]:
    """A listener whose n-th connection is handed to ``behaviour`` on a thread; it ends by closing the listener."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(TIMEOUT)

    def serve() -> None:
        number = 0
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                try:
                    behaviour(connection, number)
                except StopIteration:
                    listener.close()
                    return
                except OSError:
                    pass
            number += 1

    task = asyncio.create_task(asyncio.to_thread(serve))
    try:
        yield Member("a" * 16, *listener.getsockname())
    finally:
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        await task


async def test_a_dying_listener_is_asked_again_until_it_is_refused() -> None:
    def dying(connection: socket.socket, number: int) -> None:
        if number == 4:
            raise StopIteration

    async with answering(dying) as member, watch() as seen:
        seen.liveness.check(member)
        assert (await seen.verdict())[1] is False


@pytest.mark.usefixtures("hurried")
async def test_a_listener_that_closes_everything_is_undecided_within_the_bound() -> None:
    async with answering(lambda connection, number: None) as member, watch() as seen:
        seen.liveness.check(member)
        _, alive, detail = await seen.verdict()
        assert alive is None
        assert "closes them" in detail


@pytest.mark.parametrize(
    "answer",
    [b"SSH-2.0-OpenSSH_9\r\n\r\n", b"HTTP/1.1 502 Bad Gateway\r\nServer: x\r\n\r\n", b"\xff" * 6000, b"\r\n\r\n"],
)
async def test_something_else_at_the_address_is_undecided(answer: bytes) -> None:
    def other(connection: socket.socket, number: int) -> None:
        connection.recv(1000)
        connection.sendall(answer)

    async with answering(other) as member, watch() as seen:
        seen.liveness.check(member)
        _, alive, detail = await seen.verdict()
        assert alive is None
        assert "something else" in detail


async def test_who_is_there() -> None:
    async with rig("b" * 16, job="a job: ü") as a:
        answer, sock = await ask(a.member.address)
        sock.close()
        assert answer == Identity("b" * 16, "a job: ü", PROTOCOL_VERSION, format_address(a.member.address))


async def test_a_version_of_thousands_of_digits_is_none() -> None:
    def endless(connection: socket.socket, number: int) -> None:
        connection.recv(1000)
        head = b"HTTP/1.1 204 No Content\r\nX-Ftlib-Member: a\r\nX-Ftlib-Version: " + b"7" * 5000
        connection.sendall(head + b"\r\n\r\n")

    async with answering(endless) as member:
        answer, sock = await ask(member.address)
        sock.close()
        assert answer == Identity("a", "", 0, "")


async def test_a_connection_that_never_lasts_is_no_busy_loop() -> None:
    head = b"HTTP/1.1 200 OK\r\nX-Ftlib-Member: " + b"a" * 16 + b"\r\n\r\n"
    count = 0

    def flighty(connection: socket.socket, number: int) -> None:
        nonlocal count
        count += 1
        connection.recv(1000)
        connection.sendall(head)

    async with answering(flighty) as member, watch() as seen:
        began = time.perf_counter()
        seen.liveness.keep([member])
        await seen.verdict(2)
        await asyncio.sleep(0.5)
        most = 10 * max(1.0, (time.perf_counter() - began) / 0.5)  # on a busy machine a sleep is longer
        assert len(seen.verdicts) <= most
        assert count <= most
        assert all(alive for _, alive, _ in seen.verdicts)
