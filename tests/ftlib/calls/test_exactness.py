"""Averages equal a float64 reference within the dtype's rounding, and are the same bits at all workers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ftlib import Status
from ftlib.frameworks.gloo import GlooFramework
from ftlib.ftlib import FTLib
from tests.ftlib.crews.crew import Crew

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
STRIDES = ["plain", "transposed", "sliced"]
BUCKET_MB = 0.002
"""About 500 elements of float32, so that a few thousand are cut."""


@dataclass(frozen=True)
class Case:
    """One call: what each worker contributes."""

    shapes: list[tuple[tuple[int, ...], torch.dtype, str]]
    weights: list[float]
    missing: list[set[int]]
    seed: int

    def tensors(self, worker: int) -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(self.seed * 10 + worker)
        made = []
        for shape, dtype, stride in self.shapes:
            values = torch.randn(shape, generator=generator, dtype=torch.float64) * 10.0 ** (self.seed % 5 - 2)
            made.append(_strided(values.to(dtype), stride))
        return made


def _strided(tensor: torch.Tensor, stride: str) -> torch.Tensor:
    if stride == "transposed":
        return tensor.t().contiguous().t() if tensor.dim() == 2 else tensor
    if stride == "sliced" and tensor.dim():
        wide = torch.zeros((*tensor.shape, 2), dtype=tensor.dtype)
        wide[..., 0] = tensor
        return wide[..., 0]
    return tensor


shapes = st.one_of(
    st.just(()), st.lists(st.integers(0, 6), min_size=1, max_size=3).map(tuple), st.sampled_from([(700,), (40, 40), (3000,)])
)
weights = st.one_of(st.sampled_from([0.0, 1.0, 1e-6, 1e6, 3.0, 1e-12, 1e12]), st.floats(1e-3, 1e3))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    size = draw(st.integers(1, 5))
    specs = draw(st.lists(st.tuples(shapes, st.sampled_from(FLOATS), st.sampled_from(STRIDES)), max_size=6))
    given_weights = draw(st.lists(weights, min_size=size, max_size=size))
    missing = [draw(st.sets(st.integers(0, max(0, len(specs) - 1)), max_size=2)) for _ in range(size)]
    return Case(specs, given_weights, missing, draw(st.integers(0, 1000)))


@pytest.fixture(scope="module")
def memory() -> Iterator[dict[int, Crew]]:
    with ExitStack() as stack:
        yield {size: stack.enter_context(Crew(size, bucket_mb=BUCKET_MB)) for size in range(1, 6)}


@pytest.fixture(scope="module")
def gloo() -> Iterator[dict[int, Crew]]:
    with ExitStack() as stack:
        sizes = (2, 3, 5)
        yield {size: stack.enter_context(Crew(size, lambda _: GlooFramework(), bucket_mb=BUCKET_MB)) for size in sizes}


@given(case=cases())
@settings(max_examples=120)
def test_over_memory(memory: dict[int, Crew], case: Case) -> None:
    check_average(memory[len(case.weights)], case)


@given(case=cases().filter(lambda case: len(case.weights) in (2, 3, 5)))
@settings(max_examples=40)
def test_over_gloo(gloo: dict[int, Crew], case: Case) -> None:
    check_average(gloo[len(case.weights)], case)


def _here(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def check_average(crew: Crew, case: Case, put: Callable[[torch.Tensor], torch.Tensor] = _here) -> None:
    """``put``: moves a tensor to where it is to be."""
    size = len(case.weights)
    inputs = [case.tensors(worker) for worker in range(size)]
    parameters = [[torch.nn.Parameter(put(torch.zeros_like(t))) for t in tensors] for tensors in inputs]
    for worker in range(size):
        for index, (parameter, tensor) in enumerate(zip(parameters[worker], inputs[worker], strict=True)):
            absent = index in case.missing[worker]
            parameter.grad = None if absent else put(tensor.clone(memory_format=torch.preserve_format))
            if absent:
                inputs[worker][index] = torch.zeros_like(tensor)
    before = [[p.grad for p in row] for row in parameters]
    statuses = crew.all(lambda ft, i: ft.allreduce_average(parameters[i], weight=case.weights[i]))
    assert len(set(statuses)) == 1
    if not any(case.weights):
        assert statuses[0] is Status.FAIL
        assert all(
            p.grad is old for row, olds in zip(parameters, before, strict=True) for p, old in zip(row, olds, strict=True)
        )
        return
    assert statuses[0] is (Status.SUCCESS if size > 1 else Status.NO_NEED)
    total = math.fsum(case.weights)
    for index, (shape, dtype, _) in enumerate(case.shapes):
        if size == 1 or not math.prod(shape):
            continue
        terms = [w * row[index].double() for w, row in zip(case.weights, inputs, strict=True)]
        exact = torch.stack(terms).sum(0) / total
        spread = torch.stack([term.abs() for term in terms]).sum(0) / total
        wire = torch.finfo(torch.float64 if dtype is torch.float64 else torch.float32)
        bound = (2 * size + 4) * wire.eps * spread + wire.tiny
        bound += torch.finfo(dtype).eps * exact.abs() * (dtype.itemsize < 4) + torch.finfo(dtype).smallest_normal
        results = [row[index].grad for row in parameters]
        for result in results:
            assert result is not None
            assert result.dtype is dtype
            assert torch.equal(result, results[0]), "workers differ"
            assert bool(((result.cpu().double() - exact).abs() <= bound).all()), (dtype, result, exact)


@pytest.mark.parametrize("backend", ["memory", "gloo"])
def test_operations_on_every_dtype(request: pytest.FixtureRequest, backend: str) -> None:
    crews: dict[int, Crew] = request.getfixturevalue(backend)
    for size in (1, 2, 3) if backend == "memory" else (2, 3):
        for dtype in [*FLOATS, *INTEGERS, torch.bool]:
            for op in ("SUM", "MIN", "MAX", "PRODUCT"):
                if dtype is torch.bool and op == "SUM":
                    continue
                generator = torch.Generator().manual_seed(size)
                inputs = [torch.randint(0, 9, (5, 3), generator=generator).to(dtype) for _ in range(size)]
                stack = torch.stack(inputs)
                expected = {
                    "SUM": lambda s=stack: s.sum(0),
                    "PRODUCT": lambda s=stack: s.prod(0),
                    "MIN": lambda s=stack: s.amin(0),
                    "MAX": lambda s=stack: s.amax(0),
                }[op]().to(dtype)
                mine = [tensor.clone() for tensor in inputs]
                assert all(crews[size].all(lambda ft, i, mine=mine, op=op: ft.allreduce(mine[i], op)))
                for result in mine:
                    assert torch.equal(result, expected), (dtype, op, size)


@pytest.mark.parametrize("backend", ["memory", "gloo"])
def test_integers_wrap_around_and_large_ones_are_exact(request: pytest.FixtureRequest, backend: str) -> None:
    crew: Crew = request.getfixturevalue(backend)[2]
    for dtype, value, expected in [
        (torch.int16, 30_000, -5536),
        (torch.int8, 100, -56),
        (torch.uint8, 200, 144),
        (torch.int64, 2**53 + 1, 2**54 + 2),
    ]:
        tensors = [torch.tensor([value], dtype=dtype) for _ in range(2)]
        crew.all(lambda ft, i, tensors=tensors: ft.allreduce(tensors[i], "SUM"))
        assert [t.item() for t in tensors] == [expected, expected]


@pytest.mark.parametrize("backend", ["memory", "gloo"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_nan_is_both_extremes_at_every_rank(request: pytest.FixtureRequest, backend: str, dtype: torch.dtype) -> None:
    crew: Crew = request.getfixturevalue(backend)[3]
    nan, inf = math.nan, math.inf
    rows = [[nan, 1.0, 2.0, -0.0, -inf], [1.0, nan, 3.0, 0.0, nan], [0.0, 0.0, inf, -0.0, 1.0]]
    for op, expected in [("MIN", [nan, nan, 2.0, -0.0, nan]), ("MAX", [nan, nan, inf, 0.0, nan])]:
        tensors = [torch.tensor(row, dtype=dtype) for row in rows]
        crew.all(lambda ft, i, tensors=tensors, op=op: ft.allreduce(tensors[i], op))
        wanted = torch.tensor(expected, dtype=dtype)
        for tensor in tensors:
            assert torch.equal(tensor.isnan(), wanted.isnan())
            assert torch.equal(tensor.nan_to_num(9.0), wanted.nan_to_num(9.0))
            assert torch.equal(torch.signbit(tensor[3]), torch.signbit(wanted[3]))


def test_a_half_precision_sum_may_exceed_its_dtype(gloo: dict[int, Crew]) -> None:
    """65504 is the largest float16: three times 60000 is not, their mean is."""

    def body(ft: FTLib, i: int) -> tuple[float, float, float]:
        half = torch.tensor([60000.0], dtype=torch.float16)
        brain = torch.tensor([1.0 + i * 2.0**-7], dtype=torch.bfloat16)
        assert ft.allreduce_average([half, brain]) is Status.SUCCESS
        mean, total = torch.tensor([60000.0], dtype=torch.float16), torch.tensor([60000.0], dtype=torch.float16)
        assert ft.allreduce(mean)
        assert ft.allreduce(total, "SUM")
        return half.item(), mean.item(), total.item()

    assert gloo[3].all(body) == [(60000.0, 60000.0, math.inf)] * 3


def test_half_precision_is_rounded_once(gloo: dict[int, Crew]) -> None:
    """1 + 2**-8 is no bfloat16: added one after the other such terms would be lost."""
    tensors = [torch.tensor([value], dtype=torch.bfloat16) for value in (256.0, 1.0, 1.0, 1.0, 1.0)]
    gloo[5].all(lambda ft, i: ft.allreduce(tensors[i], "SUM"))
    assert [tensor.item() for tensor in tensors] == [260.0] * 5
