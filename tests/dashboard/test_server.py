"""Who may use the dashboard, what it tells, and what happens when members or viewers do not keep up."""

from __future__ import annotations

import asyncio
import json
import select
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

import aiohttp
import pytest

from ftlib.dashboard.desk import BrowserAuthenticator, Means
from ftlib.dashboard.server import Server
from ftlib.dashboard.watch import VIEWERS, Sources, Watch
from ftlib.errors import FTLibError
from tests.harness.basics import TIMEOUT

from .statuses import member_id, status

KEY = "an order's key"


class Members:
    """Answers for three members; one of them may be gone."""

    def __init__(self) -> None:
        self.gone: set[str] = set()
        self.asked = 0
        self.step = 10

    def fetch(self, address: str, _timeout: float) -> dict[str, Any]:
        self.asked += 1
        self.step += 1
        if address in self.gone:
            raise FTLibError(f"no member answers at {address}")
        return status(int(address.rpartition(":")[2]) - 7000, step=self.step)


class Dash:
    """A dashboard that listens, and a client that has come in."""

    def __init__(self, server: Server, watch: Watch, members: Members, url: str, session: aiohttp.ClientSession) -> None:
        self.server, self.watch, self.members, self.session = server, watch, members, session
        self.base = url.partition("/?")[0]
        self.token = parse_qs(urlsplit(url).query)["token"][0]
        self.orders: list[tuple[str, str, str, int]] = []

    async def enter(self) -> None:
        async with self.session.get(f"{self.base}/?token={self.token}") as answer:
            assert answer.status == 200
            assert "{{nonce}}" not in await answer.text()

    async def post(self, body: Any = None, **headers: str) -> tuple[int, str]:
        order = {"kind": "kill", "member": member_id(1), "epoch": 4, "key": KEY} if body is None else body
        async with self.session.post(f"{self.base}/order", json=order, headers={"Origin": self.base, **headers}) as answer:
            return answer.status, await answer.text()

    async def events(self, count: int, **headers: str) -> list[tuple[str, Any]]:
        """The next ``count`` events."""
        found: list[tuple[str, Any]] = []
        async with self.session.get(f"{self.base}/events", headers=headers) as answer:
            assert answer.status == 200
            kind = ""
            async for line in answer.content:
                if line.startswith(b"event: "):
                    kind = line[7:].decode().strip()
                if line.startswith(b"data: "):
                    found.append((kind, json.loads(line[6:])))
                    if len(found) == count:
                        break
        return found


@asynccontextmanager
async def dash(order: Callable[..., str] | None = None) -> AsyncIterator[Dash]:
    members = Members()
    watch = Watch("127.0.0.1:7000", Sources(members.fetch, lambda _job: 3))
    given: list[tuple[str, str, str, int]] = []

    def told(*facts: Any) -> str:
        given.append(facts)
        return "the signal is sent"

    means = Means(
        order=order or told,
        consequence=lambda _address, kind: f"{kind}: fine",
        stack=lambda address: f"stack of {address}",
        explain=lambda _address, epoch: [{"epoch": epoch}],
    )
    server = Server(watch, means, "lab")
    url = await server.open()
    jar, limit = aiohttp.CookieJar(unsafe=True), aiohttp.ClientTimeout(TIMEOUT)
    async with aiohttp.ClientSession(cookie_jar=jar, timeout=limit) as session:
        made = Dash(server, watch, members, url, session)
        made.orders = given
        try:
            yield made
        finally:
            await server.close()


async def test_only_the_token_lets_in() -> None:
    async with dash() as there:
        for path in ("/", "/events", "/explain/4", f"/stack/{member_id(0)}", "/?token=wrong"):
            async with there.session.get(f"{there.base}{path}") as answer:
                assert answer.status == 401, path
        assert (await there.post())[0] == 401
        assert there.server.refused == 6
        assert not there.orders
        assert there.members.asked == 0


