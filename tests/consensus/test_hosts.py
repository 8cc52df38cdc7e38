"""Both ends of an agent in a process of its own, without that process: what fails in one order or request ends no other."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import pickle
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from consensus import Config, ConsensusError, Member
from consensus.border import Stopped
from consensus.runtime.host.child import Child
from consensus.runtime.host.exchange import Failed, Serve, Setup, Started
from consensus.runtime.host.handoff import Handoff
from consensus.runtime.host.parent_watcher import ParentWatcher
from consensus.runtime.host.pipe import Pipe
from consensus.runtime.host.process_host import ProcessHost
from consensus.runtime.host.progress_cell import ProgressCell
from consensus.runtime.net.names import Introducers
from consensus.runtime.net.sockets import open_pair
from consensus.runtime.net.sources import Request, Sources
from tests.harness.basics import TIMEOUT

from .fake_core import until


def served(answer: Callable[[socket.socket], None]) -> bytes:
    """All that comes back on a connection that is handed to ``answer``."""
    near, far = socket.socketpair()
    with near:
        near.settimeout(TIMEOUT)
        answer(far)
        return all_of(near)


def test_too_many_threads_are_refused_and_cost_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    sources = Sources()
    sources.serve("/state", lambda query: iter([b"state"]))

    def full(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", full)
        for _ in range(40):  # more than there is room
            answer = served(lambda far: sources.answer(far, Request("/state", {})))
            assert answer.startswith(b"HTTP/1.1 503") and b"can't start new thread" in answer
    assert b"state" in served(lambda far: sources.answer(far, Request("/state", {})))


def test_a_request_that_fails_is_not_the_last(caplog: pytest.LogCaptureFixture) -> None:
    host = ProcessHost()
    host.serve("/state", lambda query: iter([b"state"]))
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def hand_over(data: bytes) -> Callable[[socket.socket], None]:
        def send(far: socket.socket) -> None:
            with far:
                socket.send_fds(theirs, [data], [far.fileno()])

        return send

    with ours:
        thread = threading.Thread(target=host._answer_handoffs, args=(ours,), daemon=True)
        thread.start()
        with theirs:
            assert served(hand_over(b"no pickle")) == b""
            assert b"state" in served(hand_over(pickle.dumps(Request("/state", {}))))
        thread.join(TIMEOUT)
        assert not thread.is_alive()
    assert "could not be answered" in caplog.text


async def test_requests_wait_while_the_training_process_takes_none_and_no_more_than_have_room() -> None:
    """It holds the interpreter's lock, say. None is closed without an answer."""
    host = ProcessHost()
    host.serve("/state", lambda query: iter([query["number"].encode()]))
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    theirs.setblocking(False)
    refused: list[Request] = []
    handoff = Handoff(theirs, refused.append)
    clients = []
    for number in range(600):
        near, far = socket.socketpair()
        near.settimeout(TIMEOUT)
        clients.append(near)
        handoff.give(far, Request("/state", {"number": f"<{number}>"}))
    waiting = len(list(handoff.descriptors()))
    assert waiting and refused, "more than there is room"
    served = len(clients) - len(refused)
    thread = threading.Thread(target=host._answer_handoffs, args=(ours,), daemon=True)
    with ours:
        thread.start()
        for number, client in enumerate(clients):
            answer = await asyncio.to_thread(all_of, client)
            if number < served:
                assert answer.startswith(b"HTTP/1.1 503 ") or f"<{number}>".encode() in answer  # it has few threads, too
            else:
                assert answer.startswith(b"HTTP/1.1 503 ") and b"this process does not answer for now" in answer
        assert not list(handoff.descriptors())
        theirs.close()
        await asyncio.to_thread(thread.join, TIMEOUT)


async def test_requests_that_wait_are_closed_at_the_end() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    theirs.setblocking(False)
    handoff = Handoff(theirs, lambda request: None)
    with ours, theirs, contextlib.ExitStack() as clients:
        while not handoff.descriptors():
            near, far = socket.socketpair()
            clients.enter_context(near).settimeout(TIMEOUT)
            handoff.give(far, Request("/state", {}))
        handoff.close()
        assert not handoff.descriptors() and near.recv(1) == b""


def all_of(client: socket.socket) -> bytes:
    """All that comes."""
    with client:
        data = b""
        while piece := client.recv(65536):
            data += piece
        return data


@pytest.mark.parametrize(("number", "name"), [(signal.SIGKILL, "SIGKILL"), (40, "signal 40")])
def test_how_it_ended_is_said_for_every_signal(number: int, name: str) -> None:
    host = ProcessHost()
    host._process = subprocess.Popen(["sleep", "60"])
    host._process.send_signal(number)
    assert host._exit() == f"killed by {name}"


@pytest.fixture
def quiet_root() -> Iterator[None]:
    """The child takes over its process's logging."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def conversation(setup: bool, *orders: object, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What a child says to these orders, until it has said why it failed; it must not end by itself."""
    exits: list[int] = []
    monkeypatch.setattr(os, "_exit", exits.append)
    said: list[Any] = []

    async def main() -> None:
        near, far = socket.socketpair()
        near.settimeout(TIMEOUT)
        pipe = Pipe(near)
        pair = open_pair(Config())
        handoff, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        member = Member("a" * 16, *pair.advertised)
        socket.send_fds(other, [b"\0"], [pair.udp.fileno(), pair.tcp.fileno()])
        pair.close()
        child = Child(handoff, ProgressCell().read, ParentWatcher(os.getpid()))
        if not setup:
            handoff.close()
        await child._pipe.open(far)
        pipe.send(Setup(Config(), member, Introducers(), pair.advertised, frozenset(), logging.INFO))
        with other:
            while not any(isinstance(each, (Failed, Stopped)) for each in said):
                said.extend(await asyncio.to_thread(pipe.receive))
                if said[-1] == Started():
                    for order in orders:
                        pipe.send(order)
        assert not exits
        if child.agent is not None:
            await child.agent.close()
        child.close()
        pipe.close()
        await until(lambda: exits)
        assert exits == [0], "now it has lost its training process"

    asyncio.run(main())
    return said


@pytest.mark.usefixtures("quiet_root")
def test_a_setup_that_fails_is_raised_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    *_, failed = conversation(False, monkeypatch=monkeypatch)
    assert isinstance(failed, Failed) and type(failed.error) is ConsensusError
    assert "could not be started: OSError: [Errno 9]" in str(failed.error)


@pytest.mark.usefixtures("quiet_root")
def test_an_order_that_fails_ends_the_lifetime_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    said = conversation(True, Serve([]), monkeypatch=monkeypatch)  # type: ignore[arg-type]
    [error] = [each.error for each in said if isinstance(each, Stopped)]
    assert "could not carry out 'Serve': TypeError" in str(error)
    assert "training process" not in str(error)
    assert any(isinstance(each, logging.LogRecord) and "could not carry out" in each.getMessage() for each in said)
