"""What strangers can do to a member with a secret: ask it, flood it, change what it answers."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import random
import socket
import threading
import time
from collections.abc import Iterator, Mapping

import pytest

from consensus import Config, Gossip, Home, KeyRing, SecretError, format_address, get
from consensus.runtime.net import door as entrance
from consensus.runtime.net import http as http_side
from consensus.runtime.net import udp
from consensus.runtime.net.door import PATIENCE, Door, StrangerStage, UnprovenPeer
from consensus.runtime.net.liveness_connection import ask
from consensus.wire.proofs import Exchange, decode, fresh_nonce, greeting
from tests.harness.basics import TIMEOUT, eventually

from .crowd import Crowd, crowd_process
from .fake_core import until
from .group import address, agree, begin, ids, members, peers
from .secret import OTHER, RING, SECRET, dropped
from .tap import may_listen, tap


def raw(where: tuple[str, int], *requests: bytes) -> list[bytes]:
    """What comes back for each request on one connection; empty where it was closed."""
    answers = []
    with socket.create_connection(where, timeout=TIMEOUT) as sock:
        for request in requests:
            try:
                sock.sendall(request)
                answers.append(sock.recv(65536))
            except ConnectionError:
                answers.append(b"")
    return answers


def request(path: str, credentials: str = "", method: str = "GET", body: bytes = b"") -> bytes:
    more = f"Authorization: {credentials}\r\n" if credentials else ""
    more += f"Content-Length: {len(body)}\r\n" if body else ""
    return f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:12345\r\n{more}\r\n".encode() + body


@pytest.fixture(scope="module")
def guarded() -> Iterator[Gossip]:
    """A member with a secret, for strangers to try; it must not mind any of them."""
    with members(1, secret=SECRET) as [member]:
        member.serve("/state", lambda query: iter([bytes(1 << 20) * 3, query.get("part", "").encode()]))

        def nothing(query: Mapping[str, str]) -> Iterator[bytes]:
            raise LookupError("nothing here")

        member.serve("/nothing", nothing)
        assert member.wait_view(TIMEOUT)
        yield member
        assert member.confirm()
        assert set(member.status()["messages"]["received"]) <= {"Knock", "Ticket"}


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever comes from now on has two seconds to prove itself: for tests in which nobody does."""
    monkeypatch.setattr(entrance, "PATIENCE", 2.0)


