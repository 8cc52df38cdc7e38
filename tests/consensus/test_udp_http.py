from __future__ import annotations

import asyncio
import contextlib
import io
import json
import logging
import os
import socket
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import aiohttp
import aiohttp.web
import pytest

from consensus.config import Config
from consensus.errors import ConfigError, RefusalError
from consensus.member import Member, format_address
from consensus.messages import Accepted, Envelope, Nack
from consensus.protocol.state.effects import Fence, Send
from consensus.protocol.state.inputs import Accusation
from consensus.runtime.net.http import HttpClient
from consensus.runtime.net.names import numeric, resolve_all
from consensus.runtime.net.sockets import SocketPair, open_pair
from consensus.runtime.net.sources import Request, Sources
from consensus.runtime.net.udp import fits
from consensus.wire.codec import Codec
from tests.harness.basics import TIMEOUT, around

from .fake_core import Rig, rig, until


@pytest.fixture(autouse=True)
def no_name_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unknown names fail at once, instead of after the resolver's timeouts."""

    @around(monkeypatch, socket, "getaddrinfo")
    def getaddrinfo(real: Any, host: str, *args: Any, **kwargs: Any) -> Any:
        if host.endswith(".invalid"):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return real(host, *args, **kwargs)


def opened(**settings: object) -> SocketPair:
    return open_pair(Config(**settings))  # type: ignore[arg-type]


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as sock:
            sock.bind(("::1", 0))
    except OSError:
        return False
    return True


class TestBinding:
    def test_one_port_for_both(self) -> None:
        pair = opened()
        assert pair.tcp.getsockname() == pair.udp.getsockname() == pair.advertised
        pair.close()

    @pytest.mark.skipif(not has_ipv6(), reason="no IPv6 here")
    def test_ipv6(self) -> None:
        pair = opened(bind="[::1]:0")
        assert pair.advertised[0] == "::1"
        assert pair.tcp.getsockname()[1] == pair.udp.getsockname()[1] == pair.advertised[1]
        pair.close()

    @pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM])
    def test_a_given_port_in_use_is_said(self, kind: socket.SocketKind) -> None:
        with socket.socket(socket.AF_INET, kind) as other:
            other.bind(("127.0.0.1", 0))
            if kind == socket.SOCK_STREAM:
                other.listen()
            port = other.getsockname()[1]
            with pytest.raises(ConfigError, match=f"{port}: the port is in use"):
                opened(bind=f"127.0.0.1:{port}")

    def test_a_port_is_free_again_after_its_owner(self) -> None:
        first = opened()
        client = socket.create_connection(first.advertised)
        accepted, _ = first.tcp.accept()
        accepted.close()
        first.close()
        client.close()
        again = opened(bind=format_address(first.advertised))
        assert again.advertised == first.advertised
        again.close()

    @pytest.mark.parametrize("bind", ["203.0.113.7:0", "no-such-host.invalid:0"])
    def test_an_address_of_another_host_is_said(self, bind: str) -> None:
        with pytest.raises(ConfigError, match=bind):
            opened(bind=bind)

    def test_advertise(self) -> None:
        pair = opened(advertise="example.org:0")
        assert pair.advertised == ("example.org", pair.tcp.getsockname()[1])
        pair.close()
        pair = opened(advertise="example.org:7000")
        assert pair.advertised == ("example.org", 7000)
        pair.close()

    def test_a_wildcard_advertises_the_interface_that_leads_to_the_introducers(self) -> None:
        config = Config(bind="0.0.0.0:0")
        pair = open_pair(config, [("127.0.0.1", 7000)])
        assert pair.advertised == ("127.0.0.1", pair.tcp.getsockname()[1])
        pair.close()

    def test_inherited_descriptors(self) -> None:
        given = opened()
        fds = (os.dup(given.udp.fileno()), os.dup(given.tcp.fileno()))
        for fd in fds:
            os.set_inheritable(fd, True)
        given.close()
        pair = opened(socket_fds=fds)
        assert pair.advertised[1] == pair.udp.getsockname()[1]
        assert not any(os.get_inheritable(fd) for fd in fds)
        pair.close()
        with pytest.raises(ConfigError, match="descriptors"):
            opened(socket_fds=fds)

    def test_inherited_descriptors_that_are_no_pair(self) -> None:
        given, other = opened(), opened()
        with pytest.raises(ConfigError, match="in this order"):
            opened(socket_fds=(os.dup(given.tcp.fileno()), os.dup(given.udp.fileno())))
        with pytest.raises(ConfigError, match="different ports"):
            opened(socket_fds=(os.dup(given.udp.fileno()), os.dup(other.tcp.fileno())))
        given.close()
        other.close()


