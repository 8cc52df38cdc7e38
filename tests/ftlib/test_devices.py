"""Tensors on a device that does everything late: the same bits as on the CPU, one wait a call, a few operations a bucket."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ftlib import Status
from ftlib.core.tensors.device_work import DeviceWork
from ftlib.core.tensors.staging import Slot
from ftlib.errors import StepMismatch
from ftlib.ftlib import FTLib
from tests.ftlib.crew import Crew
from tests.ftlib.test_exactness import BUCKET_MB, Case, cases, check_average
from tests.harness.late_device import LateDevice

FLOATS = (torch.float16, torch.bfloat16, torch.float32)


class LateCrew(Crew):
    """Workers with one late device between them. What they were told is done when ``all`` returns, on the device too."""

    def __init__(self, size: int, device: LateDevice, **more: Any) -> None:
        super().__init__(size, **more)
        self.device = device

    def all(self, told: Callable[[FTLib, int], Any]) -> list[Any]:
        answers = super().all(told)
        self.device.synchronize()
        return answers


@pytest.fixture(scope="module")
def device() -> Iterator[LateDevice]:
    with LateDevice(1, lambda tensor: tensor.dtype in FLOATS).placed() as device:
        yield device


@pytest.fixture(scope="module")
def crews(device: LateDevice) -> Iterator[dict[int, LateCrew]]:
    with ExitStack() as stack:
        yield {size: stack.enter_context(LateCrew(size, device, bucket_mb=BUCKET_MB)) for size in range(1, 6)}


@given(case=cases())
@settings(max_examples=2000)
def test_averages(crews: dict[int, LateCrew], case: Case) -> None:
    """float64 stays on the CPU, so most calls mix both."""
    check_average(crews[len(case.weights)], case)


@given(case=cases().filter(lambda case: len(case.weights) == 3), turns=st.lists(st.booleans(), min_size=6, max_size=6))
@settings(max_examples=300)
def test_the_same_bits_as_on_the_cpu_whatever_the_stream(crews: dict[int, LateCrew], case: Case, turns: list[bool]) -> None:
    """Several calls in a row on the same buffers, some of them on another stream, against plain tensors of the CPU."""
    crew = crews[3]
    with crew.device.taking(lambda _: False):
        plain = [crew.all(lambda ft, i, n=n: _average(ft, case, i, n)) for n in range(3)]

    def body(ft: FTLib, i: int) -> list[list[torch.Tensor]]:
        found = []
        for number in range(3):
            if turns[number + 3 * (i % 2)]:
                with crew.device.stream():
                    found.append(_average(ft, case, i, number))
            else:
                found.append(_average(ft, case, i, number))
        return found

    late = crew.all(body)
    for i in range(3):
        for number in range(3):
            for one, other in zip(late[i][number], plain[number][i], strict=True):
                assert torch.equal(one, other), (number, i)


def _average(ft: FTLib, case: Case, worker: int, number: int) -> list[torch.Tensor]:
    tensors = [tensor * (1 + number) for tensor in case.tensors(worker)]
    ft.allreduce_average(tensors, weight=case.weights[worker] or 1.0)
    return tensors


@pytest.mark.parametrize("op", ["SUM", "MIN", "MAX", "PRODUCT"])
def test_operations(crews: dict[int, LateCrew], op: str) -> None:
    rows = [[1.0, 5.0, -0.0], [3.0, float("nan"), 0.0]]
    with crews[2].device.taking(lambda _: False):
        plain = [torch.tensor(row) for row in rows]
        crews[2].all(lambda ft, i: ft.allreduce(plain[i], op))
    late = [torch.tensor(row) for row in rows]
    crews[2].all(lambda ft, i: ft.allreduce(late[i], op))
    for one, other in zip(late, plain, strict=True):
        assert torch.equal(one.view(torch.int32), other.view(torch.int32))


def test_broadcasts(crews: dict[int, LateCrew]) -> None:
    tensors = [torch.full((700,), float(i)) for i in range(3)]
    crews[3].all(lambda ft, i: ft.broadcast(tensors[i], root_rank=1))
    assert all(torch.equal(tensor, tensors[0]) for tensor in tensors)
    assert len(set(tensors[0].tolist())) == 1


def test_members_disagree_about_the_kind_of_device(device: LateDevice) -> None:
    tensors = [torch.ones(5) for _ in range(3)]
    there = tensors[1].data_ptr()
    with device.taking(lambda tensor: tensor.data_ptr() == there), LateCrew(3, device) as crew:

        def body(ft: FTLib, i: int) -> str:
            try:
                ft.allreduce(tensors[i])
            except StepMismatch as error:
                return str(error)
            return ""

        told = crew.all(body)
    assert [bool(text) for text in told] == [False, True, False]
    assert "@late" in told[1]


def test_a_lone_worker_looks_for_inf_and_nan_with_one_wait(device: LateDevice) -> None:
    with LateCrew(1, device) as crew:
        parameters = [torch.nn.Parameter(torch.zeros(3)) for _ in range(50)]
        for parameter in parameters:
            parameter.grad = torch.ones(3)
        for spoilt in (None, math.inf, math.nan):
            if spoilt is not None:
                _grad(parameters[17])[1] = spoilt
            before = device.waits
            status = crew.all(lambda ft, _: ft.allreduce_average(parameters))
            assert status == [Status.NO_NEED if spoilt is None else Status.FAIL]
            assert device.waits - before <= 1 + (spoilt is not None)


def _grad(parameter: torch.nn.Parameter) -> torch.Tensor:
    assert parameter.grad is not None
    return parameter.grad


@pytest.mark.parametrize("count", [60, 1000])
def test_a_call_waits_once_and_needs_few_operations(device: LateDevice, count: int) -> None:
    """3 MB in 60 and in 1,000 tensors, in buckets of 1 MB, weighted, so that they are scaled and divided."""
    total = 750_000
    with LateCrew(2, device, bucket_mb=1.0) as crew:
        rows = [[torch.nn.Parameter(torch.zeros(total // count)) for _ in range(count)] for _ in range(2)]
        for parameter in (parameter for row in rows for parameter in row):
            parameter.grad = torch.ones_like(parameter)
        for _ in range(3):
            waits, operations = device.waits, device.operations
            assert crew.all(lambda ft, i: ft.allreduce_average(rows[i], weight=2.0)) == [Status.SUCCESS] * 2
            buckets = 3
            assert device.waits - waits == 2, "one a worker"
            assert device.operations - operations <= 2 * 12 * buckets


def _nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """No bug."""


def _waits_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DeviceWork, "wait", lambda *_: True)


def _forgets_other_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LateDevice, "follow", lambda *_: None)


def _claims_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Slot, "claim", lambda *_: None)


def _divides_by_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a GPU does: by the inverse."""
    monkeypatch.setattr(torch.Tensor, "div_", lambda row, by: row.mul_(1.0 / by.item()))


