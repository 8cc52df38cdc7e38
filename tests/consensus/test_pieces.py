"""What is too long for one message: cut, lost, mixed up, put together, with bounded memory; by hand and over real sockets."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import aiohttp
import pytest

from consensus.errors import CodecError
from consensus.member import Member
from consensus.messages import Accepted, Envelope, Install, Message, Piece
from consensus.messages.reports import Reports
from consensus.protocol.state.effects import Send
from consensus.view import NO_VIEW_ID, View
from consensus.wire.codec import MAX_BYTES, Codec
from consensus.wire.envelope import OVERHEAD
from consensus.wire.pieces import LARGEST, PART, WHOLE, Pieces, cut

from .fake_core import Rig, rig, until
from .secret import SECRET

PACKET = Random(1).randbytes(3 * PART + 5)


def large_install(size: int = 10_000) -> Install:
    rng = Random(size)
    meta = (("name", "trainer"),)
    members = (Member(f"{rng.getrandbits(64):016x}", f"10.0.{n >> 8}.{n & 255}", 7000, meta) for n in range(size))
    return Install(View(1, NO_VIEW_ID, tuple(members)), None, (0, "a"), Reports.of([]))


class TestCutting:
    def test_what_fits_is_sent_whole(self) -> None:
        assert cut(bytes(WHOLE)) == ()
        assert len(cut(bytes(WHOLE + 1))) == 2

    def test_no_piece_is_longer_than_64_kib_with_envelope_and_seal(self) -> None:
        codec = Codec("j" * 64)
        sender, address = "a" * 64, ("h" * 255, 65_535)
        packet = codec.encode(Envelope("j" * 64, sender, address, large_install()))
        assert len(packet) > 5 * LARGEST
        for piece in cut(packet):
            assert len(codec.encode(Envelope("j" * 64, sender, address, piece))) + OVERHEAD <= LARGEST

    @pytest.mark.parametrize("seed", range(5))
    def test_in_any_order_and_more_than_once(self, seed: int) -> None:
        pieces, rng = Pieces(), Random(seed)
        parts = list(cut(PACKET)) * 2
        rng.shuffle(parts)
        whole = [packet for piece in parts if (packet := pieces.add("a", piece, 1.0)) is not None]
        assert whole[0] == PACKET

    def test_what_was_lost_comes_again(self) -> None:
        pieces, parts = Pieces(), cut(PACKET)
        assert [pieces.add("a", piece, 1.0) for piece in parts[1:]] == [None] * (len(parts) - 1)
        assert pieces.add("a", parts[0], 2.0) == PACKET
        assert len(pieces) == pieces.held == 0


class TestBounds:
    @pytest.mark.parametrize(
        "change",
        [
            {"index": -1},
            {"index": 4},
            {"count": 0},
            {"count": 2**40},
            {"part": b""},
            {"part": bytes(PART + 1)},
            {"part": bytes(PART - 1)},
        ],
    )
    def test_a_piece_of_no_packet_is_refused(self, change: dict[str, object]) -> None:
        pieces = Pieces()
        with pytest.raises(CodecError):
            pieces.add("a", replace(cut(PACKET)[0], **change), 1.0)  # type: ignore[arg-type]
        assert len(pieces) == 0

    def test_pieces_of_two_packets_make_none(self) -> None:
        pieces, parts = Pieces(), cut(PACKET)
        for piece in (replace(parts[0], part=bytes(PART)), *parts[1:-1]):
            pieces.add("a", piece, 1.0)
        with pytest.raises(CodecError, match="belong together"):
            pieces.add("a", parts[-1], 1.0)
        assert len(pieces) == 0

    def test_two_senders_complete_nothing_together(self) -> None:
        pieces, parts = Pieces(), cut(PACKET)
        assert pieces.add("b", parts[0], 1.0) is None
        assert [pieces.add("a", piece, 1.0) for piece in parts[1:]] == [None] * (len(parts) - 1)

    def test_who_begins_packets_without_end_fills_nothing(self) -> None:
        pieces, part = Pieces(), bytes(PART)
        for number in range(2000):
            pieces.add("a", Piece(number.to_bytes(32, "big"), 0, 2, part), 1.0)
        assert len(pieces) == 4
        for number in range(2000):
            pieces.add(f"s{number}", Piece(bytes(32), 0, 2, part), 1.0)
        assert pieces.held <= 4 * MAX_BYTES

    def test_what_is_not_completed_is_forgotten(self) -> None:
        pieces, parts = Pieces(), cut(PACKET)
        pieces.add("a", parts[0], 1.0)
        pieces.add("b", parts[0], 20.0)
        assert len(pieces) == 1


def sent(a: Rig) -> dict[str, dict[str, int]]:
    return a.agent.traffic.as_dict()["sent"]


class TestOverSockets:
    @pytest.mark.parametrize("secret", [(), SECRET])
    async def test_a_view_of_ten_thousand(self, secret: str | tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
        async with rig("a" * 16, secret=secret) as a, rig("b" * 16, secret=secret) as b:
            install, longest = large_install(), 0
            post = a.agent._web.post

            async def measured(address: tuple[str, int], data: bytes) -> bool:
                nonlocal longest
                longest = max(longest, len(data))
                return await post(address, data)

            monkeypatch.setattr(a.agent._web, "post", measured)
            a.ask(Send(b.member.address, install))
            await until(lambda: b.core.named("receive"))
            assert b.core.named("receive") == [("receive", a.member.id, a.member.address, install)]
            assert sent(a)["Piece"]["messages"] > 5
            assert 0 < longest <= LARGEST
            assert b.agent.traffic.as_dict()["dropped"] == {}
            assert len(b.agent._pieces) == 0

    async def test_a_lost_piece_comes_with_the_next_try(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async with rig("a" * 16) as a, rig("b" * 16) as b:
            install, tries = large_install(3000), 0
            post = a.agent._web.post

            async def lossy(address: tuple[str, int], data: bytes) -> bool:
                nonlocal tries
                tries += 1
                return tries != 2 and await post(address, data)

            monkeypatch.setattr(a.agent._web, "post", lossy)
            a.ask(Send(b.member.address, install))
            await until(lambda: "undelivered" in a.agent.traffic.as_dict()["dropped"])
            assert len(b.agent._pieces) == 1
            await until(lambda: not a.agent._long)
            a.ask(Send(b.member.address, install))
            await until(lambda: b.core.named("receive"))

    async def test_what_is_on_its_way_is_not_sent_twice(self) -> None:
        async with rig("a" * 16) as a, rig("b" * 16) as b:
            message: Message = Accepted(1, "parent", (0, "a"), bytes(300_000))
            a.ask(*[Send(b.member.address, replace(message)) for _ in range(20)])
            await until(lambda: b.core.named("receive") and not a.agent._long)
            assert len(b.core.named("receive")) == 1
            assert sent(a)["Piece"]["messages"] == len(cut(bytes(300_000)))

    async def test_pieces_of_somebody_elses_packet_are_refused(self) -> None:
        async with rig("a" * 16) as a, rig("b" * 16) as b:
            foreign = Codec(b.agent._config.job).encode(
                Envelope(b.agent._config.job, "c" * 16, ("127.0.0.1", 1), Accepted(1, "p", (0, "c"), bytes(100_000)))
            )
            a.ask(*[Send(b.member.address, piece) for piece in cut(foreign)])
            await until(lambda: "malformed" in b.agent.traffic.as_dict()["dropped"])
            assert not b.core.named("receive")

    async def test_a_longer_message_is_not_read(self) -> None:
        async with rig() as a, aiohttp.ClientSession() as session:
            host, port = a.member.address
            async with session.post(f"http://{host}:{port}/message", data=bytes(LARGEST + 1)) as response:
                assert response.status == 413
