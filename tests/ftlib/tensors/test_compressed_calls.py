"""Averages that are compressed, as calls: statuses, bits, weights, what is refused, what is kept from call to call."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from ftlib import Compression, ConfigError, PowerSGD, Status, StepMismatch
from ftlib.core.tensors.compression.reduction import Reduction
from ftlib.frameworks.base import Operation
from ftlib.frameworks.gloo import GlooFramework
from ftlib.ftlib import FTLib
from tests.ftlib.crews.crew import Crew, by_all
from tests.ftlib.crews.workers import Job, Worker, workers

KINDS = ["bf16", "fp16", "int8", "fp8", PowerSGD(2)]
NAMED = pytest.mark.parametrize("compression", KINDS, ids=str)
ERRORS = {"bf16": 0.02, "fp16": 0.003, "int8": 0.02, "fp8": 0.1}
"""Largest error, for values of at most 1."""


@pytest.fixture(scope="module", params=["memory", "gloo"])
def trio(request: pytest.FixtureRequest) -> Iterator[Crew]:
    framework = None if request.param == "memory" else lambda _: GlooFramework()
    with Crew(3, framework, bucket_mb=0.01) as crew:
        yield crew


def model_of(widths: tuple[int, ...]) -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(*(nn.Linear(a, b) for a, b in itertools.pairwise(widths)))


def compute(model: nn.Module, seed: int) -> list[torch.Tensor]:
    """Give the model gradients from -1 to 1; returns copies of them."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = (torch.rand(parameter.shape, generator=generator) * 2 - 1).to(parameter.dtype)
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


def gradients(model: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.grad.view(-1) for parameter in model.parameters() if parameter.grad is not None])


def alike(rows: list[torch.Tensor]) -> bool:
    return all(torch.equal(row.view(torch.int32), rows[0].view(torch.int32)) for row in rows)


@NAMED
@pytest.mark.parametrize("widths", [(30, 60, 20), (9, 2), (100, 80, 3)])
def test_all_members_get_the_same_bits(trio: Crew, compression: Any, widths: tuple[int, ...]) -> None:
    models = [model_of(widths) for _ in range(3)]
    for step in range(3):
        given = trio.all(lambda ft, i, step=step: compute(models[i], 10 * step + i))
        weights = (1.0, 0.0, 2.5) if step == 1 else (3.0, 1.0, 4.0)
        statuses = trio.all(lambda ft, i, w=weights: ft.allreduce_average(models[i], weight=w[i], compression=compression))
        assert statuses == [Status.SUCCESS] * 3
        rows = [gradients(model) for model in models]
        assert alike(rows)
        if not step and isinstance(compression, str):
            exact = sum(torch.cat([t.view(-1) for t in g]) * w for g, w in zip(given, weights, strict=True)) / sum(weights)
            assert (rows[0] - exact).abs().max() < ERRORS[compression]


@NAMED
def test_what_is_not_compressed_goes_beside_it(trio: Crew, compression: Any) -> None:
    """Doubles as they are; float16 gradients as the float32 values they are averaged in."""
    tensors = [
        [torch.full((700,), i, dtype=torch.float64), torch.full((40, 40), 0.5 * i), torch.full((9000,), i / 4).half()]
        for i in range(3)
    ]
    assert trio.all(lambda ft, i: ft.allreduce_average(tensors[i], compression=compression)) == [Status.SUCCESS] * 3
    for mine in tensors:
        assert torch.equal(mine[0], torch.ones(700, dtype=torch.float64))
        assert torch.allclose(mine[1], torch.full((40, 40), 0.5), rtol=0.05)
        assert torch.allclose(mine[2].float(), torch.full((9000,), 0.25), rtol=0.05)
        for theirs, own in zip(tensors[0], mine, strict=True):
            assert torch.equal(theirs, own)


