"""Members with a secret on real sockets: who gets in, and who is believed about who is alive."""

from __future__ import annotations

import asyncio
import contextlib

import aiohttp.web
import pytest

from consensus import KeyRing, format_address
from consensus.config import PROTOCOL_VERSION
from consensus.member import Member
from consensus.messages import Accepted, Nack
from consensus.protocol.state.effects import Fence, Send
from consensus.protocol.state.inputs import Accusation
from consensus.runtime.net.liveness_connection import Doubt, Identity, LivenessConnections, ask

from .fake_core import rig, until
from .secret import OTHER, RING, SECRET


class TestMessages:
    @pytest.mark.parametrize("size", [0, 20_000, 300_000])
    async def test_arrive_by_either_way(self, size: int) -> None:
        async with rig("a" * 16, secret=SECRET) as a, rig("b" * 16, secret=SECRET) as b:
            message = Accepted(1, "parent", (0, "a"), bytes(size))
            a.ask(Send(b.member.address, message), Send(b.member.address, Accepted(2, "parent", (0, "a"), bytes(size))))
            await until(lambda: len(b.core.named("receive")) == 2)
            came = b.core.named("receive")  # they may overtake each other
            assert ("receive", a.member.id, a.member.address, message) in came
            sent, received = a.agent.traffic.as_dict()["sent"], b.agent.traffic.as_dict()["received"]
            assert sent == received
            assert sent["Knock"]["messages"] == 1
            assert b.agent.traffic.as_dict()["dropped"] == {}

    async def test_a_name_is_fine_for_an_introducer_only(self) -> None:
        async with rig("b" * 16, secret=SECRET) as b, rig("a" * 16, secret=SECRET) as a:
            a.ask(Send(("localhost", b.member.port), Nack(1)))
            await until(lambda: "unauthentic" in a.agent.traffic.as_dict()["dropped"])
            a.agent.discovery.introducers.append(("localhost", b.member.port))
            a.ask(Send(("localhost", b.member.port), Nack(1)))
            await asyncio.sleep(0.06)
            a.ask(Send(("localhost", b.member.port), Nack(1)))
            await until(lambda: b.core.named("receive"))


@pytest.mark.usefixtures("patient")
class TestWhoIsThere:
    """The answers on which proofs of death rest."""

    async def test_a_holder_of_the_secret_is_believed(self) -> None:
        async with rig("b" * 16, secret=SECRET, job="jöb") as a:
            answer, sock = await ask(a.member.address, "/tether", RING)
            sock.close()
            assert answer == Identity("b" * 16, "jöb", PROTOCOL_VERSION, format_address(a.member.address))

    @pytest.mark.parametrize(
        ("mine", "theirs", "doubt"),
        [(None, SECRET, Doubt.ASKS), (RING, OTHER, Doubt.DIFFERS), (RING, "", Doubt.LACKS)],
    )
    async def test_others_are_told_apart_but_prove_nothing(self, mine: KeyRing | None, theirs: str, doubt: Doubt) -> None:
        verdicts: list[tuple[str, bool | None, str]] = []
        async with rig("b" * 16, secret=theirs or ()) as b:
            answer, sock = await ask(b.member.address, "/identity", mine)
            sock.close()
            assert answer is not None
            assert answer.doubt is doubt
            liveness = LivenessConnections(lambda *verdict: verdicts.append(verdict[:3]), mine)
            liveness.check(Member("c" * 16, *b.member.address))
            await until(lambda: verdicts)
            await liveness.close()
            assert verdicts[0][1] is None

    async def test_another_lifetime_proves_death_only_at_the_very_address(self) -> None:
        """A question for b that somebody passes on to a: its answer is genuine, but not from b's address."""
        verdicts: list[tuple[str, bool | None, str]] = []
        async with rig("a" * 16, secret=SECRET) as a:
            liveness = LivenessConnections(lambda *verdict: verdicts.append(verdict[:3]), RING)
            liveness.check(Member("b" * 16, *a.member.address))
            await until(lambda: len(verdicts) == 1)
            relay = await asyncio.start_server(lambda r, w: _pass_on(r, w, a.member.address), "127.0.0.1", 0)
            liveness.check(Member("c" * 16, *relay.sockets[0].getsockname()))
            await until(lambda: len(verdicts) == 2)
            relay.close()
            await liveness.close()
        assert verdicts[0][1] is False
        assert verdicts[1][1] is None
        assert f"a member that advertises {format_address(a.member.address)}" in verdicts[1][2]

    async def test_a_forged_answer_proves_nothing(self) -> None:
        """A listener that has recorded a genuine exchange and plays the server's part again."""
        verdicts: list[tuple[str, bool | None, str]] = []
        async with rig("b" * 16, secret=SECRET) as b:
            recorded = await _recorded(b.member.address, "/identity")

        async def forger(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                for answer in recorded:
                    await reader.readuntil(b"\r\n\r\n")
                    writer.write(answer)
            writer.close()

        server = await asyncio.start_server(forger, "127.0.0.1", 0)
        liveness = LivenessConnections(lambda *verdict: verdicts.append(verdict[:3]), RING)
        for member_id in ("b" * 16, "c" * 16):
            liveness.check(Member(member_id, *server.sockets[0].getsockname()))
        await until(lambda: len(verdicts) == 2)
        server.close()
        await liveness.close()
        assert [verdict[1:] for verdict in verdicts] == [(None, verdicts[0][2])] * 2
        assert "is not authentic" in verdicts[0][2]


@pytest.mark.parametrize("honest", [True, False])
async def test_only_the_supervisor_can_say_that_it_reaped(honest: bool) -> None:
    """On another host its address may be a stranger's."""

    async def supervisor(request: aiohttp.web.BaseRequest) -> aiohttp.web.Response:
        facts = await request.json()
        names = [facts[name] for name in ("job", "pid", "member", "nonce")]
        assert RING.vouched(facts["mac"], "fence", *names) is not None
        mac = RING.first.vouch("fenced", *names, True, 70) if honest else facts["mac"]
        return aiohttp.web.json_response({"reaped": True, "gone_ms": 70, "mac": mac})

    server = aiohttp.web.Server(supervisor)
    listener = await asyncio.get_running_loop().create_server(server, "127.0.0.1", 0)
    where = format_address(listener.sockets[0].getsockname())
    async with rig(secret=SECRET) as a:
        a.ask(Fence(Member("b" * 16, "127.0.0.1", 1, (("pid", "123"), ("supervisor", where))), "silent"))
        await until(lambda: a.core.told(Accusation) or any("not signed" in note for note in a.notes))
        assert [accusation.age for accusation in a.core.told(Accusation)] == [0.07] * honest
    listener.close()
    await server.shutdown(0.05)


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, to: tuple[str, int]) -> None:
    far_reader, far_writer = await asyncio.open_connection(*to)

    async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await source.read(4096):
                sink.write(data)
        sink.close()

    await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer))


async def _recorded(where: tuple[str, int], path: str) -> list[bytes]:
    """Both heads that a member sends in an exchange, as an eavesdropper sees them."""
    heads: list[bytes] = []

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(*where)
        for _ in range(2):
            far_writer.write(await reader.readuntil(b"\r\n\r\n"))
            heads.append(await far_reader.readuntil(b"\r\n\r\n"))
            writer.write(heads[-1])
        far_writer.close()
        writer.close()

    server = await asyncio.start_server(relay, "127.0.0.1", 0)
    _, sock = await ask(server.sockets[0].getsockname(), path, RING)
    sock.close()
    server.close()
    return heads
