"""Compressed averages that are under way in backward: one result at all members, whatever fails in between."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from ftlib import DistributedDataParallel, PowerSGD, Status
from ftlib.frameworks.gloo import GlooFramework
from ftlib.ftlib import FTLib
from tests.ftlib.crews.crew import Crew
from tests.ftlib.crews.workers import Job, Worker
from tests.ftlib.tensors.test_compressed_calls import alike, gradients, model_of, owed_of

KINDS = ["bf16", "int8", PowerSGD(2)]
NAMED = pytest.mark.parametrize("compression", KINDS, ids=str)
WIDTHS = (40, 60, 50, 30)
SIZES = {"bucket_mb": 0.01, "first_bucket_mb": 0.005}


@pytest.fixture(scope="module", params=["memory", "gloo"])
def trio(request: pytest.FixtureRequest) -> Iterator[Crew]:
    framework = None if request.param == "memory" else lambda _: GlooFramework()
    with Crew(3, framework) as crew:
        yield crew


def backward(model: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    model(torch.randn(8, WIDTHS[0], generator=generator)).square().mean().backward()


def own_gradients(seed: int) -> torch.Tensor:
    """What ``backward`` computes without the wrapper."""
    model = model_of(WIDTHS)
    backward(model, seed)
    return gradients(model)


@NAMED
@pytest.mark.parametrize("views", [False, True])
def test_all_members_get_the_same_bits(trio: Crew, compression: Any, views: bool) -> None:
    """Also where gradients are added to the last averages instead of being set to None."""
    models = [model_of(WIDTHS) for _ in range(3)]

    def wrapped(ft: FTLib, i: int) -> DistributedDataParallel:
        return DistributedDataParallel(ft, models[i], compression=compression, gradient_as_bucket_view=views, **SIZES)

    wrappers = trio.all(wrapped)
    for step in range(6):
        for model in models:
            if step != 4:
                model.zero_grad(set_to_none=step != 3)
        trio.all(lambda ft, i, step=step: backward(wrappers[i], 10 * step + i))
        assert [wrapper.status for wrapper in wrappers] == [Status.SUCCESS] * 3
        assert alike([gradients(model) for model in models])
        if step == 0:
            exact = torch.stack([own_gradients(i) for i in range(3)]).mean(0)
            if isinstance(compression, str):
                assert (gradients(models[0]) - exact).abs().max() < 0.02 * exact.abs().max()
    assert [ft_of(trio, i).metrics()["redone"] for i in range(3)] == [0] * 3


def ft_of(crew: Crew, i: int) -> FTLib:
    return crew.job.workers[crew.names[i]].ft


@NAMED
def test_every_operation_may_fail(compression: Any) -> None:
    """Each in turn, in the middle of backward or at its end: the step is finished with the same inputs, and what is applied and
    owed in the end are all gradients.
    """
    steps = 24
    models = {f"w{i}": model_of(WIDTHS) for i in range(3)}
    applied: dict[str, list[torch.Tensor]] = {name: [] for name in models}

    def body(worker: Worker) -> None:
        ft, model, i = worker.ft, models[worker.name], int(worker.name[1:])
        wrapper = DistributedDataParallel(ft, model, compression=compression, **SIZES)
        for step in range(steps):
            if step % 2 and worker.name == "w1":
                job.hub.fail_next(1, step // 2, finish_elsewhere=step % 4 == 1)
            model.zero_grad()
            backward(wrapper, 100 * step + i)
            assert wrapper.status is Status.SUCCESS
            applied[worker.name].append(gradients(model))

    with Job(3) as job:
        job.run(dict.fromkeys(models, body))
        assert job.cluster.epoch > 6
        if compression == "bf16":
            owed = torch.zeros(1)
        else:
            owed = torch.stack([owed_of(worker.ft, models[name]) for name, worker in job.workers.items()]).double().sum(0)
    for rows in zip(*applied.values(), strict=True):
        assert alike(list(rows))
    cases = itertools.product(range(steps), range(3))
    exact = torch.stack([own_gradients(100 * step + i) for step, i in cases]).double().sum(0) / 3
    error = (torch.stack(applied["w0"]).double().sum(0) + owed - exact).abs().max()
    assert error < (0.1 if compression == "bf16" else 1e-4) * max(1.0, float(exact.abs().max()))


@NAMED
def test_a_gradient_that_changes_after_it_was_sent_is_sent_again(compression: Any) -> None:
    """Some buckets are under way then, and their last operations wait for those of buckets that never begin."""
    models = [model_of(WIDTHS) for _ in range(3)]

    def average(ft: FTLib, i: int, step: int) -> Status:
        model = models[i]
        parameters = list(model.parameters())
        sizes = {"bucket_bytes": 10_000, "first_bytes": 5_000}
        layout = ft.lay_out_average(model, parameters, range(len(parameters)), compression=compression, **sizes)
        call = ft.open_average(parameters, layout, lambda: layout, module=model)
        for parameter in parameters:
            parameter.grad = torch.full_like(parameter, float(i))
        for number in range(len(layout.buckets) - 2):
            call.push(number)
            time.sleep(0.01)  # backward takes its time: the head ends meanwhile, and buckets begin
        if step and i == 0:
            for parameter in parameters:
                assert parameter.grad is not None
                parameter.grad.add_(3.0)
            call.restart()
        return call.finish()

    with Crew(3) as crew:
        crew.all(lambda ft, i: ft.register_state(model=models[i]))
        for step in range(3):
            found = crew.all(lambda ft, i, step=step: average(ft, i, step))
            assert found == [Status.SUCCESS] * 3
            assert alike([gradients(model) for model in models])
            if isinstance(compression, str):
                assert (gradients(models[0]) - (2.0 if step else 1.0)).abs().max() < 0.05
        assert ft_of(crew, 0).metrics()["redone"] == 2