@pytest.mark.parametrize("plant", [_nothing, _waits_for_nothing, _forgets_other_streams, _claims_nothing, _divides_by_a_number])
def test_planted_bugs_are_found(monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None]) -> None:
    """One worker has nothing to contribute now and then: the CPU writes where the device may still read."""
    device = LateDevice(2, lambda _: True)
    generator = torch.Generator().manual_seed(5)
    inputs = [[torch.randn(700, generator=generator) for _ in range(120)] for _ in range(2)]
    weights = [[1.0, 0.0, 3.0, 0.0, 0.5][i % 5] for i in range(120)]
    plant(monkeypatch)
    results: list[list[torch.Tensor]] = [[], []]

    def body(ft: FTLib, i: int) -> None:
        for number, own in enumerate(inputs[i]):
            tensor = own.clone()
            with device.stream() if number % 3 == 1 else nullcontext():
                ft.allreduce_average(tensor, weight=weights[number] if i else 2.0)
            results[i].append(tensor)

    with device.placed(), LateCrew(2, device) as crew:
        crew.all(body)
    wrong = 0
    for number, (one, other) in enumerate(zip(*inputs, strict=True)):
        weight = torch.tensor(2.0 + weights[number])
        expected = (one * 2.0 + (other * weights[number] if weights[number] else 0.0)) / weight
        wrong += sum(not torch.equal(row[number], expected) for row in results)
    assert bool(wrong) is (plant is not _nothing)
