"""What one GPU can show: several ranks on it, a process each. Nothing is measured where there is none, and every row says so.

    python -m benchmarks gpu                                # all parts, in less than five minutes
    python -m benchmarks gpu --only losses --seconds 900 --kills 200
    python -m benchmarks gpu --rehearse                     # on the CPU, to see that all of this runs: its numbers mean nothing

ends            a process with a context and a kernel that spins is killed: when its death is told, when its sockets close
stops           NCCL itself: revoke and abort with 1, 2 and 4 ranks; what an event says that is recorded too early
gloo, nccl      averages beside the same tensors reduced by torch.distributed, pair by pair
backward        a pass with DistributedDataParallel beside torch's, and beside an average after backward
staging         fill, look for inf and nan, and deliver 25 MB, by CUDA events
losses          a peer is killed while the kernels spin: to the next average, the stop, until NCCL is back; does anything grow?
communicators   built, used, stopped and freed: does anything grow?
children        the process that has the communicator is killed, or stopped, while the kernels spin

The ranks take turns on the GPU, connected by sockets (see ``tests.harness.one_gpu``): nothing here is the speed of NCCL.
A part that finds no time is left out, and one that runs out of it says how far it came.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from benchmarks.gpu import average, backward, children, communicators, ends, losses, staging, stops
from benchmarks.gpu.stand import REAL, REHEARSED, Bench
from benchmarks.report import Report, parser
from tests.harness.nursery import Nursery

__all__ = ["PARTS", "main", "measure"]


class Part(NamedTuple):
    """Some of the rows."""

    measure: Callable[[Bench], None]
    rows: Mapping[str, str]
    """What they are about, and their bars: to be shown if it cannot be measured."""
    seconds: float
    """Of ``SECONDS``."""


PARTS = {
    "ends": Part(ends.measure, ends.ROWS, 30.0),
    "stops": Part(stops.measure, stops.ROWS, 40.0),
    "staging": Part(staging.measure, staging.ROWS, 20.0),
    "gloo": Part(average.by_gloo, average.GLOO_ROWS, 35.0),
    "nccl": Part(average.by_nccl, average.NCCL_ROWS, 40.0),
    "backward": Part(backward.measure, backward.ROWS, 50.0),
    "losses": Part(losses.measure, losses.ROWS, 60.0),
    "children": Part(children.measure, children.ROWS, 40.0),
    "communicators": Part(communicators.measure, communicators.ROWS, 40.0),
}
SECONDS = sum(part.seconds for part in PARTS.values())
LEAST = 5.0
"""Seconds that are too few for any part."""


def measure(args: argparse.Namespace, report: Report, nursery: Nursery, directory: Path) -> None:
    """All parts that were asked for, each with its share of the time and of what those before it have left over."""
    until = time.monotonic() + args.seconds
    asked = [name for name in PARTS if name in args.only]
    for number, name in enumerate(asked):
        left = until - time.monotonic()
        if left < LEAST:
            without(report, name, "no time was left")
            continue
        share = PARTS[name].seconds / sum(PARTS[each].seconds for each in asked[number:])
        bench = Bench(args, report, nursery, directory / name, time.monotonic() + left * share)
        print(f"-- {name}, {left * share:.0f} s", flush=True)
        try:
            PARTS[name].measure(bench)
        except Exception as error:  # noqa: BLE001 - the other parts can be measured all the same
            print(f"{name}: {type(error).__name__}: {error}", flush=True)
            without(report, name, (str(error).strip().splitlines() or [repr(error)])[-1], good=False)


def without(report: Report, name: str, why: str, *, good: bool | None = None) -> None:
    """The rows of a part that was not measured."""
    for what, bar in PARTS[name].rows.items():
        report.row(what, f"not measured: {why}", bar=bar, good=good)


def main() -> int:
    options = parser(
        __doc__, agent=False, seconds=SECONDS, elements=1_000_000, workers=3, kills=200, communicators=1000, seed=1
    )
    options.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    options.add_argument("--rehearse", action="store_true", help="on the CPU, in the GPU's place")
    args = options.parse_args()
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # else a look for GPUs spoils them for processes forked later
    args.stand = REHEARSED if args.rehearse else REAL
    report = Report("One GPU" if args.stand.real else "A rehearsal on the CPU: no figures", args.seconds)
    if reason := args.stand.missing():
        for name in PARTS:
            if name in args.only:
                without(report, name, reason)
        return report.finish()
    with tempfile.TemporaryDirectory(prefix="ftlib-gpu-") as place, Nursery(Path(place) / "nursery") as nursery:
        try:
            measure(args, report, nursery, Path(place))
        except KeyboardInterrupt:
            report.row("all that is not above", "not measured: interrupted", bar="to be measured", good=False)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
