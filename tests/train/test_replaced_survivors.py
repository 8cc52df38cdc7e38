"""A survivor that lost its group before it had a result which all others have changed in place: it gets the state instead.

It counts that step as done, as its state has it, and its next one is the others' next: no step is applied twice, none is lost.
Its program's loop has made fewer passes than the others', so programs count by ``ft.step``.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch

from ftlib import DistributedDataParallel
from tests.ftlib.crews.workers import Job, Worker
from tests.ftlib.tensors.test_compressed_calls import model_of

WIDTHS = (20, 30, 10)
STEPS = 40
LAST = 3
"""The last operation of a call, counted from 0: who loses that lacks the result, and the others have it."""
CALM = 14
"""Steps at the end without a fault: a survivor that is replaced follows the others for some calls until it has their state."""
PATIENCE = 0.2
"""Seconds that the others get to change a result before another one says that it lacks it."""
SIZES = {"bucket_mb": 0.002, "first_bucket_mb": 0.001}


def backward(model: Any, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    model(torch.randn(4, WIDTHS[0], generator=generator)).square().mean().backward()


def test_no_step_is_applied_twice_and_none_is_lost() -> None:
    models = {f"w{i}": model_of(WIDTHS) for i in range(3)}
    after: dict[str, dict[int, torch.Tensor]] = {name: {} for name in models}
    passes = dict.fromkeys(models, 0)
    changed = {"w0": 0, "w2": 0}
    """The last step whose result each has changed."""

    def report_late(worker: Worker) -> None:
        """It says that its group has failed once the others have changed what it lacks, or have been given a while to do so."""
        report = worker.consensus.average_failure

        def reported(call: int, suspects: Sequence[str]) -> None:
            deadline = time.monotonic() + PATIENCE
            while min(changed.values()) <= worker.ft.step and time.monotonic() < deadline:
                time.sleep(0.001)
            report(call, suspects)

        worker.consensus.average_failure = reported  # type: ignore[method-assign]

    def body(worker: Worker) -> None:
        ft, model, i = worker.ft, models[worker.name], int(worker.name[1:])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        wrapper = DistributedDataParallel(ft, model, **SIZES)
        ft.register_state(model=model, optimizer=optimizer)
        if i == 1:
            report_late(worker)
        while ft.step < STEPS:
            passes[worker.name] += 1
            if i == 1 and passes["w1"] % 4 == 0 and ft.step < STEPS - CALM:
                job.hub.fail_next(1, LAST, finish_elsewhere=True)  # the others have the result
            model.zero_grad()
            backward(wrapper, 100 * ft.step + i)
            assert wrapper.status
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.grad.mul_(0.5)
            if worker.name in changed:
                changed[worker.name] = ft.step
            optimizer.step()
            assert ft.step not in after[worker.name], "applied twice"
            after[worker.name][ft.step] = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])

    with Job(3) as job:
        job.run(dict.fromkeys(models, body))
    every = range(1, STEPS + 1)
    assert set(every) == set().union(*after.values())
    missed = set(every) - set(after["w1"])
    assert missed, "the others gave it each result"
    assert passes["w1"] == STEPS - len(missed)
    for step in every:
        rows = [after[name][step] for name in models if step in after[name]]
        assert all(torch.equal(row, rows[0]) for row in rows)