@NAMED
@pytest.mark.parametrize("value", [torch.inf, torch.nan])
def test_inf_and_nan_are_vetoed(trio: Crew, compression: Any, value: float) -> None:
    models = [model_of((40, 80, 30)) for _ in range(3)]
    for where in range(4):
        before = trio.all(lambda ft, i, where=where: compute(models[i], i))
        bad = list(models[where % 3].parameters())[where].grad
        assert bad is not None
        bad.view(-1)[-1] = value
        before[where % 3][where].view(-1)[-1] = value
        steps = trio.all(lambda ft, i: ft.step)
        assert trio.all(lambda ft, i: ft.allreduce_average(models[i], compression=compression)) == [Status.FAIL] * 3
        assert trio.all(lambda ft, i: ft.step) == steps
        for model, old in zip(models, before, strict=True):
            assert torch.equal(gradients(model).view(torch.int32), torch.cat([t.view(-1) for t in old]).view(torch.int32))
    for model in models:
        compute(model, 1)
    assert trio.all(lambda ft, i: ft.allreduce_average(models[i], compression=compression)) == [Status.SUCCESS] * 3
    assert all(torch.isfinite(gradients(model)).all() for model in models)


@pytest.mark.parametrize("compression", ["int8", "fp8", PowerSGD(2)], ids=str)
def test_sums_over_steps_are_exact(trio: Crew, compression: Any) -> None:
    """What was applied and what the members owe are all gradients: a veto, and weights of 0, do not change that."""
    models = [model_of((30, 60, 20)) for _ in range(3)]
    count = sum(parameter.numel() for parameter in models[0].parameters())
    exact, applied = torch.zeros(count).double(), torch.zeros(count).double()
    for step in range(6):
        given = trio.all(lambda ft, i, step=step: compute(models[i], 100 * step + i))
        weights = [(1.0, 1.0, 1.0), (2.0, 0.0, 1.0), (0.0, 0.0, 5.0), (1.0, 2.0, 3.0)][step % 4]
        if step == 3:
            trio.all(lambda ft, i: next(models[i].parameters()).grad.fill_(torch.nan))  # type: ignore[union-attr]
        statuses = trio.all(lambda ft, i, w=weights: ft.allreduce_average(models[i], weight=w[i], compression=compression))
        assert statuses == [Status.FAIL if step == 3 else Status.SUCCESS] * 3
        if step == 3:
            continue
        rows = [torch.cat([t.view(-1) for t in each]).double() * w for each, w in zip(given, weights, strict=True)]
        exact += torch.stack(rows).sum(0) / sum(weights)
        applied += gradients(models[0]).double()
    owed = [owed_of(ft_of(trio, i), models[i]) for i in range(3)]
    assert sum(row.abs().max() for row in owed) > 1e-4
    assert (applied + torch.stack(owed).double().sum(0) - exact).abs().max() < 1e-4


def ft_of(crew: Crew, i: int) -> FTLib:
    return crew.job.workers[crew.names[i]].ft


def owed_of(ft: FTLib, model: nn.Module) -> torch.Tensor:
    """What a member owes of a model, as one row in the order of the parameters."""
    parameters = list(model.parameters())
    for staging in ft._engine._pool._stagings.values():
        owed = staging.memory.owed(parameters[0])
        if owed:
            rows = [torch.zeros(parameter.numel()) for parameter in parameters]
            for number, row in owed.items():
                for piece in staging.layout.buckets[number].pieces:
                    rows[piece.index][piece.start : piece.stop] = row[piece.offset :][: piece.stop - piece.start]
            return torch.cat(rows)
    raise AssertionError("nothing is owed")


def test_models_of_equal_layout_owe_different_things(trio: Crew) -> None:
    """As two networks of one kind, each of which is averaged by itself."""
    twins = [(model_of((40, 30)), model_of((40, 30))) for _ in range(3)]
    for step in range(2):
        for which in range(2):
            trio.all(lambda ft, i, which=which, step=step: compute(twins[i][which], 50 * step + 3 * which + i))
            assert all(trio.all(lambda ft, i, which=which: ft.allreduce_average(twins[i][which], compression="int8")))
    ft = ft_of(trio, 1)
    assert not torch.equal(owed_of(ft, twins[1][0]), owed_of(ft, twins[1][1]))