async def test_the_cookie_cannot_be_read_or_sent_by_other_pages() -> None:
    async with dash() as there:
        async with there.session.get(f"{there.base}/?token={there.token}", allow_redirects=False) as answer:
            [cookie] = answer.headers.getall("Set-Cookie")
            assert answer.status == 303
            assert answer.headers["Location"] == "/"
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        async with there.session.get(f"{there.base}/") as answer:
            policy = answer.headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'")
        assert "unsafe" not in policy


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1", "127.0.0.1:1", "[", "[::1"])
async def test_another_host_is_refused(host: str) -> None:
    async with dash() as there:
        await there.enter()
        async with there.session.get(f"{there.base}/", headers={"Host": host}) as answer:
            assert answer.status == 403


@pytest.mark.parametrize("host", ["DGX-01", "dgx-01", "LOCALHOST", "10.9.9.9", "[FD00::1]"])
def test_a_host_with_capitals_in_its_name_is_known_by_it(host: str) -> None:
    hosts = ("localhost", "fd00::1", "DGX-01")
    authenticator = BrowserAuthenticator(lambda _token: True, "lab", 7000, "", hosts, addresses=True)
    assert authenticator.is_own(f"{host}:7000")
    assert not authenticator.is_own(f"{host}:7001")
    assert not authenticator.is_own("dgx-01.evil.example:7000")


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://127.0.0.1", ""])
async def test_an_order_from_another_page_is_refused(origin: str) -> None:
    async with dash() as there:
        await there.enter()
        await there.events(1)
        assert (await there.post(Origin=origin))[0] == 403
        assert not there.orders


async def test_events_then_an_order_which_is_given_once(caplog: pytest.LogCaptureFixture) -> None:
    async with dash() as there:
        await there.enter()
        (kind, page), (second, changes) = await there.events(2)
        assert (kind, second) == ("snapshot", "changes")
        assert list(page["rows"]) == [member_id(number) for number in range(3)]
        assert [change["epoch"] for change in changes] == [4]
        assert await there.post() == (200, "the signal is sent\n")
        assert await there.post() == (200, "the signal is sent (done before)\n")
        assert there.orders == [("127.0.0.1:7001", "kill", member_id(1), 4)]
        told = f"kill of {member_id(1)}, ordered from the dashboard: the signal is sent"
        assert [record.getMessage() for record in caplog.records if record.name == "ftlib"] == [told]
        for path, said in (("stack", "stack of 127.0.0.1:7001"), ("consequence/kill", "kill: fine")):
            async with there.session.get(f"{there.base}/{path}/{member_id(1)}") as answer:
                assert await answer.text() == said
        async with there.session.get(f"{there.base}/explain/4") as answer:
            assert await answer.json() == [{"epoch": 4}]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({}, 400),
        ([], 400),
        ({"kind": "reboot", "member": member_id(1), "epoch": 4, "key": KEY}, 400),
        ({"kind": "kill", "member": member_id(1), "epoch": 4, "key": "k"}, 400),
        ({"kind": "kill", "member": member_id(1), "epoch": "now", "key": KEY}, 400),
        ({"kind": "kill", "member": "gone", "epoch": 4, "key": KEY}, 404),
        ({"kind": "kill", "member": "x" * 5000, "epoch": 4, "key": KEY}, 413),
    ],
)
async def test_nonsense_is_no_order(body: Any, code: int) -> None:
    async with dash() as there:
        await there.enter()
        await there.events(1)
        assert (await there.post(body))[0] == code
        assert not there.orders
        assert there.server.refused == 1


async def test_what_a_member_refuses_is_told_and_not_tried_again() -> None:
    tries = []

    def refuses(*facts: Any) -> str:
        tries.append(facts)
        raise FTLibError("it is for epoch 4, and this is epoch 5: look again")

    async with dash(refuses) as there:
        await there.enter()
        await there.events(1)
        for _ in range(2):
            code, text = await there.post()
            assert code == 409
            assert "look again" in text
        assert len(tries) == 1


