"""An agent's own work around its core: introducers, names, the file with the secrets, and who is held to a rate."""

from __future__ import annotations

import asyncio
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from consensus import Address, Config, Gossip, Home, JoinError, KeyRing
from consensus.border import Stopped
from consensus.messages import Nack
from consensus.protocol.state.effects import Send
from consensus.protocol.state.inputs import Listening, Resolved
from consensus.runtime.net.names import Introducers
from consensus.wire.envelope import Sealed
from tests.harness.basics import TIMEOUT, eventually, free_ports
from tests.harness.threads import no_threads

from .fake_core import rig, until
from .group import address, begin, members

SECRET = "a secret of these tests"
OTHER = "another secret, also long enough"


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize(
    ("theirs", "ours", "text"),
    [
        (SECRET, OTHER, "the members there use another secret"),
        (SECRET, "", "the members there have a secret, this one has none"),
        ("", SECRET, "the member there has no secret, this one has"),
    ],
)
def test_the_first_introducer_restarted_with_another_secret_does_not_found(theirs: str, ours: str, text: str) -> None:
    with members(1, secret=theirs or ()) as [member]:
        own = f"127.0.0.1:{free_ports(1)[0]}"
        again = begin(
            job="test", bind=own, introducers=(own, address(member)), secret=ours or (), initial_size=1, join_timeout=4.0
        )
        try:
            eventually(lambda: again.stopped or again.view, "it gives up")
            assert isinstance(again.stopped, JoinError)
            assert text in str(again.stopped) and "founds nothing" in str(again.stopped)
        finally:
            again.stop()


def test_an_introducer_of_another_job_keeps_nobody_from_founding() -> None:
    with members(1, job="other") as [member]:
        own = f"127.0.0.1:{free_ports(1)[0]}"
        first = begin(job="test", bind=own, introducers=(own, address(member)), secret=SECRET, initial_size=1)
        try:
            assert first.wait_view(TIMEOUT) is not None
        finally:
            first.stop()


async def test_an_introducer_counts_as_somebody_until_it_is_known_to_be_nobody() -> None:
    own, other = free_ports(2)
    introducers = (f"127.0.0.1:{own}", f"127.0.0.1:{other}")
    there: Address = ("127.0.0.1", other)
    async with rig(bind=introducers[0], introducers=introducers) as a:
        await until(lambda: Listening(there, False) in a.core.inputs)
        assert a.core.told(Listening)[:2] == [Listening(there, True), Listening(there, False)]
        await until(lambda: len(a.core.told(Listening)) > 2)
        assert Listening(there, True) not in a.core.told(Listening)[2:], "it is known"


async def test_a_doubt_ends_with_whoever_raised_it() -> None:
    own, other = free_ports(2)
    introducers = (f"127.0.0.1:{own}", f"127.0.0.1:{other}")
    async with rig(bind=introducers[0], introducers=introducers) as a:
        async with rig("b" * 16, bind=introducers[1], secret=SECRET):
            await until(lambda: a.core.told(Resolved))
        await until(lambda: len(a.core.told(Resolved)) >= 2)
        refused, free, *_ = a.core.told(Resolved)
        assert refused.founder is False and "other secrets" in refused.refused
        assert (free.founder, free.refused) == (True, "")