class TestAddresses:
    def test_names_become_numbers_once(self) -> None:
        assert resolve_all(["localhost:7000", "127.0.0.1:7000", "127.0.0.1:7001"]) == (
            ("127.0.0.1", 7000),
            ("127.0.0.1", 7001),
        )

    def test_an_unknown_name_may_appear_later(self) -> None:
        assert resolve_all(["no-such-host.invalid:7000"]) == (("no-such-host.invalid", 7000),)

    @pytest.mark.parametrize("text", ["", "localhost", "localhost:0", "localhost:99999", "::1:7000x"])
    def test_malformed_ones_are_named(self, text: str) -> None:
        with pytest.raises(ConfigError, match="introducers"):
            resolve_all([text])

    def test_what_goes_by_datagram(self) -> None:
        near, far = numeric(("127.0.0.1", 1)), numeric(("192.0.2.1", 1))
        assert near is not None
        assert far is not None
        assert fits(20_000, near)
        assert not fits(40_000, near)
        assert fits(1_400, far)
        assert not fits(1_401, far)
        assert numeric(("localhost", 1)) is None


async def messages_arrive(bind: str, size: int) -> None:
    async with rig("a" * 16, bind=bind) as a, rig("b" * 16, bind=bind) as b:
        message = Accepted(1, "parent", (0, "a"), bytes(size))
        a.ask(Send(b.member.address, message))
        await until(lambda: b.core.named("receive"))
        assert b.core.named("receive") == [("receive", a.member.id, a.member.address, message)]
        sent, received = a.agent.traffic.as_dict()["sent"], b.agent.traffic.as_dict()["received"]
        assert sent == received
        assert sent["Accepted"]["messages"] == 1
        assert sum(kind["bytes"] for kind in sent.values()) > size


@pytest.mark.parametrize(
    "bind",
    ["127.0.0.1:0", pytest.param("[::1]:0", marks=pytest.mark.skipif(not has_ipv6(), reason="no IPv6 here"))],
)
@pytest.mark.parametrize("size", [0, 20_000, 300_000])
def test_messages_arrive_by_either_way(bind: str, size: int) -> None:
    asyncio.run(messages_arrive(bind, size))


async def test_a_name_is_resolved_on_the_way() -> None:
    async with rig("a" * 16) as a, rig("b" * 16) as b:
        a.ask(Send(("localhost", b.member.port), Nack(1)))
        await until(lambda: b.core.named("receive"))


