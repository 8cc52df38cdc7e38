"""A parameter server and its clients, which are processes: sessions, deaths on either side, and who is let in."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch
from torch.distributed import TCPStore

from ftlib import ConfigError
from ftlib.errors import FTLibError
from ftlib.torchft import parameter_server
from ftlib.torchft.process_group import backends
from tests.harness.basics import TIMEOUT, eventually
from tests.harness.nursery import Nursery
from tests.harness.program import Program, clean
from tests.torchft.visitor import ADD, CLOSE, COMPUTE, END, FAIL, Adding, add, ask

SECRET, ANOTHER = "the secret of this job", "the secret of another job"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Adding]:
    monkeypatch.setenv("FTLIB_SECRET", SECRET)
    with Adding() as server:
        yield server


def client(nursery: Nursery, where: Path, server: Adding, deed: str) -> Program:
    where.mkdir(exist_ok=True)
    return Program(nursery, where, "-m", "tests.torchft.visitor", server.address(), deed, env=clean(FTLIB_SECRET=SECRET))


def over(server: Adding) -> None:
    """Its only session ends, and nothing is left of it."""
    eventually(lambda: not server.sessions, "the session ends")
    eventually(lambda: not serving(), "and its thread")


def serving() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "ftlib-session"]


def test_a_session(server: Adding) -> None:
    pg = Adding.new_session(server.address())
    assert (pg.rank(), pg.size()) == (1, 2)
    assert add(pg, 2.0) == 2.0
    assert add(pg, 3.0) == 5.0
    assert server.sessions == 1
    ask(pg, END)
    eventually(lambda: server.ended == [""], "it has returned")
    eventually(lambda: not server.sessions, "and has ended")
    with pytest.raises(RuntimeError):
        add(pg, 1.0)
    pg.shutdown()


@pytest.mark.process
def test_many_clients_at_once(nursery: Nursery, tmp_path: Path, server: Adding) -> None:
    clients = [client(nursery, tmp_path / str(number), server, "work") for number in range(4)]
    for each in clients:
        with each:
            assert each.wait(TIMEOUT) == 0, each.stderr
            assert each.stdout == "done\n"
    assert server.total[0].item() == 80.0
    eventually(lambda: not server.sessions, "all have ended")
    assert server.ended == [""] * 4


@pytest.mark.process
def test_a_client_dies_and_its_session_ends(nursery: Nursery, tmp_path: Path, server: Adding) -> None:
    other = Adding.new_session(server.address())
    add(other, 1.0)
    with client(nursery, tmp_path, server, "stay") as program:
        eventually(lambda: program.stdout.startswith("2.0"), "it is in")
        assert server.sessions == 2
        program.kill()
        took = eventually(lambda: server.sessions == 1, "its session ends")
        took += eventually(lambda: len(serving()) == 1, "and its thread")
        assert took < 2.0, "it waits for something else than the end of the connection"  # measured by the benchmark: 0.2 s
        assert server.ended == ["DistBackendError"]
    assert add(other, 1.0) == 3.0, "the other one goes on"
    other.shutdown()
    over(server)


@pytest.mark.process
def test_a_client_dies_before_it_has_connected(nursery: Nursery, tmp_path: Path, server: Adding) -> None:
    with client(nursery, tmp_path, server, "vanish") as program:
        program.wait(TIMEOUT)
        assert program.stdout == "in\n", program.stderr
    over(server)
    assert server.ended == [], "there was no session to serve"
    assert add(Adding.new_session(server.address()), 1.0) == 1.0


@pytest.mark.parametrize("count", [80, pytest.param(200, marks=pytest.mark.soak)])
def test_sessions_that_are_over_leave_nothing(server: Adding, count: int) -> None:
    process, grown = psutil.Process(), []
    for number in range(1, count + 1):
        pg = Adding.new_session(server.address())
        add(pg, 1.0)
        ask(pg, END)
        pg.shutdown()
        if number * 2 >= count:
            over(server)
            met = next(store for (name, _), (framework, store) in backends._shared._started.items() if name == "gloo")
            client = TCPStore("127.0.0.1", int(met.rpartition(":")[2]), is_master=False, wait_for_workers=False)
            grown.append((len(server._store.list_keys()), len(client.list_keys()), process.memory_info().rss))
    own, groups, memory = zip(*grown, strict=True)
    assert max(own) == 0
    assert max(groups) < 150, "those of the last sessions"
    assert memory[-1] - memory[0] < 20 << 20


def test_a_session_that_raises_ends_alone(server: Adding) -> None:
    one, other = (Adding.new_session(server.address()) for _ in range(2))
    ask(one, FAIL)
    with pytest.raises(RuntimeError):
        add(one, 1.0)
    assert add(other, 1.0) == 1.0
    eventually(lambda: server.sessions == 1, "its session has ended")
    assert server.ended == ["ZeroDivisionError"]


def test_the_end_of_the_server_is_the_end_of_all(server: Adding) -> None:
    pg = Adding.new_session(server.address())
    failures: list[BaseException] = []

    def wait() -> None:
        try:
            pg.recv([torch.zeros(1)], 0, 7).wait()
        except RuntimeError as error:
            failures.append(error)

    asked = threading.Thread(target=wait)
    asked.start()
    server.shutdown()
    asked.join(TIMEOUT)
    assert failures
    with pytest.raises(FTLibError, match="no parameter server answers at"):
        Adding.new_session(server.address())
    server.shutdown()


def test_a_session_may_end_the_server(server: Adding) -> None:
    others = [Adding.new_session(server.address()) for _ in range(2)]
    ask(Adding.new_session(server.address()), CLOSE)
    eventually(lambda: len(server.ended) == 3, "all have ended")
    assert server.ended.count("") == 1 and server._store is None
    for each in others:
        with pytest.raises(RuntimeError):
            add(each, 1.0)


def test_sessions_that_compute_are_waited_for_together(server: Adding, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parameter_server, "_END", 0.5)
    busy = [Adding.new_session(server.address()) for _ in range(3)]
    for each in busy:
        ask(each, COMPUTE)
    eventually(lambda: server.computing == 3, "all compute")
    began = time.monotonic()
    server.shutdown()
    assert 0.4 < time.monotonic() - began < 1.2
    server.go_on.set()
    eventually(lambda: not serving(), "they end by themselves")


def test_a_session_that_fails_after_its_client_has_gone_is_in_the_log(server: Adding, caplog: pytest.LogCaptureFixture) -> None:
    pg = Adding.new_session(server.address())
    with caplog.at_level(logging.WARNING, "ftlib"):
        ask(pg, COMPUTE)
        eventually(lambda: server.computing == 1, "it computes")
        (session,) = server._sessions.values()
        del pg
        eventually(lambda: session.why == "the client is gone", "the server has heard of it")
        server.fails = True
        server.go_on.set()
        over(server)
    (record,) = caplog.records
    assert "failed: ZeroDivisionError" in record.getMessage() and record.exc_info


def test_a_visitor_for_whom_there_is_no_thread_is_turned_away(server: Adding, monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "ftlib-session":
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        for _ in range(80):  # more than there are places for strangers
            with socket.create_connection(("127.0.0.1", server.port)) as visitor:
                visitor.settimeout(TIMEOUT)
                assert visitor.recv(1) == b""
    assert add(Adding.new_session(server.address()), 1.0) == 1.0


@pytest.mark.process
def test_a_server_without_descriptors_rests_until_it_has_some(nursery: Nursery, tmp_path: Path) -> None:
    with Program(nursery, tmp_path, "-m", "tests.torchft.exhausted", env=clean(FTLIB_SECRET=SECRET)) as program:
        assert program.wait(TIMEOUT) == 0, program.stderr
        assert program.stdout == "served\n"
        assert "no visitor can come in for now" in program.stderr


@pytest.mark.parametrize("secret", [ANOTHER, None])
def test_who_does_not_know_the_secret_is_refused(server: Adding, monkeypatch: pytest.MonkeyPatch, secret: str | None) -> None:
    if secret is None:
        monkeypatch.delenv("FTLIB_SECRET")
    else:
        monkeypatch.setenv("FTLIB_SECRET", secret)
    with pytest.raises(FTLibError, match="secret"):
        Adding.new_session(server.address())
    eventually(lambda: server.refused == 1, "it is counted")
    eventually(lambda: not server.sessions, "and has no session")
    monkeypatch.setenv("FTLIB_SECRET", SECRET)
    assert add(Adding.new_session(server.address()), 1.0) == 1.0


def test_a_server_without_a_secret_listens_here_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FTLIB_SECRET", raising=False)
    with Adding() as server:
        assert server.address().startswith("http://127.0.0.1:")
        assert server._listener.getsockname()[0] == "127.0.0.1"
        assert add(Adding.new_session(server.address()), 1.0) == 1.0
        monkeypatch.setenv("FTLIB_SECRET", SECRET)
        with pytest.raises(FTLibError, match="has no secret"):
            Adding.new_session(server.address())


def test_strangers_take_no_place_for_long(server: Adding) -> None:
    """More than there are places for, which say nothing: those in excess are closed at once, the others after a while."""
    port = server.port
    strangers = [socket.create_connection(("127.0.0.1", port)) for _ in range(80)]
    try:
        for stranger in strangers:
            stranger.settimeout(TIMEOUT)
            assert stranger.recv(1) == b""
    finally:
        for stranger in strangers:
            stranger.close()
    assert add(Adding.new_session(server.address()), 1.0) == 1.0


@pytest.mark.parametrize(
    "said", [b"GET / HTTP/1.1\r\n\r\n", b"nonsense\r\n\r\n", b"x" * 5000, b"POST /new_session HTTP/1.1\r\n\r\n"]
)
def test_nonsense_is_no_session(server: Adding, said: bytes) -> None:
    port = server.port
    with socket.create_connection(("127.0.0.1", port)) as stranger:
        stranger.settimeout(TIMEOUT)
        stranger.sendall(said)
        answer = b""
        with contextlib.suppress(ConnectionResetError):  # it has left some of it unread
            while data := stranger.recv(4096):
                answer += data
        assert not answer or answer.startswith(b"HTTP/1.1 401")
        assert len(answer) <= 100
    assert server.sessions == 0


def test_what_it_cannot_use(server: Adding) -> None:
    assert ADD == 0.0
    with pytest.raises(ConfigError, match="no address of a parameter server"):
        Adding.new_session("http://nowhere")
    with pytest.raises(ConfigError, match=r"port=.*cannot listen there"):
        type("Twice", (Adding,), {"__init__": lambda self: super(Adding, self).__init__(server.port)})()
