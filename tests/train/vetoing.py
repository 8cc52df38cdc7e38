"""A program for ``ftlib run``: in every third step a gradient holds inf. It ends with 0 if nobody applied such a step."""

from __future__ import annotations

import copy
import math
import sys

import torch
from torch import nn

from ftlib import DistributedDataParallel, FTLib, Optimizer, Status

STEPS = 12


def main(wrapped: bool) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(20, 30), nn.Tanh(), nn.Linear(30, 1))
    with FTLib.init() as ft:
        model = DistributedDataParallel(ft, module, first_bucket_mb=0.001) if wrapped else module
        optimizer = Optimizer(ft, torch.optim.Adam(module.parameters()), clip_norm=0.1)
        ft.register_state(model=model, optimizer=optimizer)
        for step in range(STEPS):
            before = copy.deepcopy((module.state_dict(), optimizer.state_dict()))
            optimizer.zero_grad()
            loss = model(torch.randn(8, 20)).square().mean()
            bad = step % 3 == 2
            (loss * math.inf if bad and step % 2 == ft.rank else loss).backward()
            status = optimizer.step()
            assert status is (Status.FAIL if bad else Status.SUCCESS), (step, status)
            assert same(before, (module.state_dict(), optimizer.state_dict())) == bad, step
            values = torch.cat([parameter.detach().flatten() for parameter in module.parameters()])
            highest, lowest = values.clone(), values.clone()
            assert ft.allreduce(highest, "MAX") and ft.allreduce(lowest, "MIN")
            assert torch.equal(highest, lowest), "the weights are the same at both"
        assert ft.step == STEPS - STEPS // 3
        print(f"rank {ft.rank} of {ft.size}: {ft.step} steps", flush=True)
        ft.barrier()


def same(one: object, other: object) -> bool:
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.equal(one, other)
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return isinstance(other, (list, tuple)) and len(one) == len(other) and all(map(same, one, other))
    return one == other


if __name__ == "__main__":
    main("--wrapped" in sys.argv)
