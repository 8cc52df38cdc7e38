"""What hostile bytes can do to a link: end it, with an error that has a type, and nothing is allocated for them."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftlib.links.incoming import Incoming
from ftlib.links.outgoing import Outgoing
from ftlib.links.wire import FRAME, HEADER, PREFIX, TAG, Cursor, Kind, Prefix, Seal, WireError, read_prefix

KEY = bytes(range(32))
MOST = 1 << 30
BUFFER = 1 << 16


class Tape:
    """A path in memory: what was written can be read, in pieces of any size."""

    name = "tape"
    quick = True

    def __init__(self, data: bytes = b"", *, piece: int = 1 << 20, sealed: bool = True) -> None:
        self.sealed = sealed
        self.data = bytearray(data)
        self.piece = piece

    def fileno(self) -> int:
        return -1

    def refresh(self) -> bool:
        return False

    def read(self, into: Sequence[memoryview]) -> int:
        left = part = self.data[: min(self.piece, sum(map(len, into)))]
        for view in into:
            some = left[: len(view)]
            view[: len(some)] = some
            left = left[len(some) :]
        del self.data[: len(part)]
        return len(part)

    def write(self, views: list[memoryview]) -> int:
        data = b"".join(views)[: self.piece]
        self.data += data
        return len(data)

    def silent(self) -> float:
        return 0.0

    def unsent(self) -> bool:
        return False

    def close(self) -> None:
        pass


class Reader:
    """An ``Incoming`` and what came of it."""

    def __init__(self, tape: Tape, *, buffer: int = BUFFER) -> None:
        self.broken: list[Exception] = []
        self.said: list[Kind] = []
        self.got: list[tuple[bytes | None, bytes, BaseException | None]] = []
        self.incoming = Incoming(Seal(KEY, b"there"), buffer, MOST, lambda kind, _: self.said.append(kind), self.broken.append)
        self.incoming.open(tape)

    def ask(self, size: int | None = None) -> None:
        memory = bytearray(0 if size is None else size)

        def place(header: bytes) -> list[memoryview]:
            nonlocal memory
            if size is None:
                memory = bytearray(int(header.split(b" ")[0]))
            return [memoryview(memory)]

        self.incoming.receive(place, lambda header, error: self.got.append((header, bytes(memory), error)))
        self.incoming.pump()

    def skip(self) -> None:
        self.incoming.receive(lambda header: None, lambda header, error: self.got.append((header, b"", error)))


def written(messages: list[tuple[bytes, bytes, bool]], *, piece: int = 1 << 20, sealed: bool = True) -> Tape:
    tape = Tape(piece=piece, sealed=sealed)
    outgoing = Outgoing(Seal(KEY, b"there"), lambda error: None)
    outgoing.open(tape)
    for header, payload, seal in messages:
        outgoing.send(Kind.MESSAGE, header, [memoryview(payload)], lambda error: None, sealed=seal)
    while len(outgoing):
        outgoing.flush()
    return tape


MESSAGES = st.lists(
    st.tuples(st.integers(0, 70_000), st.integers(0, 300), st.booleans()).map(
        lambda shape: (b"%d %s" % (shape[0], b"h" * shape[1]), random.Random(shape[0]).randbytes(shape[0]), shape[2])
    ),
    max_size=6,
)


@given(MESSAGES, st.integers(1, 100_000), st.integers(1, 100_000), st.booleans(), st.integers(0, 6))
def test_messages_come_as_they_were_sent(
    messages: list[tuple[bytes, bytes, bool]], out: int, into: int, sealed: bool, late: int
) -> None:
    tape = written(messages, piece=max(out, 200), sealed=sealed)
    tape.piece = max(into, 200)
    reader = Reader(tape)
    for number in range(len(messages)):
        if number >= late:
            reader.incoming.pump()  # it comes before it is asked for
        reader.ask()
    assert [(header, payload) for header, payload, _ in reader.got] == [(header, payload) for header, payload, _ in messages]
    assert not reader.broken and all(error is None for _, _, error in reader.got)


def test_more_than_the_buffer_is_not_read() -> None:
    payload = bytes(BUFFER // 3)
    reader = Reader(written([(b"%d" % len(payload), payload, False)] * 5))
    reader.incoming.pump()
    assert reader.incoming.paused and len(reader.incoming) == 2
    for _ in range(5):
        reader.ask()
    assert len(reader.got) == 5 and not reader.incoming.paused and not reader.broken


def test_a_receiver_that_refuses_ends_nothing() -> None:
    reader = Reader(written([(b"10", b"0123456789", seal) for seal in (False, True) for _ in range(3)]))
    for _ in range(2):
        reader.ask(size=9)
        reader.incoming.receive(lambda header: None, lambda header, error: reader.got.append((header, b"", error)))
        reader.ask()
    wrong, nothing, right = reader.got[:3]
    assert isinstance(wrong[2], ValueError) and nothing[2] is None and right == (b"10", b"0123456789", None)
    assert [type(error) for *_, error in reader.got[3:]] == [ValueError, type(None), type(None)] and not reader.broken


def test_prefixes() -> None:
    good = Prefix(Kind.MESSAGE, True, 7, 99)
    assert read_prefix(good.pack(), MOST) == good and len(good.pack()) == PREFIX
    for bad in (
        Prefix(Kind.MESSAGE, False, HEADER + 1, 0),
        Prefix(Kind.MESSAGE, False, 0, MOST + 1),
        Prefix(Kind.GOODBYE, False, 0, 1),
    ):
        with pytest.raises(WireError):
            read_prefix(bad.pack(), MOST)


def test_a_message_is_only_itself() -> None:
    """Sealed headers and payloads cannot be repeated, moved, left out, or sent back."""
    one = bytes(written([(b"4 0", b"data", True)]).data)
    both = bytes(written([(b"4 0", b"data", True), (b"4 1", b"data", True)]).data)
    first, second = both[: len(one)], both[len(one) :]
    assert first == one
    for wrong in (second, first + first, first[:-20] + second[-20:] + second):
        reader = Reader(Tape(wrong))
        for _ in range(3):
            reader.ask()
        assert isinstance(reader.broken[0], WireError)
    back = Incoming(Seal(KEY, b"back"), BUFFER, MOST, lambda *_: None, (found := list[Exception]()).append)
    back.open(Tape(first))
    back.pump()
    assert isinstance(found[0], WireError)


@pytest.mark.parametrize("sealed", [True, False], ids=["sealed", "ring"])
def test_mutated_bytes(sealed: bool) -> None:
    """200,000 (with those of ``soak``): no crash, no allocation beyond the bound, and nothing authentic that was not sent."""
    mutate(sealed, 1_000)


@pytest.mark.soak
@pytest.mark.parametrize("sealed", [True, False], ids=["sealed", "ring"])
def test_many_mutated_bytes(sealed: bool) -> None:
    mutate(sealed, 100_000)


def mutate(sealed: bool, rounds: int) -> None:
    chance = random.Random(20)
    messages = [(b"300 one", bytes(300), True), (b"0 two", b"", False), (b"2000 three", b"x" * 2000, False)]
    whole = bytes(written(messages, sealed=sealed).data)
    sent = {header for header, _, _ in messages}
    tracemalloc.start()
    try:
        for _ in range(rounds):
            data = bytearray(whole)
            for _ in range(chance.choice((1, 1, 2, 8))):
                at = chance.choice((chance.randrange(PREFIX), chance.randrange(len(data))))
                match chance.randrange(4):
                    case 0:
                        data[at % len(data)] ^= 1 << chance.randrange(8)
                    case 1:
                        data[at % len(data)] = chance.randrange(256)
                    case 2:
                        del data[at : at + chance.randrange(1, 40)]
                    case 3:
                        data[at:at] = chance.randbytes(chance.randrange(1, 40))
                if not data:
                    break
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            reader = Reader(Tape(bytes(data), sealed=sealed))
            for _ in range(chance.randrange(3)):
                reader.skip()
            reader.incoming.pump()
            assert all(isinstance(error, WireError) for error in reader.broken)
            if sealed:
                assert {header for header, _, _ in reader.got if header is not None} <= sent
            assert tracemalloc.get_traced_memory()[1] - before < BUFFER + FRAME + (1 << 18)
    finally:
        tracemalloc.stop()


def test_room_that_comes_with_the_write_that_filled_the_path_is_not_missed() -> None:
    class Full(Tape):
        """Takes ten bytes at a time; while it does, somebody else hears that there is room."""

        def write(self, views: list[memoryview]) -> int:
            data = b"".join(views)[:10]
            self.data += data
            if outgoing.blocked:
                outgoing.flush()
            return len(data)

    outgoing, tape, done = Outgoing(Seal(KEY, b"there"), lambda error: None), Full(), list[object]()
    outgoing.open(tape)
    outgoing.send(Kind.MESSAGE, b"4", [memoryview(b"data")], done.append, sealed=False)
    assert done == [None] and len(tape.data) == PREFIX + 1 + TAG + 4


def test_a_cursor_goes_over_all_pieces() -> None:
    memory = [bytearray(3), bytearray(0), bytearray(5)]
    cursor = Cursor(map(memoryview, memory))
    for piece in (b"ab", b"cd", b"efgh"):
        cursor.put(piece)
    assert cursor.left == 0 and b"".join(memory) == b"abcdefgh"
    cursor = Cursor(map(memoryview, memory))
    assert bytes(cursor.take(4)) == b"abcd" and bytes(cursor.take(9)) == b"efgh" and cursor.left == 0
