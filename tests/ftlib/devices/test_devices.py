"""Tensors on a device: the same bits as on the CPU, one wait a call, a few operations a bucket.

The device is one that does everything late; where there is a GPU, once more the GPU, with real Gloo groups.
"""

from __future__ import annotations

import math
import threading
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
from ftlib.frameworks.gloo import GlooFramework
from ftlib.ftlib import FTLib
from tests.ftlib.calls.test_exactness import BUCKET_MB, Case, cases, check_average
from tests.ftlib.crews.crew import Crew
from tests.harness.gpu import PLACE, on_gpu
from tests.harness.late_device import LateDevice, LateEvent
from tests.harness.real_device import RealDevice

FLOATS = (torch.float16, torch.bfloat16, torch.float32)


class DeviceCrew(Crew):
    """Workers with one device between them. What they were told is done when ``all`` returns, on the device too."""

    def __init__(self, size: int, device: LateDevice | RealDevice, **more: Any) -> None:
        framework = (lambda _: GlooFramework()) if isinstance(device, RealDevice) else None
        super().__init__(size, framework, **more)
        self.device = device

    def all(self, told: Callable[[FTLib, int], Any]) -> list[Any]:
        answers = super().all(told)
        self.device.synchronize()
        return answers


@pytest.fixture(scope="module", params=["late", on_gpu("real")])
def device(request: pytest.FixtureRequest) -> Iterator[LateDevice | RealDevice]:
    if request.param == "real":
        yield RealDevice(PLACE, lambda tensor: tensor.dtype in FLOATS)
        return
    with LateDevice(1, lambda tensor: tensor.dtype in FLOATS).placed() as device:
        yield device


@pytest.fixture(scope="module")
def crews(device: LateDevice | RealDevice) -> Iterator[dict[int, DeviceCrew]]:
    with ExitStack() as stack:
        yield {size: stack.enter_context(DeviceCrew(size, device, bucket_mb=BUCKET_MB)) for size in range(1, 6)}


@given(case=cases())
@settings(max_examples=500)
def test_averages(crews: dict[int, DeviceCrew], case: Case) -> None:
    """float64 stays on the CPU, so most calls mix both."""
    crew = crews[len(case.weights)]
    check_average(crew, case, crew.device.put)


@given(case=cases().filter(lambda case: len(case.weights) == 3), turns=st.lists(st.booleans(), min_size=6, max_size=6))
@settings(max_examples=150)
def test_the_same_bits_as_on_the_cpu_whatever_the_stream(crews: dict[int, DeviceCrew], case: Case, turns: list[bool]) -> None:
    """Several calls in a row on the same buffers, some of them on another stream, against plain tensors of the CPU.

    By Gloo with two workers: where it adds three rounded numbers, in which order depends on where they lie in a bucket.
    """
    size = 2 if isinstance(crews[3].device, RealDevice) else 3
    crew = crews[size]
    with crew.device.taking(lambda _: False):
        crew.all(lambda ft, i: _average(crew, ft, case, i, 0))  # all that follow assume the same sum of weights
        plain = [crew.all(lambda ft, i, n=n: _average(crew, ft, case, i, n)) for n in range(3)]

    def body(ft: FTLib, i: int) -> list[list[torch.Tensor]]:
        found = []
        for number in range(3):
            if turns[number + 3 * (i % 2)]:
                with crew.device.stream():
                    found.append(_average(crew, ft, case, i, number))
            else:
                found.append(_average(crew, ft, case, i, number))
        return found

    late = crew.all(body)
    for i in range(size):
        for number in range(3):
            for one, other in zip(late[i][number], plain[number][i], strict=True):
                assert torch.equal(one.cpu(), other), (number, i)


def _average(crew: DeviceCrew, ft: FTLib, case: Case, worker: int, number: int) -> list[torch.Tensor]:
    tensors = [crew.device.put(tensor * (1 + number)) for tensor in case.tensors(worker)]
    ft.allreduce_average(tensors, weight=case.weights[worker] or 1.0)
    return tensors


@pytest.mark.parametrize("op", ["SUM", "MIN", "MAX", "PRODUCT"])
def test_operations(crews: dict[int, DeviceCrew], op: str) -> None:
    rows = [[1.0, 5.0, -0.0], [3.0, float("nan"), 0.0]]
    with crews[2].device.taking(lambda _: False):
        plain = [torch.tensor(row) for row in rows]
        crews[2].all(lambda ft, i: ft.allreduce(plain[i], op))
    there = [crews[2].device.put(torch.tensor(row)) for row in rows]
    crews[2].all(lambda ft, i: ft.allreduce(there[i], op))
    for one, other in zip(there, plain, strict=True):
        assert torch.equal(one.cpu().view(torch.int32), other.view(torch.int32))


