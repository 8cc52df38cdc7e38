"""Compressions alone: what comes of a bucket's contributions, whatever carries the operations."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ftlib.core.tensors.compression.blocks import Float8, Int8
from ftlib.core.tensors.compression.buffers import Buffers
from ftlib.core.tensors.compression.compression import Compression
from ftlib.core.tensors.compression.half_precision import HalfPrecision
from ftlib.core.tensors.compression.matrices import orthonormal, write_product
from ftlib.core.tensors.compression.memory import CallMemory
from ftlib.core.tensors.compression.names import compression_of, known_by_name
from ftlib.core.tensors.compression.power_sgd import PowerSGD
from ftlib.core.tensors.compression.reduction import Part, Reduction
from ftlib.errors import ConfigError
from ftlib.frameworks.base import Operation, OperationKind

BF16, FP16 = HalfPrecision(torch.bfloat16), HalfPrecision(torch.float16)
ALL = [BF16, FP16, Int8(), Float8(), PowerSGD(2)]
WITH_FEEDBACK = [each for each in ALL if each.feedback]
NAMED = pytest.mark.parametrize("compression", ALL, ids=lambda each: each.name)


def carry_out(operations: list[Operation]) -> None:
    """What a group does."""
    tensors = [operation.tensor for operation in operations]
    kind, size = operations[0].kind, len(operations)
    assert all((each.kind, each.tensor.shape, each.tensor.dtype) == (kind, *_form(tensors[0])) for each in operations)
    if kind is OperationKind.ALLREDUCE:
        total = tensors[0].clone()
        for tensor in tensors[1:]:
            total += tensor
        results = [total] * size
    else:
        parts = [tensor.clone().view(size, -1) for tensor in tensors]
        gathers = kind is OperationKind.ALL_GATHER
        results = [torch.stack([parts[i][i if gathers else rank] for i in range(size)]).view(-1) for rank in range(size)]
    for tensor, result in zip(tensors, results, strict=True):
        tensor.copy_(result)


def _form(tensor: torch.Tensor) -> tuple[torch.Size, torch.dtype]:
    return tensor.shape, tensor.dtype


class Members:
    """So many members that average one bucket again and again."""

    def __init__(self, compression: Compression, size: int, shapes: list[tuple[int, ...] | None], counts: list[int]) -> None:
        self.compression, self.size = compression, size
        self.parts, start = [], 0
        for shape, count in zip(shapes, counts, strict=True):
            self.parts.append(Part(start, start + count, shape))
            start += count
        self.count = start
        self.owed = [torch.zeros(start) for _ in range(size)]
        self._states: list[dict[str, torch.Tensor]] = [{} for _ in range(size)]
        self._buffers = [Buffers(lambda count, dtype: torch.full((count,), 255, dtype=dtype)) for _ in range(size)]

    def average(self, contributions: list[torch.Tensor]) -> torch.Tensor:
        """The result, which has the same bits at all members; what they owe changes."""
        data = [given + owed for given, owed in zip(contributions, self.owed, strict=True)]
        feedback = self.compression.feedback
        unsent = [torch.full((self.count,), torch.nan) if feedback else None for _ in range(self.size)]
        reductions = [
            Reduction(rank, self.size, data[rank], self.parts, unsent[rank], self._states[rank], self._buffers[rank])
            for rank in range(self.size)
        ]
        running = [self.compression.reduce(reduction) for reduction in reductions]
        for _ in range(self.compression.stages):
            carry_out([next(each) for each in running])
        for each, reduction in zip(running, reductions, strict=True):
            assert next(each, None) is None
            reduction.end()
        self.owed = [torch.zeros(self.count) if each is None else each for each in unsent]
        for other in data[1:]:
            assert torch.equal(other.view(torch.int32), data[0].view(torch.int32))
        return data[0]


def gradients(members: Members, seed: int, scale: float) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(members.count, generator=generator) * scale / members.size for _ in range(members.size)]


SHAPES = st.lists(
    st.one_of(
        st.integers(1, 900).map(lambda count: ((count,), count)),
        st.tuples(st.integers(1, 40), st.integers(1, 40)).map(lambda shape: (shape, shape[0] * shape[1])),
        st.integers(2, 3000).map(lambda count: (None, count)),
        st.just(((), 1)),
    ),
    min_size=1,
    max_size=5,
)
"""Shapes of tensors, None for parts of larger ones, with their numbers of elements."""


def members_of(compression: Compression, size: int, shapes: list[tuple[tuple[int, ...] | None, int]]) -> Members:
    return Members(compression, size, [shape for shape, _ in shapes], [count for _, count in shapes])


@NAMED
@settings(max_examples=15, deadline=None)
@given(size=st.integers(1, 5), shapes=SHAPES, seed=st.integers(0, 1 << 30), exponent=st.integers(-6, 3))
def test_every_member_has_the_same_bits(
    compression: Compression, size: int, shapes: list[tuple[tuple[int, ...] | None, int]], seed: int, exponent: int
) -> None:
    members = members_of(compression, size, shapes)
    for step in range(2):
        given_now = gradients(members, seed + step, 10.0**exponent)
        assert torch.isfinite(members.average(given_now)).all()


@pytest.mark.parametrize(("compression", "error"), [(BF16, 2**-8), (FP16, 2**-11), (Int8(), 1 / 254), (Float8(), 1 / 28)])
@settings(max_examples=15, deadline=None)
@given(size=st.integers(1, 5), count=st.integers(1, 3000), seed=st.integers(0, 1 << 30))
def test_errors_are_as_large_as_the_codes_are_coarse(
    compression: Compression, error: float, size: int, count: int, seed: int
) -> None:
    """Each of the ``size`` contributions is rounded once, and so is the sum."""
    members = members_of(compression, size, [((count,), count)])
    given_now = gradients(members, seed, 1.0)
    exact = sum(each.double() for each in given_now)
    assert isinstance(exact, torch.Tensor)
    largest = sum(each.abs().max().item() for each in given_now)
    assert (members.average(given_now) - exact).abs().max() <= 2.5 * error * largest


@pytest.mark.parametrize("compression", WITH_FEEDBACK, ids=lambda each: each.name)
@settings(max_examples=12, deadline=None)
@given(size=st.integers(1, 4), shapes=SHAPES, seed=st.integers(0, 1 << 30), steps=st.integers(1, 6))
def test_what_was_sent_and_what_is_owed_are_all_gradients(
    compression: Compression, size: int, shapes: list[tuple[tuple[int, ...] | None, int]], seed: int, steps: int
) -> None:
    members = members_of(compression, size, shapes)
    sent, exact = torch.zeros(members.count).double(), torch.zeros(members.count).double()
    for step in range(steps):
        now = gradients(members, seed + step, 1.0)
        exact += torch.stack(now).double().sum(0)
        sent += members.average(now).double()
    owed = torch.stack(members.owed).double().sum(0)
    assert (sent + owed - exact).abs().max() <= 1e-5 * steps * max(1.0, float(exact.abs().max()))


@pytest.mark.parametrize("compression", WITH_FEEDBACK, ids=lambda each: each.name)
def test_debts_stay_bounded(compression: Compression) -> None:
    """The same gradients again and again: the mean of what is applied approaches them."""
    members = members_of(compression, 3, [((60, 80), 4800), ((80,), 80)])
    now = gradients(members, 1, 1.0)
    exact = torch.stack(now).sum(0)
    steps = 60
    applied = torch.stack([members.average(now) for _ in range(steps)]).mean(0)
    assert (applied - exact).norm() <= 0.35 * exact.norm()
    once = members_of(compression, 3, [((60, 80), 4800), ((80,), 80)]).average(now)
    assert (applied - exact).norm() < 0.6 * (once - exact).norm()


@NAMED
@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan])
@pytest.mark.parametrize("where", [0, 255, 256, 3999, 4003])
def test_inf_and_nan_are_not_hidden(compression: Compression, value: float, where: int) -> None:
    members = members_of(compression, 3, [((50, 80), 4000), ((5,), 5)])
    for rank in range(3):
        now = gradients(members, 1, 1.0)
        now[rank][where] = value
        assert not torch.isfinite(members.average(now).sum())
        members = members_of(compression, 3, [((50, 80), 4000), ((5,), 5)])


@NAMED
@pytest.mark.parametrize("value", [0.0, 1e-45, 1e-37, 1e-30, 1e30, 3e38])
def test_the_smallest_and_largest_values(compression: Compression, value: float) -> None:
    members = members_of(compression, 2, [((50, 80), 4000), ((5,), 5)])
    result = members.average([torch.full((4005,), value) / 2] * 2)
    if compression is FP16 and value:
        assert result.isinf().all() if value > 1e5 else not result.any()
    elif value > 1e37 and isinstance(compression, PowerSGD):
        assert not result.isnan().any() or not torch.isfinite(result.sum())
    else:
        assert (result - value).abs().max() <= max(0.05 * value, 1e-33)


def test_orthonormal_columns() -> None:
    columns = torch.randn(3, 100, 4, generator=torch.Generator().manual_seed(1))
    columns[1, :, 2] = columns[1, :, 0] * 3.0  # depends on another one
    columns[2] = 0.0
    basis = orthonormal(columns)
    products = basis.transpose(1, 2) @ basis
    assert torch.allclose(products[0], torch.eye(4), atol=1e-6)
    assert torch.allclose(products[1], torch.diag(torch.tensor([1.0, 1.0, 0.0, 1.0])), atol=1e-6)
    assert not basis[2].any()
    columns[0, 7, 3] = torch.inf
    assert orthonormal(columns)[0, :, 3].isnan().any()


def test_products_without_a_library() -> None:
    left, right = torch.randn(70, 3), torch.randn(3, 50)
    product = torch.empty(70, 50)
    write_product(left, right, product, torch.empty(160))
    assert torch.allclose(product, left @ right, atol=1e-5)


def test_names() -> None:
    for name in ("bf16", "fp16", "int8", "fp8"):
        found = compression_of(name)
        assert found is not None
        assert found.name == name
        assert known_by_name(name) == found
    power = PowerSGD(rank=12, feedback=False)
    assert known_by_name(power.name) == power
    assert power != PowerSGD(12)
    assert compression_of(power) is power
    assert compression_of(None) is None
    assert known_by_name("theirs(3)").name == "theirs(3)"
    for wrong in ("int4", "PowerSGD", 8, ""):
        with pytest.raises(ConfigError, match="'bf16', 'fp16', 'int8', 'fp8', PowerSGD"):
            compression_of(wrong)
    for rank in (0, -1, 2.0, True):
        with pytest.raises(ConfigError, match="rank"):
            PowerSGD(rank)  # type: ignore[arg-type]


def test_a_debt_changes_with_the_call_that_it_belongs_to() -> None:
    """Not when another view has finished the call, nor where only some buckets of the attempt were encoded."""
    memory, owner = CallMemory(lambda count, dtype: torch.zeros(count, dtype=dtype)), torch.zeros(1)

    def attempt(number: int, view_id: str, *, buckets: int = 2) -> None:
        memory.begin(number, view_id, owner, 2)
        for bucket in range(buckets):
            data = torch.linspace(-1.0, 1.0, 300) * number
            running = memory.reduce(bucket, Int8(), data, [Part(0, 300, (300,))], 0, 1)
            for operation in running:
                carry_out([operation])

    attempt(1, "a")
    assert not memory.owed(owner)
    memory.finished(1, "b", checked=True)
    assert not memory.owed(owner), "of another view"
    attempt(1, "b", buckets=1)
    memory.finished(1, "b", checked=True)
    assert not memory.owed(owner), "not all was sent"
    attempt(1, "b")
    memory.finished(1, "b", checked=True)
    first = {bucket: row.clone() for bucket, row in memory.owed(owner).items()}
    assert set(first) == {0, 1}
    assert first[0].abs().max() > 0
    memory.finished(1, "b", checked=True)
    attempt(2, "b")
    assert all(torch.equal(row, first[bucket]) for bucket, row in memory.owed(owner).items()), "the call is in progress"
    memory.finished(2, "b", checked=True)
    assert not torch.equal(memory.owed(owner)[0], first[0])
    owner = torch.zeros(1)
    assert not memory.owed(owner), "another model owes nothing"
    attempt(3, "b")
    memory.finished(3, "b", checked=True)
    assert memory.owed(owner)[0].abs().max() <= 3 / 254
    memory.forget()
    assert not memory.owed(owner), "the state is another member's now"
    memory.finished(3, "b", checked=True)
    assert not memory.owed(owner), "that call was finished before"
