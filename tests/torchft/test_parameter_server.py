"""A parameter server and its clients, which are processes: sessions, deaths on either side, and who is let in."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch
from torch.distributed import TCPStore

from ftlib import ConfigError
from ftlib.errors import FTLibError
from ftlib.torchft.process_group import backends
from tests.harness.basics import TIMEOUT, eventually
from tests.harness.nursery import Nursery
from tests.harness.program import Program, clean
from tests.torchft.visitor import ADD, END, FAIL, Adding, add, ask

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