def test_broadcasts(crews: dict[int, DeviceCrew]) -> None:
    tensors = [crews[3].device.put(torch.full((700,), float(i))) for i in range(3)]
    crews[3].all(lambda ft, i: ft.broadcast(tensors[i], root_rank=1))
    assert all(torch.equal(tensor, tensors[0]) for tensor in tensors)
    assert len(set(tensors[0].tolist())) == 1


def test_members_disagree_about_the_kind_of_device(device: LateDevice | RealDevice) -> None:
    tensors = [torch.ones(5) for _ in range(3)]
    there = tensors[1].data_ptr()
    with device.taking(lambda tensor: tensor.data_ptr() == there), DeviceCrew(3, device) as crew:
        tensors = [device.put(tensor) for tensor in tensors]

        def body(ft: FTLib, i: int) -> str:
            try:
                ft.allreduce(tensors[i])
            except StepMismatch as error:
                return str(error)
            return ""

        told = crew.all(body)
    assert [bool(text) for text in told] == [False, True, False]
    assert f"@{device.place.partition(':')[0]}" in told[1]


class FaultyDevice(LateDevice):
    """Fails once at one thread: there is no memory left, or what was enqueued turns out to have failed."""

    def __init__(self, fault: str) -> None:
        super().__init__(1, lambda tensor: tensor.dtype in FLOATS)
        self.fault = fault
        self.thread = 0
        """That of the worker whose device fails next."""

    def empty(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        self._fail("memory")
        return super().empty(count, dtype)

    def reached(self, event: LateEvent) -> bool:
        self._fail("kernel")
        return super().reached(event)

    def _fail(self, what: str) -> None:
        if what == self.fault and self.thread == threading.get_ident():
            self.thread = 0
            raise torch.OutOfMemoryError("out of memory") if what == "memory" else RuntimeError("an illegal memory access")


@pytest.mark.parametrize("fault", ["memory", "kernel"])
@pytest.mark.parametrize("tries_again", [True, False])
def test_a_device_fails_at_one_worker(fault: str, tries_again: bool) -> None:
    """Its program gets the error, and may make the call again, or end; the others have their average either way."""
    with FaultyDevice(fault).placed() as device, DeviceCrew(3, device) as crew:
        assert isinstance(device, FaultyDevice)

        def body(ft: FTLib, i: int) -> tuple[torch.Tensor, int, bool]:
            tensor = torch.full((5,), float(i))
            failed = False
            for number in range(3):
                if (i, number) == (1, 1):
                    device.thread = threading.get_ident()
                    with pytest.raises(RuntimeError, match="memory"):
                        ft.allreduce_average([tensor])
                    failed = True
                    if not tries_again:
                        ft.close()
                        break
                assert ft.allreduce_average([tensor])
            return tensor, ft.size, failed

        told = crew.all(body)
    assert [failed for _, _, failed in told] == [False, True, False]
    left = [0, 1, 2] if tries_again else [0, 2]
    assert [(told[i][0].tolist(), told[i][1]) for i in left] == [([1.0] * 5, len(left))] * len(left)


def test_a_lone_worker_looks_for_inf_and_nan_with_one_wait(device: LateDevice | RealDevice) -> None:
    with DeviceCrew(1, device) as crew:
        parameters = [torch.nn.Parameter(device.put(torch.zeros(3))) for _ in range(50)]
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
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
def test_a_call_waits_once_and_needs_few_operations(device: LateDevice | RealDevice, count: int) -> None:
    """3 MB in 60 and in 1,000 tensors, in buckets of 1 MB, weighted, so that they are scaled and divided."""
    total = 750_000
    with DeviceCrew(2, device, bucket_mb=1.0) as crew:
        rows = [[torch.nn.Parameter(device.put(torch.zeros(total // count))) for _ in range(count)] for _ in range(2)]
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
    monkeypatch.setattr(torch, "div", lambda row, by, out: torch.mul(row, 1.0 / by.item(), out=out))


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

    with device.placed(), DeviceCrew(2, device) as crew:
        crew.all(body)
    wrong, assumed = 0, 2.0  # as if each of the two weighed one
    for number, (one, other) in enumerate(zip(*inputs, strict=True)):
        weight = 2.0 + weights[number]
        expected = one * (2.0 / assumed) + (other * (weights[number] / assumed) if weights[number] else 0.0)
        expected, assumed = expected / torch.tensor(weight / assumed), weight
        wrong += sum(not torch.equal(row[number], expected) for row in results)
    assert bool(wrong) is (plant is not _nothing)
