"""Compressed averages when something fails: one result at all members, from the same inputs, and nothing is lost."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from ftlib import PowerSGD, Status
from ftlib.errors import GroupError
from ftlib.frameworks.base import Operation, Work
from ftlib.frameworks.gloo_work import FailedWork
from ftlib.frameworks.memory import MemoryGroup
from tests.ftlib.crews.workers import Job, Worker
from tests.ftlib.tensors.test_compressed_calls import alike, compute, gradients, model_of, owed_of
from tests.harness.basics import eventually

WIDTHS = (40, 60, 30)
"""Two buckets of 0.01 MB each: with the head's three operations, or five."""
KINDS = ["bf16", "int8", PowerSGD(2)]
NAMED = pytest.mark.parametrize("compression", KINDS, ids=str)


@NAMED
@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_failed_operation_costs_no_step_and_loses_nothing(compression: Any, elsewhere: bool) -> None:
    """Each operation in turn fails at all ranks; or the last one at one rank, which adopts the result unless its word comes
    before the others have finished. Sums over all steps of what was applied, and of what is owed at the end, are those of the
    gradients.
    """
    steps, last = 20, 2 if compression == "bf16" else 4
    models = {f"w{i}": model_of(WIDTHS) for i in range(3)}
    applied: dict[str, list[torch.Tensor]] = {name: [] for name in models}
    given: dict[str, list[torch.Tensor]] = {name: [] for name in models}

    def body(worker: Worker) -> None:
        ft, model, i = worker.ft, models[worker.name], int(worker.name[1:])
        ft.barrier()
        for step in range(steps):
            if step % 2 and worker.name == "w1":  # every second one: a call after a failure begins with a prelude
                job.hub.fail_next(1, last if elsewhere else step // 2 % (last + 1), finish_elsewhere=elsewhere)
            now = compute(model, 100 * step + i)
            assert ft.allreduce_average(model, compression=compression) is Status.SUCCESS
            given[worker.name].append(torch.cat([tensor.view(-1) for tensor in now]))
            applied[worker.name].append(gradients(model))

    with Job(3, bucket_mb=0.01) as job:
        job.run(dict.fromkeys(models, body))
        adopted = sum(worker.ft.metrics()["adopted"] for worker in job.workers.values())
        assert adopted or not elsewhere
        if compression == "bf16":
            owed = torch.zeros(1)
        else:
            owed = torch.stack([owed_of(worker.ft, models[name]) for name, worker in job.workers.items()]).double().sum(0)
    for rows in zip(*applied.values(), strict=True):
        assert alike(list(rows))
    exact = torch.stack([torch.stack(rows).double().sum(0) for rows in given.values()]).sum(0) / 3
    error = (torch.stack(applied["w0"]).double().sum(0) + owed - exact).abs().max()
    assert error < (0.1 if compression == "bf16" else 1e-4)


@pytest.mark.parametrize(("compression", "at"), [(kind, at) for kind in KINDS[1:] for at in range(6)])
def test_a_death_in_mid_operation_leaves_what_the_survivors_have(compression: Any, at: int) -> None:
    """The redo gives the bits of a job without the dead member, whose contribution was under way: whichever of the call's
    operations it begins last, a prelude among them.
    """

    def step(worker: Worker, seed: int) -> torch.Tensor:
        model = model_of(WIDTHS)
        compute(model, seed)
        assert worker.ft.allreduce_average(model, weight=seed + 1.0, compression=compression) is Status.SUCCESS
        return gradients(model)

    def victim(worker: Worker) -> None:
        group = worker.framework.group
        assert isinstance(group, MemoryGroup)
        group.submit = dying(group.submit, at, lambda: job.kill("w2"))  # type: ignore[method-assign]
        model = model_of(WIDTHS)
        compute(model, 5)
        worker.ft.allreduce_average(model, compression=compression)

    def body(worker: Worker) -> torch.Tensor | None:
        worker.ft.barrier()
        if worker.name == "w2":
            victim(worker)
            return None
        return step(worker, int(worker.name[1:]))

    with Job(3, bucket_mb=0.01) as job:
        for name in ("w0", "w1", "w2"):
            job.start(name, body)
        found = [job.workers[name].join() for name in ("w0", "w1")]
        job.workers["w2"].ft._plane.stop(GroupError("it is dead"))
    with Job(2, bucket_mb=0.01) as job:
        alone = job.run({f"w{i}": body for i in range(2)})
    assert alike([*found, *alone.values()])


def dying(submit: Callable[[Operation], Work], at: int, die: Callable[[], None]) -> Callable[[Operation], Work]:
    count = itertools.count()

    def instead(operation: Operation) -> Work:
        if next(count) == at:
            die()
            return FailedWork(GroupError("it has died"))
        return submit(operation)

    return instead


def test_a_mix_of_operations_with_one_under_way_at_a_time() -> None:
    """Doubles beside compressed matrices, and only one operation in flight: nobody waits for what has not begun."""

    def body(worker: Worker) -> torch.Tensor:
        i = int(worker.name[1:])
        model = nn.Sequential(nn.Linear(60, 60), nn.Linear(60, 60).double(), nn.Linear(60, 60))
        compute(model, i)
        for compression in KINDS:
            assert worker.ft.allreduce_average(model, compression=compression) is Status.SUCCESS
        return torch.cat([parameter.grad.view(-1).double() for parameter in model.parameters() if parameter.grad is not None])

    with Job(3, bucket_mb=0.01, in_flight=1) as job:
        rows = list(job.run({f"w{i}": body for i in range(3)}).values())
    assert all(torch.equal(row, rows[0]) for row in rows)
    assert eventually
