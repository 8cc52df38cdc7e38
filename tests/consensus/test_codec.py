from __future__ import annotations

import dataclasses
import struct
import typing
from enum import Enum
from types import NoneType
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consensus.config import PROTOCOL_VERSION
from consensus.errors import CodecError, ForeignJobError, ForeignVersionError
from consensus.member import Member
from consensus.messages import MESSAGES, Envelope, Gossip, Install, JoinReply, Nack, Ping, Status, Update
from consensus.messages.reports import Reports
from consensus.view import Cause, Reason, View
from consensus.wire.codec import MAX_BYTES, MAX_DATAGRAM, Codec

IDS = st.text(min_size=1, max_size=20)
MEMBERS = st.builds(
    Member,
    id=IDS,
    host=st.text(min_size=1, max_size=40),
    port=st.integers(1, 65535),
    meta=st.lists(st.tuples(st.text(max_size=8), st.text(max_size=8)), max_size=3).map(tuple),
)
VIEWS = st.builds(
    View,
    epoch=st.integers(0, 2**40),
    parent_id=st.text(max_size=16),
    members=st.lists(MEMBERS, min_size=1, max_size=5, unique_by=lambda member: member.id).map(tuple),
)


def values(hint: Any) -> st.SearchStrategy[Any]:
    """Everything that a field annotated ``hint`` may hold."""
    args = typing.get_args(hint)
    if NoneType in args:
        return st.none() | values(next(arg for arg in args if arg is not NoneType))
    if typing.get_origin(hint) is tuple:
        if args[-1] is Ellipsis:
            return st.lists(values(args[0]), max_size=4).map(tuple)
        return st.tuples(*[values(arg) for arg in args])
    if hint is View:
        return VIEWS
    if hint is Member:
        return MEMBERS
    if isinstance(hint, type) and issubclass(hint, Enum):
        return st.sampled_from(hint)
    if dataclasses.is_dataclass(hint):
        return instances(typing.cast("type", hint))
    plain: dict[Any, st.SearchStrategy[Any]] = {
        str: st.text(max_size=20),
        int: st.integers(-(2**63), 2**63 - 1),
        bytes: st.binary(max_size=80),
        bool: st.booleans(),
    }
    return plain[hint]


def instances(cls: type) -> st.SearchStrategy[Any]:
    hints = typing.get_type_hints(cls)
    return st.builds(cls, **{item.name: values(hints[item.name]) for item in dataclasses.fields(cls) if item.init})


ENVELOPES = st.builds(
    Envelope,
    job=st.just("job"),
    sender=IDS,
    address=st.tuples(st.text(min_size=1, max_size=40), st.integers(1, 65535)),
    message=st.one_of([instances(cls) for cls in MESSAGES]),
)
CODEC = Codec("job")
PING = Ping(7, "b" * 16, 3, "c" * 16, (Update("d" * 16, Status.ALIVE, 1, "e" * 16),), b"p")


def envelope(message: Any, job: str = "job") -> Envelope:
    return Envelope(job, "a" * 16, ("127.0.0.1", 7000), message)


def body(*row: Any) -> bytes:
    """A packet with a right header and this array."""
    job = b"job"
    return struct.pack(">BBH", 0xF7, PROTOCOL_VERSION, len(job)) + job + msgpack.packb(row)


@pytest.mark.parametrize("cls", MESSAGES, ids=lambda cls: cls.__name__)
def test_round_trip_of_each_type(cls: type) -> None:
    @settings(max_examples=25, deadline=None)
    @given(instances(cls))
    def check(message: Any) -> None:
        sent = envelope(message)
        received = CODEC.decode(CODEC.encode(sent))
        assert received == sent
        assert type(received.message) is cls

    check()


@settings(max_examples=300, deadline=None)
@given(ENVELOPES, st.data())
def test_mutations_raise_nothing_but_codec_error(sent: Envelope, data: st.DataObject) -> None:
    packet = bytearray(CODEC.encode(sent))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(packet) - 1))
        match data.draw(st.integers(0, 3)):
            case 0:
                packet[at] = data.draw(st.integers(0, 255))
            case 1:
                del packet[at:]
            case 2:
                packet[at:at] = data.draw(st.binary(max_size=6))
            case _:
                packet[at] ^= 1 << data.draw(st.integers(0, 7))
        if not packet:
            break
    try:
        received = CODEC.decode(bytes(packet))
    except CodecError:
        return
    assert CODEC.decode(CODEC.encode(received)) == received  # whatever passes is a proper message


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200))
def test_noise_is_refused(noise: bytes) -> None:
    with pytest.raises(CodecError):
        CODEC.decode(noise)
    with pytest.raises(CodecError):
        CODEC.decode(CODEC.encode(envelope(PING)) + (noise or b"\x00"))


def test_every_truncation_is_refused() -> None:
    packet = CODEC.encode(envelope(PING))
    for end in range(len(packet)):
        with pytest.raises(CodecError):
            CODEC.decode(packet[:end])


def test_a_foreign_job_is_named_without_looking_at_the_rest() -> None:
    packet = Codec("other").encode(envelope(PING, "other"))
    with pytest.raises(ForeignJobError) as caught:
        CODEC.decode(packet[:-5] + b"\xc1\xc1\xc1\xc1\xc1")
    assert caught.value.job == "other"
    with pytest.raises(ForeignJobError):
        Codec("jo").decode(CODEC.encode(envelope(PING)))  # one name is the start of the other
    with pytest.raises(ForeignJobError):
        CODEC.decode(Codec("jo").encode(envelope(PING, "jo")))


