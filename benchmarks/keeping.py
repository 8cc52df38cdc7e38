"""What it costs to keep the registered state before every step of ``execute``, and to return to it.

    python -m benchmarks.keeping [--parameters 1000000 25000000] [--repetitions 20]

A model of linear layers with Adam: the state has three times the parameters' bytes. One process, one thread.
"""

from __future__ import annotations

import argparse
import sys
import time

import torch
from torch import nn

from benchmarks.report import Report, spread
from ftlib.state.registry import Registered
from ftlib.state.snapshot import Backup

WIDTH = 500


def measure(parameters: int, repetitions: int, report: Report) -> None:
    depth = max(1, round(parameters / (WIDTH * (WIDTH + 1))))
    model = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(depth)])
    optimizer = torch.optim.Adam(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    registered = Registered({"model": model, "optimizer": optimizer})
    backup = Backup()
    backup.keep(registered, 0)
    keeping, returning = [], []
    for _ in range(repetitions):
        began = time.perf_counter()
        kept = backup.keep(registered, 0)
        keeping.append(time.perf_counter() - began)
        began = time.perf_counter()
        kept.restore()
        returning.append(time.perf_counter() - began)
    what = f"{depth * WIDTH * (WIDTH + 1) / 1e6:.1f} M parameters in {2 * depth} tensors, {backup.nbytes / 1e6:.0f} MB of state"
    report.row(f"{what}: keep it", spread(keeping))
    report.row(f"{what}: return to it", spread(returning))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=int, nargs="+", default=[1_000_000, 25_000_000])
    parser.add_argument("--repetitions", type=int, default=20)
    args = parser.parse_args()
    torch.set_num_threads(1)
    report = Report("Keeping the state of a step", 30.0)
    for parameters in args.parameters:
        measure(parameters, args.repetitions, report)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
