"""Averages under way in backward: a pass with ``DistributedDataParallel``, with torch's, and with an average after backward.

The same model of 24 layers (25 MB) three times at each rank; forward and backward of the three take turns, always in one order,
as members expect calls in the order in which they came before. Two ranks have the GPU together: what they compute takes turns.
"""

from __future__ import annotations

import json
import socket
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from benchmarks.gpu.average import accelerated
from benchmarks.gpu.ranks import LIMIT, RANKS, beside, options
from benchmarks.gpu.stand import Bench, Stand
from benchmarks.job import Job
from benchmarks.report import spread
from ftlib import DistributedDataParallel, FTLib

LAYERS, WIDTH, BATCH = 24, 512, 512
BUCKET_MB = 5
SIDES = ("torch's", "ours", "after backward")
ROWS = {
    f"{name}, 2 ranks, forward and backward of 24 layers (25 MB): torch's wrapper, ours, an average after it": ""
    for name in ("gloo", "nccl")
}
WARM = 5


def measure(bench: Bench) -> None:
    """Rows."""
    stand, report = bench.stand, bench.report
    for left, (framework, backend) in ((2, ("gloo", "gloo")), (1, (stand.accelerated, stand.backend))):
        with socket.create_server(("127.0.0.1", 0)) as held:
            port = str(held.getsockname()[1])
        seconds = max(1.0, bench.left / left - 15.0)  # without those in which the ranks start
        words = ["--stand", stand.name, "--framework", framework, "--backend", backend, "--port", port]
        with Job(["-m", "benchmarks", "gpu.backward", *words, "--seconds", f"{seconds}"], RANKS) as job:
            job.ended(bench.left + LIMIT)
            [line] = job.all_lines()
        what = f"{framework}, {RANKS} ranks, forward and backward of {LAYERS} layers"
        if line["why"]:
            report.row(what, f"not measured: {line['why']}", bar="to be measured", good=False)
            continue
        times = dict(zip(SIDES, zip(*line["times"], strict=True), strict=True))
        report.row(f"{what}: {', '.join(SIDES)}", ", ".join(spread(list(times[side])) for side in SIDES))
        for other in ("torch's", "after backward"):
            ratio = statistics.median(ours / theirs for ours, theirs in zip(times["ours"], times[other], strict=True))
            report.row(f"... ours / {other}", f"{ratio:.2f}")


class Passes:
    """The three sides, at one rank."""

    def __init__(self, stand: Stand, ft: FTLib, beside: Any) -> None:
        """``beside``: a group of torch's."""
        self._ft = ft
        self._inputs = torch.randn(BATCH, WIDTH).to(stand.device)
        plain, theirs, ours = (_model().to(stand.device) for _ in range(3))
        ft.register_state(model=ours)
        self._plain = plain
        self._theirs = nn.parallel.DistributedDataParallel(theirs, process_group=beside, bucket_cap_mb=BUCKET_MB)
        self._ours = DistributedDataParallel(ft, ours, bucket_mb=BUCKET_MB)

    def theirs(self) -> None:
        """With torch's wrapper."""
        self._pass(self._theirs)

    def ours(self) -> None:
        """With this one's."""
        self._pass(self._ours)
        assert self._ours.status

    def after(self) -> None:
        """Without one."""
        self._pass(self._plain)
        assert self._ft.allreduce_average(self._plain)

    def _pass(self, model: nn.Module) -> None:
        for parameter in model.parameters():
            parameter.grad = None
        model(self._inputs).square().mean().backward()


def _model() -> nn.Sequential:
    torch.manual_seed(1)
    layers: list[nn.Module] = []
    for _ in range(LAYERS):
        layers += [nn.Linear(WIDTH, WIDTH), nn.Tanh()]
    return nn.Sequential(*layers)


def main() -> int:
    """One rank: a line of JSON."""
    parser = options(__doc__)
    args = parser.parse_args()
    with beside(args) as (stand, ft, group):
        passes = Passes(stand, ft, group)
        why = "" if args.framework == "gloo" else accelerated(ft, stand)
        times = [] if why else _measured(stand, (passes.theirs, passes.ours, passes.after), args.seconds)
        if ft.rank == 0:
            print(json.dumps({"why": why, "times": times}), flush=True)
    return 0


def _measured(stand: Stand, sides: tuple[Callable[[], None], ...], seconds: float) -> list[list[float]]:
    """Seconds of each side, until the time is over: until everything is done, at the slowest rank."""

    def timed(side: Callable[[], None]) -> float:
        stand.synchronize()
        dist.barrier()
        began = time.perf_counter()
        side()
        stand.synchronize()
        return time.perf_counter() - began

    for _ in range(WARM):
        for side in sides:
            timed(side)
    until = time.monotonic() + seconds
    times: list[list[float]] = []
    over = torch.zeros(1)
    while not over.item():
        times.append([timed(side) for side in sides])
        over.fill_(float(time.monotonic() > until))
        dist.all_reduce(over, dist.ReduceOp.MAX)
    slowest = torch.tensor(times, dtype=torch.float64)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    found: list[list[float]] = slowest.tolist()
    return found


if __name__ == "__main__":
    sys.exit(main())
