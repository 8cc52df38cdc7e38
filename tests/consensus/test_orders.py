"""Orders from outside to drain or kill a training process: who may give them, for which lifetime, and that they come once."""

from __future__ import annotations

import asyncio
import dataclasses
import signal

import pytest

from consensus import KeyRing, OrderKind, SecretError, give_order, new_order, parse_address
from consensus.runtime.agent.orders import Orders
from consensus.wire.orders import OutsideOrder
from tests.harness.basics import TIMEOUT
from tests.harness.drip import dripping

from .fake_core import Rig, rig

SECRET = "the secret of these tests"
RING = KeyRing([SECRET])


def urlless(order: OutsideOrder) -> dict[str, str]:
    """The query of ``order``."""
    from urllib.parse import parse_qsl, urlsplit

    return dict(parse_qsl(urlsplit(order.target()).query))


class Bench:
    """``Orders`` of member aaaa in epoch 3, with what it sent and noted."""

    def __init__(self) -> None:
        self.sent: list[int] = []
        self.notes: list[str] = []
        self.orders = Orders("aaaa", lambda: 3, self.sent.append, lambda _level, _kind, text: self.notes.append(text))

    def give(self, order: OutsideOrder, *, signed: bool = True, **changes: str) -> int:
        verdict = self.orders.take({**urlless(order), **changes}, "10.0.0.1", signed=signed)
        if verdict.carry_out is not None:
            verdict.carry_out()
        return verdict.status


@pytest.mark.parametrize(("kind", "number"), [(OrderKind.DRAIN, signal.SIGTERM), (OrderKind.KILL, signal.SIGKILL)])
def test_an_order_is_carried_out_and_told(kind: OrderKind, number: int) -> None:
    bench = Bench()
    assert bench.give(new_order(kind, "aaaa", 3)) == 200
    assert bench.sent == [number]
    assert bench.notes == [f"{kind.value}, ordered from 10.0.0.1"]
    assert bench.orders.counts() == {kind.value: 1}
    assert bench.orders.latest == f"{kind.value}, ordered from 10.0.0.1"


@pytest.mark.parametrize(
    ("order", "changes", "status"),
    [
        (new_order(OrderKind.KILL, "bbbb"), {}, 410),
        (new_order(OrderKind.KILL, "aaaa", 2), {}, 409),
        (new_order(OrderKind.KILL, "aaaa"), {"kind": "reboot"}, 400),
        (new_order(OrderKind.KILL, "aaaa"), {"nonce": ""}, 400),
        (new_order(OrderKind.KILL, "aaaa"), {"nonce": "n" * 65}, 400),
        (new_order(OrderKind.KILL, "aaaa"), {"epoch": "soon"}, 400),
    ],
)
def test_what_is_refused_does_nothing(order: OutsideOrder, changes: dict[str, str], status: int) -> None:
    bench = Bench()
    assert bench.give(order, **changes) == status
    assert not bench.sent
    assert bench.orders.counts() == {"refused": 1}


def test_nobody_orders_without_a_secret() -> None:
    bench = Bench()
    assert bench.give(new_order(OrderKind.KILL, "aaaa", 3), signed=False) == 403
    assert not bench.sent


def test_the_same_order_twice_is_one() -> None:
    bench = Bench()
    order = new_order(OrderKind.DRAIN, "aaaa", 3)
    assert bench.give(order) == bench.give(order) == 200
    assert bench.sent == [signal.SIGTERM]
    assert bench.orders.counts() == {"drain": 1, "again": 1}
    assert bench.give(dataclasses.replace(order, kind=OrderKind.KILL)) == 200
    assert bench.sent == [signal.SIGTERM, signal.SIGKILL]


def test_only_the_newest_orders_are_remembered() -> None:
    bench = Bench()
    first = new_order(OrderKind.DRAIN, "aaaa")
    for order in (first, *(new_order(OrderKind.DRAIN, "aaaa") for _ in range(100)), first):
        assert bench.give(order) == 200
    assert len(bench.sent) == 102


def test_an_answer_without_an_end_is_not_waited_for() -> None:
    with dripping() as slow, pytest.raises(TimeoutError):
        give_order(parse_address(slow), new_order(OrderKind.KILL, "aaaa", 3), RING, timeout=0.3)


async def given(there: Rig, order: OutsideOrder, ring: KeyRing = RING) -> tuple[int, str]:
    return await asyncio.to_thread(give_order, there.member.address, order, ring, timeout=TIMEOUT)


async def test_over_a_real_socket() -> None:
    async with rig(secret=SECRET) as there:
        assert await given(there, new_order(OrderKind.DRAIN, there.member.id)) == (200, "drain: the signal is sent")
        assert (await given(there, new_order(OrderKind.DRAIN, "f" * 16)))[0] == 410
        with pytest.raises(SecretError):
            await given(there, new_order(OrderKind.KILL, there.member.id), KeyRing(["another secret of other tests"]))
        assert there.signals == [signal.SIGTERM]
        assert there.agent.status()["orders"] == {"drain": 1, "refused": 1}
        assert any("drain, ordered from" in note for note in there.notes)