@contextlib.contextmanager
def silence() -> Iterator[tuple[str, int]]:
    """An address that takes no connection and refuses none, as that of a host that has lost its network."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        while True:
            waits = stack.enter_context(socket.socket())
            waits.settimeout(0.05)
            try:
                waits.connect(listener.getsockname())
            except TimeoutError:  # its queue is full
                break
        yield listener.getsockname()


async def test_hosts_that_are_silent_hold_up_no_message_to_others() -> None:
    """To each of them the same is sent again and again, more than a client has connections in all."""
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(silence()) for _ in range(17)]
        client = HttpClient()
        async with rig() as a, asyncio.TaskGroup() as group:
            assert await client.post(a.member.address, b"nonsense")  # which it takes, and drops
            lost = [group.create_task(client.post(each, bytes(3000))) for _ in range(16) for each in silent]
            await asyncio.sleep(0)
            async with asyncio.timeout(2.5):  # half of what a message may take that was not even begun
                assert all(await asyncio.gather(*(client.post(a.member.address, b"nonsense") for _ in range(16))))
        assert not any(each.result() for each in lost)
        await client.close()


async def test_sending_into_nothing_is_counted_not_raised() -> None:
    gone = opened()
    gone.close()
    async with rig() as a:
        a.ask(
            Send(gone.advertised, Nack(1)),
            Send(gone.advertised, Accepted(1, "p", (0, "a"), bytes(100_000))),
            Send(("no-such-host.invalid", 1), Nack(1)),
            Send(("::1", gone.advertised[1]), Nack(1)),
            Send(gone.advertised, Nack(2**70)),
        )
        dropped = a.agent.traffic.as_dict
        await until(lambda: {"undelivered", "unresolved"} <= dropped()["dropped"].keys())
        assert {"undelivered", "unresolved", "unsendable", "unencodable"} == dropped()["dropped"].keys()


def test_nonsense_and_foreigners_are_counted_and_named_once(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with rig("a" * 16, job="mine") as a:
            foreign = Codec("theirs").encode(Envelope("theirs", "b", ("127.0.0.1", 1), Nack(1)))
            own = Codec("mine").encode(Envelope("mine", "a" * 16, a.member.address, Nack(1)))
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
                for data in (b"", b"nonsense", foreign, foreign, own):
                    sock.sendto(data, a.member.address)
                await until(lambda: a.agent.traffic.as_dict()["received"])
            dropped = a.agent.traffic.as_dict()["dropped"]
            assert dropped["malformed"]["messages"] == 2
            assert dropped["foreign"]["messages"] == 2
            assert not a.core.named("receive")  # its own message came back to it
            assert len([note for note in a.notes if "'theirs'" in note]) == 1

    with caplog.at_level(logging.WARNING, "ftlib.consensus"):
        asyncio.run(main())
    assert [record.levelname for record in caplog.records] == ["WARNING"]


class TestHttp:
    def url(self, a: Rig, path: str) -> str:
        return f"http://{format_address(a.member.address)}{path}"

    async def test_fixed_paths(self) -> None:
        async with rig(job="jöb") as a, aiohttp.ClientSession() as session:
            async with session.get(self.url(a, "/identity")) as response:
                assert response.status == 204
                assert response.headers["X-Ftlib-Member"] == a.member.id
                assert response.headers["X-Ftlib-Job"] == "j%C3%B6b"
            async with session.get(self.url(a, "/status")) as response:
                status = json.loads(await response.text())
                assert status["core"] == "fake"
                assert status["member"] == a.member.id
            for method, path, expected in [
                ("GET", "/nothing", 404),
                ("GET", "/message", 404),
                ("PUT", "/message", 405),
                ("POST", "/status", 405),
            ]:
                async with session.request(method, self.url(a, path)) as response:
                    assert response.status == expected
            async with session.post(self.url(a, "/message"), data=b"nonsense") as response:
                assert (response.status, await response.read()) == (204, b"")
            async with session.post(self.url(a, "/message"), data=io.BytesIO(bytes(17 << 20))) as response:
                assert response.status == 413

    def test_a_source_is_streamed_from_a_thread(self) -> None:
        threads = []

        def source(query: Mapping[str, str]) -> Iterator[bytes | memoryview]:
            threads.append(threading.current_thread())
            for _ in range(int(query["count"])):
                yield memoryview(bytearray(3_000_000))
                yield b""
                yield b"end"

        async def main() -> None:
            async with rig() as a, aiohttp.ClientSession() as session:
                a.sources.serve("/data", source)
                async with session.get(self.url(a, "/data?count=2")) as response:
                    assert response.status == 200
                    assert response.headers["X-Ftlib-Member"] == a.member.id
                    assert await response.read() == (bytes(3_000_000) + b"end") * 2
                async with session.get(self.url(a, "/data?count=0")) as response:
                    assert (response.status, await response.read()) == (200, b"")

        asyncio.run(main())
        assert threading.main_thread() not in threads

    async def test_errors_of_a_source(self) -> None:
        def late(query: Mapping[str, str]) -> Iterator[bytes]:
            if "late" in query:
                yield b"something"
            raise LookupError("no such version")

        def refused(query: Mapping[str, str]) -> Iterator[bytes]:
            raise RefusalError("not yet", 503)

        def broken(query: Mapping[str, str]) -> Iterator[bytes]:
            raise ValueError("broken")

        async with rig() as a, aiohttp.ClientSession() as session:
            a.sources.serve("/late", late)
            a.sources.serve("/broken", broken)
            async with session.get(self.url(a, "/late")) as response:
                assert (response.status, await response.text()) == (409, "no such version\n")
            async with session.get(self.url(a, "/broken")) as response:
                assert response.status == 500
            async with session.get(self.url(a, "/late?late=1")) as response:
                assert response.status == 200
                with pytest.raises(aiohttp.ClientPayloadError):
                    await response.read()

    @pytest.mark.parametrize("cut", [False, True])
    def test_a_fork_keeps_no_connection_that_is_being_answered(self, cut: bool) -> None:
        """A child that outlives the answer, as a DataLoader's worker does: the client hears of its end at once."""
        forked = threading.Event()

        def source(query: Mapping[str, str]) -> Iterator[bytes]:
            yield b"begun"
            assert forked.wait(TIMEOUT)
            if cut:
                raise ValueError("broken")

        sources = Sources()
        sources.serve("/data", source)
        with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as client:
            client.settimeout(TIMEOUT)
            sources.answer(listener.accept()[0], Request("/data", {}))
            while b"begun" not in client.recv(65536):
                continue
            asleep, ours = os.pipe()
            pid = os.fork()
            if pid == 0:
                os.close(ours)
                os.read(asleep, 1)  # until the parent is done, or gone
                os._exit(0)
            forked.set()
            with contextlib.suppress(ConnectionResetError):
                while client.recv(65536):
                    continue
            assert os.waitpid(pid, os.WNOHANG) == (0, 0), "the child lives"
            os.close(ours)
            os.close(asleep)
            os.waitpid(pid, 0)

    async def test_a_source_is_closed_when_its_client_goes(self) -> None:
        closed = threading.Event()

        def endless(query: Mapping[str, str]) -> Iterator[bytes]:
            try:
                while True:
                    yield bytes(1 << 20)
            finally:
                closed.set()

        async with rig() as a, aiohttp.ClientSession() as session:
            a.sources.serve("/endless", endless)
            async with session.get(self.url(a, "/endless")) as response:
                await response.content.readexactly(1 << 20)
                response.close()
            await until(closed.is_set)


