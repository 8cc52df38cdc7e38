"""Tensors on GPUs: which way they go, and that what arrives is what was meant, whatever the device does late.

Here is no GPU: a device that does everything as late as it may stands in for it, Gloo for NCCL, a table for CUDA IPC. So the
order of streams and the code of each way are tried; the ways themselves are not. ``test_gpus`` is for real ones.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist

from ftlib import Channel, CollectiveError, CollectiveTimeout, GroupClosed, Mismatch
from ftlib.collective.devices import carriers, choice
from ftlib.collective.devices.carriers import Carrier, GroupCarrier, Mapped, MappedCarrier, await_event
from ftlib.collective.devices.choice import choose, known
from ftlib.collective.devices.store import LinkStore
from ftlib.common.devices import Event
from tests.harness.basics import eventually
from tests.harness.late_device import PLACE, LateDevice

from .test_groups import collectives, two

LIMIT = 60.0
LARGE = 1 << 20
GPU = torch.float64
"""The tensors that are taken to be on the device."""


class Table(Mapped):
    """Memory of this process, by number."""

    tensors: dict[int, torch.Tensor] = {}
    numbers = itertools.count()

    def export(self, tensor: torch.Tensor) -> list[Any]:
        number = next(self.numbers)
        self.tensors[number] = tensor
        return [number]

    def open(self, said: list[Any]) -> torch.Tensor:
        return self.tensors.pop(said[0])


class Shut(Table):
    def open(self, said: list[Any]) -> torch.Tensor:
        raise RuntimeError("no peer access")


class Gloo:
    """A group of two. Large sends never end but by ``abort``: Gloo's own could not be ended, as those of NCCL can."""

    def __init__(self, store: LinkStore, rank: int) -> None:
        self._group: Any = dist.ProcessGroupGloo(store, rank, 2, timedelta(seconds=LIMIT))
        self._aborted = threading.Event()

    def send(self, tensors: list[torch.Tensor], to: int, tag: int) -> Any:
        return _Stuck(self._aborted) if tensors[0].nbytes > LARGE else self._group.send(tensors, to, tag)

    def recv(self, tensors: list[torch.Tensor], source: int, tag: int) -> Any:
        return _Stuck(self._aborted) if tensors[0].nbytes > LARGE else self._group.recv(tensors, source, tag)

    def abort(self) -> None:
        self._aborted.set()


class _Stuck:
    def __init__(self, aborted: threading.Event) -> None:
        self._aborted = aborted

    def wait(self) -> None:
        assert self._aborted.wait(LIMIT)


def ways(mapped: Mapped) -> Callable[..., Carrier]:
    def make(way: str, tell: Callable[[list[Any]], None], *, sends: bool) -> Carrier:
        if way == "nccl":
            return GroupCarrier(Gloo, tell, sends=sends, place=PLACE)
        return MappedCarrier(tell, mapped, sends=sends, place=PLACE)

    return make


FACTS = {
    "nccl": {"where": "", "gpus": ["one"], "current": "one", "nccl": "2.28"},
    "ipc": {"where": "here", "gpus": ["one"], "current": "one", "nccl": "2.28"},
    "staging": {},
}
WAYS = pytest.mark.parametrize("way", FACTS)


@contextmanager
def standing_in(make: Callable[..., Carrier], facts: Callable[[], choice.Facts]) -> Iterator[None]:
    """Until the end of the block, carriers are made by ``make``, and this process says ``facts`` of its GPUs."""
    with patch.object(carriers, "carrier", make), patch.object(choice, "facts", facts):
        yield


@contextmanager
def pair(way: str, seed: int = 0, mapped: Mapped | None = None, **options: Any) -> Iterator[tuple[Any, Any, LateDevice]]:
    """Two groups on the late device, whose carriers work already."""
    device = LateDevice(seed, lambda tensor: tensor.dtype is GPU)
    with device.placed(), standing_in(ways(mapped or Table()), lambda: FACTS[way]), two(**options) as (a, b):
        for one, other in ((a, b), (b, a)):
            assert_sent(one, other)
        if mapped is None:
            eventually(lambda: way == "staging" or all(told(group).startswith(way) for group in (a, b)), lambda: told(a))
        yield a, b, device


def assert_sent(one: Any, other: Any) -> None:
    sent = one.send_tensor(torch.ones(5, dtype=GPU), async_op=True)
    assert other.recv_tensor(torch.empty(5, dtype=GPU), timeout=LIMIT).sum() == 5
    sent.wait(LIMIT)


def told(group: Any) -> str:
    (facts,) = group.describe()["peers"].values()
    return str(facts["gpu"])


class Never(Event):
    def query(self) -> bool:
        return False


def test_a_device_that_does_not_come_is_named() -> None:
    with pytest.raises(CollectiveTimeout, match="the GPU has not done the copy in"):
        await_event(Never(), "the copy", 0.01)


@WAYS
@pytest.mark.parametrize("seed", range(3))
def test_what_still_runs_when_it_is_called_comes_first(way: str, seed: int) -> None:
    with pair(way, seed) as (a, b, device):
        for value in range(4):
            tensor, into = torch.zeros(1000, dtype=GPU), torch.zeros(1000, dtype=GPU)
            device.enqueue(partial(tensor.fill_, value), tensor)
            device.enqueue(partial(into.fill_, -1), into)
            sent = a.send_tensor(tensor, async_op=True)
            found = b.recv_tensor(into, timeout=LIMIT)
            device.synchronize()
            assert found is into and bool((into == value).all())
            sent.wait(LIMIT)
            device.enqueue(partial(tensor.fill_, -2), tensor)  # its memory is ours again