class TestRequests:
    def test_with_the_secret(self, guarded: Gossip) -> None:
        where = guarded.member.address
        with get(where, "/status", RING) as answer:
            assert answer.status == 200
            assert json.loads(answer.read())["member"] == guarded.member.id
        with get(where, "/state?part=7%C3%A4", RING) as answer:
            assert answer.read((1 << 20) + 5) == bytes((1 << 20) + 5)
            assert answer.read() == bytes((2 << 20) - 5) + "7ä".encode()
            answer.finish()
        for path, status, text in [("/nothing", 409, b"nothing here\n"), ("/no", 404, b"nothing is served at /no\n")]:
            with get(where, path, RING) as answer:
                assert (answer.status, answer.read()) == (status, text)

    @pytest.mark.parametrize(
        "long",
        [
            request("/state?part=" + "7" * (1 << 20)),
            request("/state", "x" * 10_000),
            request("/state" + "\r\nx: y" * 1000),
        ],
        ids=["line", "field", "fields"],
    )
    def test_of_any_length_are_not_kept(self, guarded: Gossip, long: bytes) -> None:
        """The connection is closed as soon as there is too much of it, not once all has arrived."""
        assert raw(guarded.member.address, long[:-4]) == [b""]

    def test_without_it(self, guarded: Gossip) -> None:
        where = guarded.member.address
        with pytest.raises(SecretError, match="asks for the job's secret: set FTLIB_SECRET"):
            get(where, "/status")
        with pytest.raises(SecretError, match="uses another secret"):
            get(where, "/status", KeyRing([OTHER]))
        with rig_without_secret() as member, pytest.raises(SecretError, match="does not authenticate itself"):
            get(member.member.address, "/status", RING)

    def test_metrics_take_a_bearer_token(self, guarded: Gossip) -> None:
        where = guarded.member.address
        good = f"Bearer {RING.first.bearer('metrics')}"
        connection = http.client.HTTPConnection(*where, timeout=TIMEOUT)
        connection.request("GET", "/metrics", headers={"Authorization": good})
        assert b"# HELP" in connection.getresponse().read()
        connection.request("GET", "/targets", headers={"Authorization": good})
        answer = connection.getresponse()
        assert answer.getheader("Content-Type") == "application/json"
        [found] = json.loads(answer.read())
        assert found["targets"] == [format_address(where)]
        assert found["labels"]["__meta_ftlib_member"] == guarded.member.id
        connection.close()
        for path, credentials in [
            ("/status", good),
            ("/targets", f"Bearer {KeyRing([OTHER]).first.bearer('metrics')}"),
            ("/state", good),
            ("/metrics", f"Bearer {KeyRing([OTHER]).first.bearer('metrics')}"),
            ("/metrics", f"Bearer {RING.first.bearer('supervisor')}"),
            ("/metrics", "Bearer \u00e9"),
        ]:
            assert raw(where, request(path, credentials))[0].startswith(b"HTTP/1.1 401 Ftlib")

    def test_a_recorded_request_is_worth_nothing(self, guarded: Gossip) -> None:
        where = guarded.member.address
        nonce = bytes(16)
        first = request("/status", greeting(nonce))
        with socket.create_connection(where, timeout=TIMEOUT) as sock:
            sock.sendall(first)
            head = sock.recv(65536).decode()
            challenge = head.partition("WWW-Authenticate: Ftlib ")[2].partition("\r\n")[0]
            exchange = Exchange(RING.first, nonce, decode(challenge), "/status")
            second = request("/status", exchange.credentials())
            sock.sendall(second)
            assert sock.recv(65536).startswith(b"HTTP/1.1 200")
            sock.sendall(second)  # on the very connection: its challenge is used up
            assert not sock.recv(65536).startswith(b"HTTP/1.1 200")
        assert raw(where, second)[0].startswith(b"HTTP/1.1 401")
        assert raw(where, first, second)[1].startswith(b"HTTP/1.1 401 Ftlib")
        other = Exchange(RING.first, nonce, decode(challenge), "/state")
        assert raw(where, first, request("/state", other.credentials()))[1].startswith(b"HTTP/1.1 401 Ftlib")

    @pytest.mark.parametrize(
        "data",
        [
            b"GET / HTTP/1.1\r\n\r\n",
            request("/status"),
            request("/status", "Ftlib x"),
            request("/status", "Ftlib \u00e9" + "." * 400),
            request("/identity", "Basic eDp5"),
            request("/identity", greeting(bytes(16))),
            request("/tether"),
            request("/message", "", "POST", bytes(2000)),
            request("/message", "", "POST", b"x"),
            request("/message", "", "POST", RING.first.derive("x", size=200)),
            request("/status", "", "PUT", b"x"),
            b"\x16\x03\x01 nonsense\r\n\r\n",
            b"G" * 20_000 + b"\r\n\r\n",
            b"GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        ],
    )
    def test_strangers_get_no_more_than_they_sent(self, guarded: Gossip, data: bytes) -> None:
        [answer] = raw(guarded.member.address, data)
        assert len(answer) <= len(data)
        assert answer[:15] in (b"", b"HTTP/1.1 401 Ft", b"HTTP/1.1 401 Un")

    def test_nothing_but_a_promising_message_is_read(self, guarded: Gossip) -> None:
        """16 MiB are announced; the member hangs up after the first bytes."""
        with socket.create_connection(guarded.member.address, timeout=TIMEOUT) as sock:
            sock.sendall(
                request("/message", "", "POST", bytes(100)).replace(b"Content-Length: 100", b"Content-Length: 16000000")
            )
            assert sock.recv(100) == b""

    def test_a_tampered_body_is_noticed(self, guarded: Gossip) -> None:
        """An attacker between the two who changes, drops, cuts or repeats a frame, or the status."""
        outcomes = {}
        for how in ("none", "flip", "drop", "cut", "repeat", "status"):
            with _tampering(guarded.member.address, how) as where:
                try:
                    with get(where, "/state?part=z", RING) as answer:
                        data = answer.read()
                        answer.finish()
                    outcomes[how] = "good" if data == bytes(3 << 20) + b"z" else "WRONG"
                except (SecretError, EOFError, OSError, http.client.HTTPException) as error:
                    outcomes[how] = type(error).__name__
        assert outcomes.pop("none") == "good"
        assert not {"good", "WRONG"} & set(outcomes.values()), outcomes


@contextlib.contextmanager
def rig_without_secret() -> Iterator[Gossip]:
    with members(1) as [member]:
        yield member


@contextlib.contextmanager
def _tampering(to: tuple[str, int], how: str) -> Iterator[tuple[str, int]]:
    """A relay that changes the answer's body on its way."""
    listener = socket.create_server(("127.0.0.1", 0))

    def relay() -> None:
        near, _ = listener.accept()
        with near, socket.create_connection(to) as far, contextlib.suppress(OSError):
            far.sendall(near.recv(65536))
            near.sendall(far.recv(65536))
            far.sendall(near.recv(65536))
            stream = far.makefile("rb")
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                head += stream.read(1)
            near.sendall(head.replace(b" 200 ", b" 409 ") if how == "status" else head)
            chunks = []
            while size := int(stream.readline(), 16):
                chunks.append(stream.read(size))
                stream.read(2)
            if how == "flip":
                chunks[1] = chunks[1][:-1] + bytes([chunks[1][-1] ^ 1])
            elif how == "drop":
                del chunks[1]
            elif how == "cut":
                del chunks[-1]
            elif how == "repeat":
                chunks.insert(1, chunks[0])
            for chunk in chunks:
                near.sendall(b"%x\r\n%s\r\n" % (len(chunk), chunk))
            near.sendall(b"0\r\n\r\n")
            near.shutdown(socket.SHUT_WR)

    thread = threading.Thread(target=relay)
    thread.start()
    try:
        yield listener.getsockname()
    finally:
        listener.close()
        thread.join(TIMEOUT)


@pytest.mark.skipif(not may_listen(), reason="needs CAP_NET_RAW to listen on the wire")
def test_a_live_member_survives_a_hostile_network(guarded: Gossip) -> None:
    """Random, mutated and replayed packets and requests; real ones come from a second member that meets this one's port."""
    chance = random.Random(int(os.environ.get("SEED", "1")))
    where = guarded.member.address
    before = dropped(guarded)
    with (
        members(2, secret=SECRET, job="hostile", probe_interval=0.1) as group,
        tap({member.member.port for member in group}) as seen,
    ):
        agree(group, 2)
        eventually(lambda: len(seen) >= 40, "packets on the wire")
        recorded = list(seen)
        counts, began = received(group[0]), time.monotonic()
        targets = [where, *(member.member.address for member in group)]
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            for number in range(3000):
                data = bytearray(chance.choice(recorded))
                if number % 3 == 1:
                    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
                elif number % 3 == 2:
                    data = bytearray(chance.randbytes(chance.randrange(200)))
                sock.sendto(data, targets[number % 3])
                if number % 20 == 0:
                    time.sleep(0.002)  # below what a socket buffer holds
        for number in range(30):
            body = chance.choice(recorded)
            raw(targets[number % 3], request("/message", "", "POST", body))
        assert sum(dropped(guarded).values()) > sum(before.values()) + 500
        assert agree(group, 2).epoch == 1
        for kind, count in received(group[0]).items():
            own = 200 + 30 * (time.monotonic() - began)  # its peer's: ten a second, more where acks are late
            assert count - counts.get(kind, 0) < own, (kind, count, counts)


def received(member: Gossip) -> dict[str, int]:
    return {kind: entry["messages"] for kind, entry in member.status()["messages"]["received"].items()}


def test_what_only_members_may_know_is_not_shown() -> None:
    meta = {"name": "worker 0", "_room": "what nobody may guess"}
    gossip = Gossip(Config(agent=Home.THREAD, secret=SECRET))
    gossip.start(meta=meta)
    try:
        eventually(gossip.get_member_list, "it has founded")
        assert gossip.member.fact("_room") == meta["_room"]
        with get(gossip.member.address, "/status", RING) as answer:
            status = json.loads(answer.read())
    finally:
        gossip.stop()
    assert status["meta"]["name"] == status["members"][0]["meta"]["name"] == "worker 0"
    assert meta["_room"] not in json.dumps(status)


SILENT_AND_SLOW = pytest.mark.parametrize("drip", [0.0, 0.1], ids=["silent", "slow"])


class TestCrowds:
    """Connections that prove nothing: more than an agent has places for strangers, from the members' own address."""

    @SILENT_AND_SLOW
    def test_members_are_answered_and_change_the_view_in_a_crowd(self, drip: float) -> None:
        with members(2, secret=SECRET, job="crowded", exclude_after=20.0) as group:
            agree(group, 2)
            with contextlib.ExitStack() as stack:
                crowds = [stack.enter_context(Crowd(member.member.address, 500, drip)) for member in group]
                eventually(lambda: all(crowd.made > 700 for crowd in crowds), "everybody came, and came again")
                for member in group:
                    with get(member.member.address, "/status", RING) as answer:
                        assert answer.status == 200
                        assert json.loads(answer.read())["member"] == member.member.id
                with members(1, secret=SECRET, job="crowded", introducers=(address(group[0]),), exclude_after=20.0) as [joiner]:
                    joiner.seek_admission()
                    agree([*group, joiner], 3)
                agree(group, 2)
                eventually(lambda: all(crowd.closed > 300 for crowd in crowds), "others were hung up on")

    def test_posts_without_a_body_take_no_place_from_messages(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """More than an agent reads at a time. Between hosts whole views go by POST, and nobody joins without them."""
        monkeypatch.setattr(udp, "LOOPBACK_LIMIT", udp.NETWORK_LIMIT)
        for module, name in ((http_side, "_READ_TIMEOUT"), (entrance, "PATIENCE")):
            monkeypatch.setattr(module, name, TIMEOUT)  # what they take they keep
        head = request("/message", method="POST", body=bytes(60_000))[:-60_000]
        settings = {"secret": SECRET, "job": "posting", "exclude_after": 20.0, "meta": {"note": "y" * 600}}
        with members(2, **settings) as group, contextlib.ExitStack() as stack:
            agree(group, 2)
            joiner = begin(introducers=(address(group[0]),), **settings)
            stack.callback(joiner.stop)
            for member in (*group, joiner):
                crowd = stack.enter_context(Crowd(member.member.address, 100, pace=100.0, greeting=head))
                eventually(lambda crowd=crowd: crowd.greeted >= 100, "all have sent their heads")  # type: ignore[misc]
            joiner.seek_admission()
            eventually(lambda: len(ids(joiner.view)) == 3, "it was let in", 20.0)
            agree([*group, joiner], 3)

    @pytest.mark.soak
    @SILENT_AND_SLOW
    def test_ten_thousand(self, drip: float) -> None:
        """At each of three members: a process dies and another one joins as if nobody else were there."""
        with members(2, secret=SECRET, job="crowded", agent=Home.PROCESS) as group, contextlib.ExitStack() as stack:
            settings = {"secret": SECRET, "job": "crowded", "introducers": (address(group[0]),)}
            with peers(1, **settings) as [peer]:
                agree(group, 3)
                for port in [*(member.member.port for member in group), peer.member.port]:
                    stack.enter_context(crowd_process(port, 10_000, 10 * drip))
                began = time.monotonic()
                peer.kill()
                agree(group, 2)
                assert time.monotonic() - began < 1.0, "its end was seen, and not concluded from silence"
            with peers(1, **settings):
                agree(group, 3)
            for member in group:
                with get(member.member.address, "/status", RING) as answer:
                    assert json.loads(answer.read())["member"] == member.member.id

    def test_whoever_says_nothing_whole_is_hung_up_on(self, hasty: None, guarded: Gossip) -> None:
        with contextlib.ExitStack() as stack:
            silent = []
            for text in (b"", b"G", request("/status")[:-2], request("/identity", greeting(bytes(16)))):
                silent.append(stack.enter_context(socket.create_connection(guarded.member.address, timeout=TIMEOUT)))
                silent[-1].sendall(text)
            for sock in silent:
                with contextlib.suppress(ConnectionResetError):
                    while sock.recv(1000):
                        continue

    def test_a_busy_client_has_time(self, guarded: Gossip) -> None:
        """On a busy host it may need longer than a second for its answer to a challenge: twice as long in all is no reason."""
        nonce = fresh_nonce()
        with socket.create_connection(guarded.member.address, timeout=TIMEOUT) as sock:
            time.sleep(1.5)  # what a second's patience would not stand
            sock.sendall(request("/status", greeting(nonce)))
            challenge = sock.recv(65536).decode().partition("WWW-Authenticate: Ftlib ")[2].partition("\r\n")[0]
            time.sleep(1.5)  # and again
            sock.sendall(request("/status", Exchange(RING.first, nonce, decode(challenge), "/status").credentials()))
            assert sock.recv(65536).startswith(b"HTTP/1.1 200")

    def test_talking_without_an_end_is_no_patience(self, hasty: None, guarded: Gossip) -> None:
        with socket.create_connection(guarded.member.address, timeout=TIMEOUT) as sock:
            began = time.monotonic()
            with contextlib.suppress(OSError):
                for byte in request("/status", "x" * 3000):
                    sock.sendall(bytes([byte]))
                    time.sleep(0.02)
            assert time.monotonic() - began < 40.0, "it takes a minute to say all of it"

    async def test_whoever_has_proved_itself_stays(self, guarded: Gossip) -> None:
        """A liveness connection, through a crowd and far beyond a stranger's time."""
        answer, sock = await ask(guarded.member.address, "/tether", RING)
        assert answer is not None and answer.member_id == guarded.member.id and answer.doubt is None
        with sock, Crowd(guarded.member.address, 600) as crowd:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1.3 * PATIENCE):
                    await asyncio.get_running_loop().sock_recv(sock, 100)
            await asyncio.to_thread(eventually, lambda: crowd.closed > 500, "others were hung up on")

    async def test_what_is_refused_by_its_head_never_gets_to_http(self) -> None:
        """Its answer arrives whole even if a body comes after it, and its place is free for others meanwhile."""

        def refuse(head: bytes) -> bytes | None:
            return b"HTTP/1.1 401 No\r\n\r\nno" if b"/no" in head else None

        entered: list[socket.socket] = []
        loop = asyncio.get_running_loop()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.setblocking(False)
            door = Door(listener.dup(), lambda sock, _stranger: entered.append(sock), refuse)
            door.open()
            for said, more in (
                (request("/no"), b""),
                (request("/no", method="POST", body=b"x" * 50_000)[:-50_000], b"x" * 50_000),
            ):
                with socket.socket() as sock:
                    sock.setblocking(False)
                    await loop.sock_connect(sock, listener.getsockname())
                    await loop.sock_sendall(sock, said)
                    if more:
                        await until(lambda: [each.stage for each in door._strangers] == [StrangerStage.REFUSED])
                        await loop.sock_sendall(sock, more)
                    got = b""
                    async with asyncio.timeout(TIMEOUT):
                        while data := await loop.sock_recv(sock, 1 << 16):
                            got += data
                    assert got == b"HTTP/1.1 401 No\r\n\r\nno"
                await until(lambda: not len(door))
            assert not entered
            with socket.create_connection(listener.getsockname()) as sock:
                sock.sendall(request("/yes"))
                await until(lambda: len(entered) == 1)
            door.close()
            entered[0].close()

    async def test_places_are_bounded_and_the_oldest_silent_one_goes(self, hasty: None) -> None:
        with socket.create_server(("127.0.0.1", 0), backlog=600) as listener:
            listener.setblocking(False)
            asked: list[UnprovenPeer] = []
            entered: list[socket.socket] = []

            def enter(sock: socket.socket, stranger: UnprovenPeer) -> None:
                entered.append(sock)
                asked.append(stranger)
                stranger.end = sock.close

            door = Door(listener.dup(), enter)
            door.open()
            with contextlib.ExitStack() as stack:
                talker = stack.enter_context(socket.create_connection(listener.getsockname()))
                talker.sendall(request("/status"))
                silent = [stack.enter_context(socket.create_connection(listener.getsockname())) for _ in range(300)]
                await until(lambda: door.closed == 301 - door._most)
                assert len(door) == door._most and asked[0] in door, "who has asked outlasts who has not"
                silent[0].settimeout(TIMEOUT)
                assert silent[0].recv(1) == b""
                silent[-1].setblocking(False)
                with pytest.raises(BlockingIOError):
                    silent[-1].recv(1)
                door.proved(asked[0])
                await until(lambda: not len(door))
                assert entered[0].fileno() != -1, "that is its server's by now"
                door.close()
            entered[0].close()
