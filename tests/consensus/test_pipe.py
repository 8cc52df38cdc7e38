"""Values between two processes: whole, in order, and never waited for without an end."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from enum import IntEnum
from fractions import Fraction
from typing import Any

import pytest

from consensus.runtime.host.exchange import plain
from consensus.runtime.host.pipe import LoopPipe, Pipe
from tests.harness.basics import TIMEOUT


def test_values_arrive_whole_and_in_order_both_ways() -> None:
    ours, theirs = socket.socketpair()
    sent: list[Any] = [("perform", "ready", ("x",)), {"big": bytes(300_000)}, None]

    async def child() -> list[Any]:
        got: list[Any] = []
        over = asyncio.Event()

        def received(value: Any) -> None:
            got.append(value)
            pipe.send(value)

        pipe = LoopPipe(received, over.set)
        await pipe.open(theirs)
        await asyncio.wait_for(asyncio.gather(over.wait(), asyncio.to_thread(parent)), TIMEOUT)
        return got

    def parent() -> None:
        pipe = Pipe(ours)
        for value in sent:
            assert pipe.send(value)
            assert pipe.receive() == value
        pipe.shut()
        with pytest.raises(EOFError):
            pipe.receive()
        pipe.close()

    assert asyncio.run(child()) == sent


def test_an_end_that_takes_nothing_is_given_up() -> None:
    ours, theirs = socket.socketpair()
    pipe = Pipe(ours, send_timeout=0.2)
    began = time.monotonic()
    with theirs:
        while pipe.send(bytes(100_000)):
            assert time.monotonic() - began < 100, "it never fills up"
        assert not pipe.send("more")
        with pytest.raises(EOFError):  # so whoever listens learns that it is over
            pipe.receive()
    pipe.close()
    assert 0.15 < time.monotonic() - began < 100


class Version(str):
    """As torch's own."""

    __slots__ = ()


class Kind(IntEnum):
    ONE = 1


def test_facts_are_made_of_what_every_process_has() -> None:
    given = {Version("a"): [Version("b"), (Kind.ONE, Fraction(1, 2)), None, True], 2: {3}, "other": Version}
    made = plain(given)
    assert made == {"a": ["b", [1, 0.5], None, True], 2: [3], "other": str(Version)}
    inner = made["a"][1]
    assert [type(each) for each in (*made, made["a"][0], *inner, made["a"][3])] == [str, int, str, str, int, float, bool]


def test_a_key_of_facts_that_json_has_not_becomes_its_text() -> None:
    given = {("a", 1): 2, frozenset((3,)): 4, b"c": 5, None: 6, 1.5: 7}
    assert plain(given) == {"('a', 1)": 2, "frozenset({3})": 4, "b'c'": 5, None: 6, 1.5: 7}
    json.dumps(plain(given))