@WAYS
def test_trees_and_order(way: str) -> None:
    """Tensors on both sides of the border in one value; what comes after it stays after it."""
    with pair(way) as (a, b, device):
        tensors = {name: torch.zeros(7, dtype=GPU) for name in "xyz"}
        for name, tensor in tensors.items():
            device.enqueue(partial(tensor.fill_, ord(name)), tensor)
        works = [a.send(["tree", tensors, torch.ones(3), torch.empty(0, dtype=GPU)], async_op=True)]
        works += [a.send(number, async_op=True) for number in range(10)]
        word, found, host, empty = b.recv(timeout=LIMIT)
        assert [b.recv(timeout=LIMIT) for _ in range(10)] == list(range(10))
        assert word == "tree" and host.sum() == 3 and empty.numel() == 0
        assert {name: float(tensor[-1]) for name, tensor in found.items()} == {name: ord(name) for name in "xyz"}
        for work in works:
            work.wait(LIMIT)


@WAYS
def test_what_does_not_pair_up_is_used_up(way: str) -> None:
    with pair(way) as (a, b, _):
        for shape in ((3,), (4,)):
            a.send_tensor(torch.ones(shape, dtype=GPU), async_op=True)
        with pytest.raises(Mismatch, match="use equal dtypes and shapes"):
            b.recv_tensor(torch.empty(9, dtype=GPU), timeout=LIMIT)
        assert b.recv_tensor(torch.empty(4, dtype=GPU), timeout=LIMIT).sum() == 4
        a.send_tensor(torch.ones(2, dtype=GPU), async_op=True)
        a.send("kept", async_op=True)
        with pytest.raises(Mismatch, match="the peer called send_tensor"):
            b.recv(timeout=LIMIT)
        assert b.recv(timeout=LIMIT) == "kept"


@WAYS
def test_before_anybody_asks(way: str) -> None:
    with pair(way) as (a, b, _):
        pending = b.recv(async_op=True)
        with pytest.raises(CollectiveError):
            pending.wait(0.01)
        for number in range(5):
            a.send(torch.full((10,), float(number), dtype=GPU), async_op=True)
        assert float(pending.wait(LIMIT)[0]) == 0
        assert [float(b.recv(timeout=LIMIT)[0]) for _ in range(4)] == [1, 2, 3, 4]


@pytest.mark.parametrize("way", ["nccl", "ipc"])
def test_the_end_of_a_group_ends_what_is_carried(way: str) -> None:
    with pair(way) as (a, b, _):
        work = a.send_tensor(torch.ones(1 << 20, dtype=GPU), async_op=True)
        b.close(0.0)
        for pending in (work, a.recv(async_op=True)):
            with pytest.raises(GroupClosed):
                pending.wait(LIMIT)


def test_a_way_that_fails_is_staging() -> None:
    with pair("ipc", mapped=Shut()) as (a, b, _):
        eventually(lambda: "failed: " in told(a), lambda: told(a))
        assert told(a).startswith("staging: ipc failed: ") and "no peer access" in told(a)
        assert_sent(a, b)


def test_seal_all_keeps_tensors_on_the_sealed_stream() -> None:
    device = LateDevice(0, lambda tensor: tensor.dtype is GPU)
    with device.placed(), standing_in(ways(Table()), lambda: FACTS["nccl"]), two(seal="all") as (a, b):
        assert_sent(a, b)
        assert_sent(a, b)
        assert told(a).startswith("staging: nccl begins")


def test_a_channel_keeps_items_on_the_host() -> None:
    device = LateDevice(1, lambda tensor: tensor.dtype is GPU)
    with device.placed(), collectives(2) as (made, _):
        channel = Channel(made[0], "q")
        far = Channel(made[1], "q", at=made[0].here)
        tensor = torch.zeros(4, dtype=GPU)
        device.enqueue(lambda: tensor.fill_(3), tensor)
        far.put(tensor, timeout=LIMIT)
        device.enqueue(lambda: tensor.fill_(4), tensor)
        channel.put(tensor, timeout=LIMIT)
        assert [float(channel.get(timeout=LIMIT)[0]) for _ in range(2)] == [3, 4]


ONE = {"where": "k:n", "gpus": ["a", "b"], "current": "a", "nccl": "2.28"}


@pytest.mark.parametrize(
    ("there", "way", "why"),
    [
        ({**ONE, "current": "b"}, "ipc", "each sees the other's GPU"),
        ({**ONE, "gpus": ["c"], "current": "c"}, "staging", "CUDA_VISIBLE_DEVICES"),
        ({**ONE, "where": "k:m"}, "nccl", "both have NCCL 2.28"),
        ({**ONE, "where": "", "nccl": "2.27"}, "staging", "NCCL here is "),
        ({**ONE, "where": "k:m", "nccl": ""}, "staging", "missing"),
        ({}, "staging", "had not used a GPU"),
    ],
)
def test_the_choice(there: dict[str, Any], way: str, why: str) -> None:
    for chosen in (choose(ONE, there), choose(there, ONE)):
        assert chosen.way == way and why in chosen.why


def test_facts_of_strangers() -> None:
    assert known(ONE) == ONE and known(None) == known({}) == {}
    for nonsense in (3, [1], {"gpus": 3}, {"where": 1, "gpus": [], "current": 1}):
        with pytest.raises((TypeError, LookupError)):
            known(nonsense)
