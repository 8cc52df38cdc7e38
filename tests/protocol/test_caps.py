"""What others say fills no table without bound, however much of it they say (invariant 12)."""

from __future__ import annotations

import pytest

from consensus.config import Config
from consensus.errors import CodecError, ForeignJobError
from consensus.messages import (
    Ack,
    Envelope,
    Evidence,
    EvidenceKind,
    FlushReply,
    Gossip,
    JoinReply,
    JoinRequest,
    Message,
    Ping,
    PingRequest,
    Refused,
    Status,
    Update,
)
from consensus.protocol.detection.probe import RELAYS
from consensus.protocol.machine import Machine
from consensus.protocol.state.effects import Note
from consensus.view import NO_VIEW_ID
from consensus.wire.codec import Codec

from .people import machine_in, member, sends, view_of

MANY = 3000
SMALL = Config(max_members=100)


def flood(machine: Machine, *messages: Message) -> None:
    """Each message from another sender."""
    for number, message in enumerate(messages):
        machine.receive(f"x{number}", ("10.9.0.1", 1 + number), message, 100.1)
    machine.drain()


def test_accusers_of_one_suspicion() -> None:
    machine = machine_in("abcde", "b")
    flood(machine, *(Gossip((Update("c", Status.SUSPECT, 0, f"y{number}"),)) for number in range(MANY)))
    peer = machine._core.table.get("c")
    assert peer is not None
    assert peer.suspicion is None, "what strangers say begins nothing"
    for name in "ade":
        machine.receive(name, member(name).address, Gossip((Update("c", Status.SUSPECT, 0, name),)), 100.2)
    assert peer.suspicion is not None
    assert 3 <= len(peer.suspicion.accusers) <= 4


def test_rumours_about_strangers_are_not_kept() -> None:
    machine = machine_in("abc", "b")
    flood(machine, *(Gossip((Update(f"y{number}", Status.SUSPECT, 5, "a"),)) for number in range(MANY)))
    assert len(machine._core.table) == 2
    assert len(machine._core.rumours) == 0


def test_rumours_about_members() -> None:
    machine = machine_in("abc", "b")
    flood(machine, *(Gossip((Update("c", Status.ALIVE, number, f"y{number}"),)) for number in range(MANY)))
    assert len(machine._core.rumours) <= 4


def test_joiners() -> None:
    machine = machine_in("ab", "a", config=SMALL)
    requests = [JoinRequest(member(f"x{number}", 1 + number), True, SMALL.terms) for number in range(MANY)]
    for request in requests:
        machine.receive(request.member.id, request.member.address, request, 100.1)
    assert len(machine._core.applicants) == 100
    assert "joiners are waiting already" in sends(machine.drain(), Refused)[-1].message.reason  # type: ignore[union-attr]


def test_acks_relays_and_reports() -> None:
    machine = machine_in("abc", "b", config=SMALL)
    view_id = view_of("abc").view_id
    flood(machine, *(Ping(1, "b", 1, view_id) for _ in range(MANY)))
    assert len(machine._core.acked) == 200
    assert machine.status()["members"]
    machine.receive("a", member("a").address, Ping(2, "b", 1, view_id), 100.2)
    flood(machine, *(PingRequest(number, member("c")) for number in range(MANY)))
    assert len(machine._detection._prober.relays) == RELAYS
    flood(machine, *(FlushReply(1, view_id, bytes(100)) for _ in range(MANY)))
    installation = machine._change.installer._installation
    assert installation is None or len(installation.reports) <= 3


def test_a_searching_member_keeps_no_strangers() -> None:
    machine = machine_in("a", "a")
    machine._core.view = None
    flood(machine, *(JoinReply(None, None) for _ in range(MANY)))
    assert len(machine._admission.search._lonely) <= 1


def test_texts_of_others_are_cut() -> None:
    machine = machine_in("abc", "b")
    evidence = Evidence(view_of("abc").view_id, "c", EvidenceKind.SILENCE, "y" * 4000)
    machine.receive("a", member("a").address, evidence, 200.0)
    notes = [effect for effect in machine.drain() if isinstance(effect, Note)]
    assert notes
    assert all(len(note.text) < 400 for note in notes)


@pytest.mark.parametrize("length", [4097, 60_000])
def test_no_text_is_longer_than_4096(length: int) -> None:
    codec = Codec("j")
    packet = codec.encode(Envelope("j", "a", ("10.0.0.1", 1), Refused("y" * length)))
    with pytest.raises(CodecError):
        codec.decode(packet)


def test_the_name_of_a_foreign_job_is_short() -> None:
    packet = Codec("j").encode(Envelope("j", "a", ("10.0.0.1", 1), Refused("")))
    for size, kind in ((64, ForeignJobError), (60_000, CodecError)):
        name = b"k" * size
        with pytest.raises(CodecError) as error:
            Codec("j").decode(packet[:2] + len(name).to_bytes(2, "big") + name + packet[5:])
        assert type(error.value) is kind


def test_strangers_that_were_acked_long_ago_leave_room_for_others() -> None:
    """A new view forgets them after twice the time of the lease that the ack granted, and none before."""
    config = Config(max_members=2, exclude_after=3.0)
    machine = machine_in("ab", "a", config=config)
    flood(machine, *(Ping(1, "a", 0, NO_VIEW_ID) for _ in range(10)))
    view = view_of("ab")
    for epoch, after, room in ((2, 5.9, False), (3, 6.1, True)):
        view = view_of("ab", epoch, view.view_id, view.cluster)
        machine._change.adopt(view, "a", 100.1 + after)
        machine.drain()
        machine.receive("y", member("y").address, Ping(2, "a", 0, NO_VIEW_ID), 100.1 + after)
        assert bool(sends(machine.drain(), Ack)) is room