async def test_the_next_member_answers_where_the_first_is_gone() -> None:
    async with dash() as there:
        await there.enter()
        await there.events(1)
        there.members.gone.add("127.0.0.1:7000")
        events = await there.events(3)
        assert "silent" not in [kind for kind, _ in events]
        there.members.gone |= {"127.0.0.1:7001", "127.0.0.1:7002"}
        async with asyncio.timeout(TIMEOUT):
            while (await there.events(3))[-1][0] != "silent":
                pass


async def test_nobody_asks_while_nobody_looks() -> None:
    async with dash() as there:
        await there.enter()
        await asyncio.sleep(0.6)  # more than a sample: nothing could be waited for
        assert there.members.asked == 0
        await there.events(1)
        async with asyncio.timeout(TIMEOUT):
            while there.watch._viewers:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.6)
        asked = there.members.asked
        await asyncio.sleep(1.2)
        assert there.members.asked == asked


@pytest.mark.parametrize(("last", "missed"), [("3", [4]), ("4", []), ("nonsense", [4])])
async def test_after_a_lost_connection_the_changes_since_are_told(last: str, missed: list[int]) -> None:
    async with dash() as there:
        await there.enter()
        await there.events(2)
        events = dict(await there.events(2, **{"Last-Event-ID": last}))
        assert [change["epoch"] for change in events["changes"]] == missed
        assert "rows" in events["snapshot"]


async def test_all_viewers_have_one_sampler() -> None:
    async with dash() as there:
        assert there.watch.enter(0)
        sampler = there.watch._task
        assert sampler is not None
        for _ in range(3):
            assert there.watch.enter(0)
            await asyncio.sleep(0)
        assert there.watch._task is sampler
        assert [task for task in asyncio.all_tasks() if "_sample" in repr(task.get_coro())] == [sampler]


async def test_a_viewer_that_is_stuck_is_let_go_and_more_than_the_most_are_refused() -> None:
    async with dash() as there:
        stuck = [there.watch.enter(0) for _ in range(VIEWERS)]
        assert all(stuck)
        assert there.watch.enter(0) is None
        for _ in range(100):
            there.watch._tell(there.watch._viewers, "event: patch\ndata: {}\n\n")
        assert there.watch._viewers == set()
        assert {viewer.events.qsize() for viewer in stuck if viewer} == {32}
        assert there.watch.enter(0) is not None


async def test_a_viewer_that_does_not_read_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits for it is bounded, in events and in bytes under way. After that its place is free, and its connection ends."""
    monkeypatch.setattr("ftlib.dashboard.desk._STUCK", 0.2)
    size, events, under_way = 20_000, 32, 500_000
    async with dash() as there:
        await there.enter()
        with socket.socket() as viewer:
            viewer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
            viewer.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(viewer, ("127.0.0.1", there.server.port))
            cookies = "; ".join(f"{each.key}={each.value}" for each in there.session.cookie_jar)
            head = f"GET /events HTTP/1.1\r\nHost: 127.0.0.1:{there.server.port}\r\nCookie: {cookies}\r\n\r\n"
            await loop.sock_sendall(viewer, head.encode())
            async with asyncio.timeout(TIMEOUT):
                while not there.watch.viewers:
                    await asyncio.sleep(0.01)
                told = 0
                while there.watch.viewers:
                    there.watch._tell(there.watch._viewers, f"event: patch\ndata: {told:0{size}}\n\n")
                    told += 1
                    for _ in range(5):  # turns of the loop, in which a viewer that reads would get it
                        await asyncio.sleep(0)
            assert told <= events + under_way / size
            assert await asyncio.to_thread(has_ended, viewer), "its connection stays"


def has_ended(connection: socket.socket) -> bool:
    """Whether the other side ends it in time; nothing is read from it."""
    poll = select.poll()
    poll.register(connection, select.POLLRDHUP)
    return bool(poll.poll(1e3 * TIMEOUT))
