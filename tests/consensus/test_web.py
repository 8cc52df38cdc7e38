"""The agent's HTTP side comes up beside its start: what needs it waits, and what does not goes on."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from consensus import Config, ConfigError, Gossip, Home, Member, View
from consensus.border import Stopped
from consensus.messages import Accepted, Message, Nack
from consensus.protocol.state.effects import Send
from consensus.protocol.state.inputs import Died
from consensus.runtime.net import web
from consensus.runtime.net.authenticator import Authenticator
from consensus.runtime.net.early_acceptor import EarlyAcceptor
from consensus.runtime.net.http import HttpServer
from consensus.runtime.net.liveness_connection import ask
from tests.harness.basics import TIMEOUT, around, eventually

from .fake_core import Rig, rig, until

BIG = Accepted(1, "parent", (0, "a"), bytes(300_000))
"""Too large for a datagram."""


def imported(statement: str) -> set[str]:
    """The packages that come with it, in a new interpreter."""
    code = f"{statement}; import sys; print(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize("module", ["child", "process_host"])
def test_no_http_library_is_waited_for(module: str) -> None:
    found = imported(f"import consensus.runtime.host.{module}")
    assert "consensus" in found
    assert not found & {"aiohttp", "torch", "prometheus_client", "email"}


def test_metrics_are_shown_where_tls_was_spared() -> None:
    """Their library imports it, in the agents that the others have started without."""
    status = "{'job': 'j', 'member': 'm', 'acting': True, 'epoch': 1}"
    shown = f"from consensus.runtime.net.metrics import render; assert render({status})"
    found = imported(f"import sys; sys.modules['ssl'] = None; from consensus.runtime.net.web import load; load(); {shown}")
    assert "prometheus_client" in found


def test_an_agent_uses_no_other_http_client() -> None:
    """It is imported anew, with TLS, where metrics are shown: whoever had the one before would not know its exceptions."""
    load = "from consensus.runtime.host import child; from consensus.runtime.net import web; web.load()"
    code = f"{load}; import sys; print('consensus.tools.client' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "False"


async def test_datagrams_are_answered_before_and_the_rest_afterwards() -> None:
    released = threading.Event()

    def prepare() -> None:
        assert released.wait(TIMEOUT)
        web.load()

    async with rig("b" * 16) as b, rig("a" * 16, load_http=prepare) as a:
        asked = asyncio.create_task(_status(a.member.port))
        a.ask(Send(b.member.address, BIG), Send(b.member.address, Nack(1)))
        await until(lambda: b.core.named("receive"))
        assert received(b) == [Nack(1)] and not asked.done()
        released.set()
        await until(lambda: len(received(b)) == 2)
        assert received(b) == [Nack(1), BIG]
        assert await asked == 200


def received(rig: Rig) -> list[Message]:
    return [message for _, _, _, message in rig.core.named("receive")]


async def _status(port: int) -> int:
    limit = aiohttp.ClientTimeout(total=TIMEOUT)
    async with aiohttp.ClientSession(timeout=limit) as session, session.get(f"http://127.0.0.1:{port}/status") as response:
        return response.status


async def test_an_agent_that_ends_before_refuses_connections() -> None:
    released = threading.Event()

    def prepare() -> None:
        released.wait(TIMEOUT)

    async with rig(load_http=prepare) as a:
        address = a.member.address
    released.set()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address, timeout=TIMEOUT)


async def test_without_http_a_lifetime_ends() -> None:
    def broken() -> None:
        raise ModuleNotFoundError("No module named 'aiohttp'")

    async with rig(load_http=broken) as a:
        await until(lambda: a.core.told(Died))
        [died] = a.core.told(Died)
        assert died.detail == "the agent cannot answer HTTP: ModuleNotFoundError: No module named 'aiohttp'"
        assert any(isinstance(order, Stopped) for order in a.plane.orders)


async def test_a_check_waits_for_a_moment_and_a_question_does_not() -> None:
    loop = asyncio.get_running_loop()
    came: list[bool] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        acceptor = EarlyAcceptor(listening, came.append)
        acceptor.open()
        address = listening.getsockname()
        with contextlib.ExitStack() as stack:
            for text in (b"GET /tether HTTP/1.1\r\n", b"GET /identity HTTP/1.1\r\n", b"GET /status HTTP/1.1\r\n", b"POST "):
                sock = stack.enter_context(socket.create_connection(address, timeout=TIMEOUT))
                count = len(came)
                sock.sendall(text)
                await until(lambda count=count: len(came) > count)  # type: ignore[misc]
            socket.create_connection(address, timeout=TIMEOUT).close()  # wants nothing any more
            stack.enter_context(socket.create_connection(address, timeout=TIMEOUT))  # has not said yet
            await until(lambda: len(acceptor._kept) == 5)
            assert came == [True, True, False, False]
            kept = acceptor.close()
            assert not acceptor.close()
            assert await loop.sock_recv(kept[0], 100) == b"GET /tether HTTP/1.1\r\n"
            for connection in kept:
                connection.close()


async def test_a_crowd_is_served_at_once() -> None:
    came: list[bool] = []
    with socket.create_server(("127.0.0.1", 0), backlog=200) as listening, contextlib.ExitStack() as stack:
        listening.setblocking(False)
        acceptor = EarlyAcceptor(listening, came.append)
        acceptor.open()
        for _ in range(70):
            stack.enter_context(socket.create_connection(listening.getsockname(), timeout=TIMEOUT))
        await until(lambda: came)
        kept = acceptor.close()
        assert came == [False] and len(kept) == 64
        for connection in kept:
            connection.close()


async def test_a_joiner_imports_nothing_until_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "_SPARED", TIMEOUT)
    loads: list[float] = []

    def prepare() -> None:
        loads.append(time.monotonic())
        web.load()

    other = Member("c" * 16, "127.0.0.1", 1)
    async with rig(load_http=prepare, known=View(3, "v", (other,))) as joiner:
        await asyncio.sleep(0.05)  # nothing tells of what does not happen
        assert not loads
        assert await _status(joiner.member.port) == 200
        assert await _status(joiner.member.port) == 200  # the server accepts now
        assert len(loads) == 1
    async with rig(load_http=prepare, known=View(3, "v", (other,))) as joiner:
        begun = time.monotonic()
        answer, sock = await ask(joiner.member.address, "/tether")
        sock.close()
        assert answer is not None and answer.member_id == joiner.member.id
        assert loads[1] - begun > 0.1
    async with rig(load_http=prepare):  # who knows of none
        await until(lambda: len(loads) == 3)


async def test_a_forked_child_keeps_no_connection_open_that_waits() -> None:
    came = asyncio.Event()
    with socket.create_server(("127.0.0.1", 0)) as door:
        door.setblocking(False)
        acceptor = EarlyAcceptor(door, lambda _patient: came.set())
        acceptor.open()
        reader, writer = await asyncio.open_connection(*door.getsockname())
        writer.write(b"GET /tether HTTP/1.1\r\n")
        await came.wait()
        waits, ends = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(ends)
            os.read(waits, 1)  # until the parent closes it
            os._exit(0)
        try:
            for connection in acceptor.close():
                connection.close()
            with contextlib.suppress(ConnectionResetError):  # what it wrote was not read
                assert await asyncio.wait_for(reader.read(), TIMEOUT) == b""
        finally:
            os.close(ends)
            os.close(waits)
            await asyncio.to_thread(os.waitpid, pid, 0)
            writer.close()


def test_whoever_forks_waits_for_an_import(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def slowly(_name: str) -> None:
        begun.set()
        go_on.wait(TIMEOUT)
        ended.set()

    monkeypatch.setattr(web.importlib, "import_module", slowly)
    thread = threading.Thread(target=web.load)
    thread.start()
    begun.wait(TIMEOUT)
    threading.Timer(0.05, go_on.set).start()
    pid = os.fork()
    if pid == 0:
        os._exit(0 if ended.is_set() else 1)
    thread.join()
    assert os.waitpid(pid, 0)[1] == 0


@pytest.mark.process
def test_what_was_only_bound_is_given_back() -> None:
    member = Gossip(Config(job="test"))
    member.bind()
    place = member._begun
    assert place is not None
    pid = place.pid  # type: ignore[attr-defined]
    assert Path(f"/proc/{pid}").exists()
    member.stop()
    eventually(lambda: not Path(f"/proc/{pid}").exists(), "its agent's process is gone")


@pytest.mark.process
def test_no_process_is_left_where_nothing_can_be_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[int] = []

    @around(monkeypatch, subprocess, "Popen")
    def noted(popen: Any, *args: object, **options: object) -> subprocess.Popen[bytes]:
        begun.append((process := popen(*args, **options)).pid)  # type: ignore[call-overload]
        return process  # type: ignore[no-any-return]

    with socket.create_server(("127.0.0.1", 0)) as taken:
        member = Gossip(Config(job="test", agent=Home.PROCESS, bind=f"127.0.0.1:{taken.getsockname()[1]}"))
        with pytest.raises(ConfigError, match="in use"):
            member.bind()
    [pid] = begun
    eventually(lambda: not Path(f"/proc/{pid}").exists(), "its agent's process is gone")


@pytest.mark.parametrize("turns", range(12))
async def test_no_connection_is_lost_where_the_server_closes_as_it_opens(turns: int) -> None:
    """However far it has come: all are closed at this end, so that who came reads the end."""
    with socket.create_server(("127.0.0.1", 0)) as listener, listener.dup() as served:
        listener.setblocking(False)
        visitors, accepted = [], []
        for _ in range(4):
            visitors.append(socket.create_connection(listener.getsockname()))
            connection, _ = await asyncio.get_running_loop().sock_accept(listener)
            accepted.append(connection)
        server = HttpServer(Authenticator(None, Member("a" * 16, "127.0.0.1", 1), "test"), *[None] * 6)  # type: ignore[list-item]
        opening = asyncio.create_task(server.open(served, accepted))
        for _ in range(turns):
            await asyncio.sleep(0)
        await asyncio.wait_for(server.close(), TIMEOUT)
        await opening
        await server.close()
        await asyncio.sleep(0)
        assert all(connection.fileno() == -1 for connection in accepted)
        for visitor in visitors:
            visitor.settimeout(TIMEOUT)
            assert visitor.recv(1) == b""
            visitor.close()
