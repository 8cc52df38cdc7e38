"""What a worker that is started anew does for a benchmark; see ``job``.

python -m benchmarks.fresh rest                   # start, and then nothing
python -m benchmarks.fresh big --steps 20         # train 100 M parameters
"""

from __future__ import annotations

import argparse
import hashlib
import json
import threading
import time

import psutil
import torch

from ftlib import FTLib

SIDE = 10_000
"""A matrix of so many rows and columns: 100 M parameters, whose forward and backward pass of one sample cost little."""


def say(**values: object) -> None:
    """One line."""
    print(json.dumps(values), flush=True)


def rest() -> None:
    """Start; tell how long it took and what it added to this process."""
    process = psutil.Process()
    before = process.memory_info().rss
    began = time.perf_counter()
    ft = FTLib.init()
    seconds = time.perf_counter() - began
    say(event="init", seconds=seconds, rss=process.memory_info().rss / 1e6, more=(process.memory_info().rss - before) / 1e6)
    threading.Event().wait()
    ft.close()


def big(steps: int) -> None:
    """``steps`` steps of a linear model with plain SGD."""
    torch.set_num_threads(1)
    with FTLib.init() as ft:
        model = torch.nn.Linear(SIDE, SIDE, bias=False)
        with torch.no_grad():
            model.weight.fill_(0.01)
        ft.register_state(model=model)
        chance = torch.Generator().manual_seed(torch.initial_seed() + ft.rank)
        for _ in range(steps):
            began = time.monotonic()
            model.zero_grad()
            model(torch.randn(1, SIDE, generator=chance)).square().mean().backward()
            computed = time.monotonic()
            status = ft.allreduce_average(model)
            ended = time.monotonic()
            with torch.no_grad():
                model.weight.add_(model.weight.grad, alpha=-0.1)
            say(
                step=ft.step,
                status=status.name,
                epoch=ft.epoch,
                size=ft.size,
                computing=computed - began,
                averaging=ended - computed,
            )
        say(event="done", hash=hashlib.blake2b(model.weight.detach().numpy().data, digest_size=8).hexdigest())


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("part", choices=["rest", "big"])
    options.add_argument("--steps", type=int, default=20)
    args = options.parse_args()
    if args.part == "rest":
        rest()
    else:
        big(args.steps)


if __name__ == "__main__":
    main()