async def test_one_look_up_of_a_name_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where no name server answers, which takes a real one many seconds."""
    gate, asked = asyncio.Event(), list[Address]()

    async def slow(where: Address) -> Any:
        asked.append(where)
        await gate.wait()
        raise OSError("no answer")

    async with rig() as a:
        monkeypatch.setattr("consensus.runtime.agent.agent.resolve", slow)
        tasks = len(a.agent._tasks)
        names: list[Address] = [("one.invalid", 1), ("two.invalid", 1)]
        a.ask(*(Send(name, Nack(number)) for number in range(10) for name in names))
        await asyncio.sleep(0)
        assert asked == names and len(a.agent._tasks) == tasks + 2
        assert a.agent.traffic.as_dict()["dropped"]["unresolved"]["messages"] == 18
        gate.set()
        await until(lambda: a.agent.traffic.as_dict()["dropped"]["unresolved"]["messages"] == 20)
        a.ask(Send(names[0], Nack(1)))
        await until(lambda: len(asked) == 3)


@pytest.mark.usefixtures("patient")
async def test_what_was_found_besides_the_list_outlives_the_next_look_up(monkeypatch: pytest.MonkeyPatch) -> None:
    listed: Address = ("127.0.0.1", free_ports(1)[0])
    monkeypatch.setattr("consensus.runtime.agent.discovery._LOOKUP_EVERY", 0.01)
    async with rig("b" * 16) as b, rig(introducers=(f"localhost:{free_ports(1)[0]}",)) as a:
        assert await a.agent.discovery.find([b.member.address]) == (b.member.address,)
        monkeypatch.setattr("consensus.runtime.agent.discovery.lookup", lambda texts: Introducers(texts, (listed,)))
        await until(lambda: a.core.told(Resolved))
        assert a.agent.discovery.introducers == [listed, b.member.address]


async def test_a_file_with_secrets_that_hangs_stops_nothing(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.touch(0o600)
    path.write_text(SECRET)

    release, looks = threading.Event(), list[int]()

    def hang() -> None:
        looks.append(1)
        release.wait(TIMEOUT)

    async with rig(secret_file=str(path)) as a:
        ring = a.agent._ring
        assert ring is not None
        await asyncio.sleep(0)
        ring.renew = hang  # type: ignore[method-assign]
        await until(lambda: looks)
        await asyncio.sleep(1.1)
        assert len(looks) == 1
        release.set()


async def test_a_moment_without_threads_ends_the_following_of_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("consensus.runtime.agent.agent._RENEW_KEYS", 0.01)
    path = tmp_path / "secret"
    path.touch(0o600)
    path.write_text(SECRET)
    async with rig(secret_file=str(path)) as a:
        ring = a.agent._ring
        assert ring is not None
        with no_threads("ftlib-aside") as refused:
            await until(lambda: len(refused) >= 3)
        path.write_text(f"{OTHER}\n{SECRET}\n")
        await until(lambda: len(ring.keys) == 2)


@pytest.mark.usefixtures("patient")
async def test_a_moment_without_threads_ends_no_look_up_of_names(monkeypatch: pytest.MonkeyPatch) -> None:
    listed: Address = ("127.0.0.1", free_ports(1)[0])
    monkeypatch.setattr("consensus.runtime.agent.discovery._LOOKUP_EVERY", 0.01)
    async with rig(introducers=(f"localhost:{free_ports(1)[0]}",)) as a:
        with no_threads("ftlib-aside") as refused:
            await until(lambda: len(refused) >= 3)
            assert not await a.agent._send_slowly(("localhost", 1), "ping", b""), "it counts as one that has no address"
        monkeypatch.setattr("consensus.runtime.agent.discovery.lookup", lambda texts: Introducers(texts, (listed,)))
        await until(lambda: a.agent.discovery.introducers == [listed])


async def test_another_port_is_no_way_around_the_throttle() -> None:
    async with rig(secret=SECRET) as a:
        forged = bytearray(Sealed(KeyRing([SECRET]), "default", ("127.0.0.1", 1)).hello(a.member.address) or b"")
        forged[-1] ^= 1
        for _ in range(100):
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
                sock.sendto(forged, a.member.address)
        dropped = a.agent.traffic.as_dict
        await until(lambda: sum(each["messages"] for each in dropped()["dropped"].values()) == 100)
        assert dropped()["dropped"]["throttled"]["messages"] >= 50


async def test_a_joiner_is_told_even_where_the_reasons_cannot_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async with rig(introducers=("127.0.0.1:1",)) as a:

        async def broken(where: Address) -> Any:
            raise RuntimeError(f"no luck with {where}")

        monkeypatch.setattr(a.agent.discovery, "_look", broken)
        error = JoinError("not let in")
        a.ask(Stopped(error))
        await until(lambda: a.plane.orders)
        assert a.plane.orders == [Stopped(error)]


@pytest.mark.parametrize(("join_timeout", "patience"), [(3.0, 10.0), (40.0, 40.0)])
def test_the_start_has_the_time_of_a_join(monkeypatch: pytest.MonkeyPatch, join_timeout: float, patience: float) -> None:
    given: list[float] = []

    class Nowhere:
        def begin(self, member_id: str) -> None: ...

        def start(self, config: Any, member: Any, introducers: Any, sockets: Any, delegate: Any, timeout: float) -> None:
            given.append(timeout)
            sockets.close()

        def stop(self, timeout: float) -> None: ...

    monkeypatch.setattr("consensus.membership._host_for", lambda config: Nowhere())
    gossip = Gossip(Config(join_timeout=join_timeout, agent=Home.THREAD))
    gossip.start()
    gossip.stop()
    assert given == [patience]