def test_a_foreign_version_is_named_whatever_follows() -> None:
    packet = bytearray(CODEC.encode(envelope(PING)))
    packet[1] = 77
    with pytest.raises(ForeignVersionError) as caught:
        CODEC.decode(bytes(packet))
    assert caught.value.version == 77
    with pytest.raises(ForeignVersionError):
        CODEC.decode(bytes(packet[:2]))


NACK = next(index for index, cls in enumerate(MESSAGES) if cls is Nack)
JOIN_REPLY = next(index for index, cls in enumerate(MESSAGES) if cls is JoinReply)
GOSSIP = next(index for index, cls in enumerate(MESSAGES) if cls is Gossip)
MEMBER_ROW = ["m", "127.0.0.1", 7000, []]


@pytest.mark.parametrize(
    "row",
    [
        (),
        ("a", "h", 1),
        ("a", "h", 1, NACK),
        ("a", "h", 1, NACK, 5, 6),
        ("a", "h", 1, NACK, True),
        ("a", "h", 1, NACK, 5.0),
        ("a", "h", 1, NACK, "5"),
        ("a", "h", 1, NACK, None),
        ("a", "h", 1, NACK, 2**63),
        ("a", "h", 1, NACK, {}),
        ("a", "h", 1, NACK, msgpack.Timestamp(1)),
        ("a", "h", 1, NACK, msgpack.ExtType(5, b"")),
        ("a", "h", 1, -1, 5),
        ("a", "h", 1, len(MESSAGES), 5),
        ("a", "h", 1, True, 5),
        ("", "h", 1, NACK, 5),
        ("a" * 65, "h", 1, NACK, 5),
        (b"a", "h", 1, NACK, 5),
        ("a", "", 1, NACK, 5),
        ("a", "h", 0, NACK, 5),
        ("a", "h", 65536, NACK, 5),
        ("a", "h", True, NACK, 5),
        ("a", "h", 1, GOSSIP, [["m", "nonsense", 1, "b"]]),
        ("a", "h", 1, GOSSIP, [["m", "alive", 1]]),
        ("a", "h", 1, GOSSIP, ["alive"]),
        ("a", "h", 1, GOSSIP, {"m": 1}),
        ("a", "h", 1, JOIN_REPLY, [1, "", [MEMBER_ROW], "not its hash"], None),
        ("a", "h", 1, JOIN_REPLY, [1, "", [MEMBER_ROW], ""], None),
        ("a", "h", 1, JOIN_REPLY, [1, "", [], ""], None),
        ("a", "h", 1, JOIN_REPLY, None, ["m", "127.0.0.1", 0, []]),
        ("a", "h", 1, JOIN_REPLY, None, ["m", "127.0.0.1", 7000, [["key"]]]),
        ("a", "h", 1, JOIN_REPLY, None, ["m", "127.0.0.1", 7000, [["key", "value"]] * 65]),
    ],
)
def test_schema_is_exact(row: tuple[Any, ...]) -> None:
    with pytest.raises(CodecError):
        CODEC.decode(body(*row))


def test_a_right_row_passes() -> None:
    assert CODEC.decode(body("a", "h", 1, NACK, 5)) == Envelope("job", "a", ("h", 1), Nack(5))


def test_depth_and_claimed_sizes_are_bounded() -> None:
    header = body()[:-1]
    for claim in (
        b"\x91" * 5000,
        b"\xdd\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
    ):
        with pytest.raises(CodecError):
            CODEC.decode(header + claim)


def test_list_length_is_bounded() -> None:
    small = Codec("job", max_members=64)
    updates = tuple(Update(f"m{index}", Status.ALIVE, 0, "by") for index in range(65))
    packet = CODEC.encode(envelope(Gossip(updates)))
    assert CODEC.decode(packet).message == Gossip(updates)
    with pytest.raises(CodecError):
        small.decode(packet)


def test_size_limits() -> None:
    view = View(1, "", (Member("m", "127.0.0.1", 7000),))
    big = envelope(Install(view, None, (0, "m"), Reports.of([bytes(100_000)])))
    packet = CODEC.encode(big)
    assert CODEC.decode(packet) == big
    with pytest.raises(CodecError):
        CODEC.decode(packet, limit=MAX_DATAGRAM)
    with pytest.raises(CodecError):
        CODEC.encode(envelope(Install(view, None, (0, "m"), Reports.of([bytes(MAX_BYTES)]))))
    assert CODEC.decode(CODEC.encode(big)) == big  # a refused message leaves nothing behind


def test_reasons_are_bounded() -> None:
    """They are kept for a long time, and shown."""
    view = View(1, "", (Member("m", "127.0.0.1", 7000),))
    for size, taken in ((200, True), (201, False)):
        packet = CODEC.encode(
            envelope(Install(view, None, (0, "m"), Reports.of([]), (Reason("x", Cause.PROOF, "d" * size, "m"),)))
        )
        if taken:
            CODEC.decode(packet)
        else:
            with pytest.raises(CodecError, match="more than 200 characters"):
                CODEC.decode(packet)


@pytest.mark.parametrize(
    "bad",
    [
        envelope(PING, "other"),
        envelope("no message"),
        envelope(dataclasses.replace(PING, seq=2**70)),
        envelope(dataclasses.replace(PING, target="\ud800")),
        envelope(dataclasses.replace(PING, target=object())),
        envelope(dataclasses.replace(PING, updates=(5,))),
    ],
)
def test_what_cannot_be_sent_is_a_codec_error(bad: Envelope) -> None:
    with pytest.raises(CodecError):
        CODEC.encode(bad)
    assert CODEC.decode(CODEC.encode(envelope(PING))).message == PING
