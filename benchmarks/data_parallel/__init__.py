"""The wrappers for data parallelism, beside torch's ``DistributedDataParallel`` and torchft's.

    python -m benchmarks data_parallel                                    # all parts; torchft's only with --peer
    python -m benchmarks data_parallel --only steps --models 8x512 --workers 2 --modes views --runs 3
    python -m benchmarks data_parallel --only steps --self-check          # torch beside itself: what the noise is
    python -m benchmarks data_parallel --only torchft --peer PYTHON

PYTHON: an interpreter that has ``torchft-nightly`` beside what ftlib and the benchmarks need (the same torch, too).

* steps: a step (zero_grad, forward, backward, SGD) beside torch's with the same arguments. Each worker has a copy of the model
  for either system, and both groups; steps take turns in random order. Time: at the slowest worker. Median of the ratios
  [quartiles].
* faults: minor page faults of a step, each system in processes of its own.
* torchft: ours with ``Optimizer`` beside torchft's two, in the same way as steps.
* link: two hosts (network namespaces) with 402 Mbit/s between them, layers that take a fixed time; beside an average after
  backward, and beside torch's. Needs root, iproute2 and a kernel with tbf.
* small, cost: a model of 4 KB; 1,000 parameters against one, in processor time of the training thread.
* flat: an average of one flat parameter beside ``all_reduce`` and ``div_``.
* kills: SIGKILLs at random moments of forward, backward and step, 2 to 5 workers, 3 to 10 buckets, the modes in turns; the
  lines of all workers are compared with each other and with a replay without faults.
* joins: workers join three others that train; bars as in ``joining``. In turns a worker of another job starts beside them: what
  that costs their steps is the machine's part. messages: between the agents, beyond those of a rest.
* memory: the most resident memory of a worker, in fresh processes.

``--seconds``: of each row of steps, link and torchft. ``--runs``: each in fresh processes; their rounds are put together.
"""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Callable
from typing import NamedTuple

from benchmarks.data_parallel.flat import flat
from benchmarks.data_parallel.kills import joins, kills, messages
from benchmarks.data_parallel.memory import memory
from benchmarks.data_parallel.steps import MODES, cost, faults, link, small, steps, torchft
from benchmarks.report import Report, parser

__all__ = ["PARTS", "main"]

LARGE = ("8x512", "10x1000", "60M")


class Part(NamedTuple):
    """Some rows."""

    measure: Callable[[Namespace, Report], None]
    axes: str
    """Options with a row for each value."""
    more: float
    """Seconds that a row takes beside ``--seconds``."""


PARTS = {
    "steps": Part(steps, "models workers modes", 15.0),
    "faults": Part(faults, "models modes", 20.0),
    "torchft": Part(torchft, "models workers modes", 15.0),
    "link": Part(link, "modes", 40.0),
    "small": Part(small, "workers modes", 0.0),
    "cost": Part(cost, "modes", 20.0),
    "flat": Part(flat, "workers modes", 20.0),
    "memory": Part(memory, "models modes", 0.0),
    "kills": Part(kills, "", 300.0),
    "joins": Part(joins, "", 110.0),
    "messages": Part(messages, "", 0.0),
}


def main() -> int:
    options = parser(__doc__, agent=False, seconds=25.0, runs=1, kills=300, joins=30, seed=1)
    options.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART", help=", ".join(PARTS))
    options.add_argument("--models", nargs="+", choices=LARGE, default=list(LARGE))
    options.add_argument("--workers", nargs="+", type=int, default=[2, 4])
    options.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    options.add_argument("--self-check", action="store_true", help="steps: torch beside itself")
    options.add_argument("--peer", help="the interpreter that has torchft")
    args = options.parse_args()
    parts = [name for name in args.only if name != "torchft" or args.peer or len(args.only) == 1]
    report = Report("Data parallelism", sum(expected(PARTS[name], args) for name in parts))
    try:
        for name in parts:
            attempt(name, args, report)
    except KeyboardInterrupt:
        report.row("interrupted", "the rest is missing", good=False)
    return report.finish()


def expected(part: Part, args: Namespace) -> float:
    """Seconds that it takes."""
    return float(args.runs * math.prod(len(getattr(args, axis)) for axis in part.axes.split()) * (args.seconds + part.more))


def attempt(name: str, args: Namespace, report: Report) -> None:
    """Rows of one part; where it fails the others are measured all the same."""
    try:
        PARTS[name].measure(args, report)
    except AssertionError as error:  # Stuck among them
        print(error, flush=True)
        report.row(name, str(error).strip().splitlines()[-1][-160:], bar="ends", good=False)