class TestFence:
    @pytest.mark.parametrize("answer", [{"reaped": True}, {"reaped": False}, ["nonsense"], None])
    async def test_the_supervisor_is_asked_once_and_its_answer_is_proof(self, answer: object) -> None:
        asked = []

        async def supervisor(request: aiohttp.web.BaseRequest) -> aiohttp.web.Response:
            asked.append((request.path, await request.json()))
            await asyncio.sleep(0.05)
            return aiohttp.web.json_response(answer)

        server = aiohttp.web.Server(supervisor)
        listener = await asyncio.get_running_loop().create_server(server, "127.0.0.1", 0)
        port = listener.sockets[0].getsockname()[1]
        accused = Member("b" * 16, "127.0.0.1", 1, (("pid", "123"), ("supervisor", f"127.0.0.1:{port}")))
        async with rig(job="j") as a:
            a.ask(Fence(accused, "silent"), Fence(accused, "silent"))
            await until(lambda: a.core.told(Accusation) or len(a.notes) > 1)
            evidence = a.core.told(Accusation)
            assert bool(evidence) == (answer == {"reaped": True})
            if evidence:
                assert evidence[0].accused == accused.id
                assert evidence[0].kind.value == "proof"
            assert asked == [
                ("/fence", {"job": "j", "member": accused.id, "pid": "123", "reason": "silent", "by": a.member.id})
            ]
            listener.close()
            await server.shutdown(0.05)
            a.ask(Fence(accused, "silent"))
            await until(lambda: any("did not answer" in note for note in a.notes))
            a.ask(Fence(Member("c" * 16, "127.0.0.1", 1), "has no supervisor"))