def test_all_weights_zero(trio: Crew) -> None:
    tensors = [torch.full((5000,), float(i)) for i in range(3)]
    assert trio.all(lambda ft, i: ft.allreduce_average(tensors[i], weight=0, compression="int8")) == [Status.FAIL] * 3
    assert tensors[2][0] == 2.0


@by_all("trio")
def test_wrong_arguments(ft: FTLib, i: int) -> None:
    with pytest.raises(ConfigError, match="compression='int4': choose 'bf16'"):
        ft.allreduce_average(torch.ones(3), compression="int4")
    assert ft.barrier()


class Halves(Compression):
    """One of a program's own: float16 of half the values; no feedback."""

    stages = 1
    name = "halves"

    def suits(self, shape: tuple[int, ...]) -> bool:
        return len(shape) == 1

    def reduce(self, reduction: Reduction) -> Iterator[Operation]:
        half = reduction.take(-(-reduction.data.numel() // 2), torch.float32)
        half.copy_(reduction.data[::2])
        yield reduction.allreduce(half)
        reduction.data.zero_()
        reduction.data[::2] = half * 2


def test_a_compression_of_the_programs_own(trio: Crew) -> None:
    tensors = [[torch.full((1001,), float(i)), torch.full((5, 5), float(i))] for i in range(3)]
    assert trio.all(lambda ft, i: ft.allreduce_average(tensors[i], compression=Halves())) == [Status.SUCCESS] * 3
    for vector, matrix in tensors:
        assert vector[:3].tolist() == [2.0, 0.0, 2.0]
        assert torch.equal(matrix, torch.ones(5, 5))


@pytest.mark.parametrize(("stages", "text"), [(2, "2 operations, and has 1"), (0, "0 operations, and has more")])
def test_a_compression_that_miscounts(stages: int, text: str) -> None:
    class Miscounting(Halves):
        name = f"miscounting {stages}"

    def body(worker: Worker) -> None:
        with pytest.raises(ConfigError, match=text):
            worker.ft.allreduce_average(torch.ones(100), compression=Miscounting())

    Miscounting.stages = stages
    with Job(2) as job:
        job.run({f"w{i}": body for i in range(2)})


@pytest.mark.parametrize("other", [None, "fp8", PowerSGD(3)], ids=str)
def test_members_that_compress_differently_are_found(other: Any) -> None:
    def body(worker: Worker) -> float:
        ft, tensor = worker.ft, torch.full((50, 60), 1.0)
        assert ft.allreduce_average(tensor, compression="int8") is Status.SUCCESS
        tensor.fill_(float(worker.name[1:]))
        if worker.name == "w2":
            with pytest.raises(StepMismatch, match="different tensors or operations"):
                ft.allreduce_average(tensor, compression=other)
        else:
            assert ft.allreduce_average(tensor, compression="int8") is Status.SUCCESS
        return tensor[0, 0].item()

    with Job(3) as job:
        found = job.run({f"w{i}": body for i in range(3)})
    assert found["w2"] == 2.0, "untouched"
    assert found["w0"] == found["w1"] == pytest.approx(0.5, abs=0.01)


@workers(2)
def test_not_within_execute(worker: Worker) -> None:
    ft, model = worker.ft, nn.Linear(2, 2)
    ft.register_state(model=model)

    def step() -> None:
        with pytest.raises(ConfigError, match="does not work within execute"):
            ft.allreduce_average(model, compression="bf16")

    ft.execute(step)


@workers(1)
def test_a_lone_worker_needs_none(worker: Worker) -> None:
    tensor = torch.full((300,), 0.3)
    assert worker.ft.allreduce_average(tensor, compression="int8") is Status.NO_NEED
    assert torch.equal(tensor, torch.full((300,), 0.3))
