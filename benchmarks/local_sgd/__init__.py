"""Training that averages seldom: what an inner step, a sync, a death and a joiner cost, and what is learned meanwhile.

    python -m benchmarks local_sgd                                   # all parts, about forty minutes
    python -m benchmarks local_sgd --only faults --kills 20
    python -m benchmarks local_sgd --only faults --kills 25 --ways delay
    python -m benchmarks local_sgd --only loss --tasks digits --seeds 2 --syncs 40 --picture out/loss.png

* inner: what the hooks of ``DiLoCo`` add to an inner step between two syncs.
* faults: 4 workers, delay 0 and above, 1 and 4 fragments, in turns. Two of five workers that are killed kill themselves at a
  boundary of a sync that was drawn, the others get SIGKILL at a random moment; a new one joins in the place of each. Hashes of
  global weights and outer momentum are compared after each sync. A round with more inner steps than the schedule's has lost a
  sync, one with fewer has lost inner steps. Pause: by how much longer the survivors' round was than the ten before, the most of
  any, by its median. ``--ways``: some of the four.
* link: two hosts (network namespaces), and a link so slow that a fragment takes 0.8 of the delay. A step of a round beside one
  of the same loop alone, in the same processes; without delay beside it. Needs root, iproute2 and a kernel with tbf.
* loss: digits and a small transformer, 3 workers. A worker is killed every eighth sync, and another one joins; beside the same
  without. The loss of the global weights on data that nobody trains on; the means of both over the seeds are to be within two
  standard deviations (of a run without faults). ``--picture``: a file for the curves.
* joiner: 100 M parameters with outer momentum; a third worker joins two. The others' longest inner step from its start until
  two syncs after, less their usual one; and in which sync it counts after its state is there.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

from benchmarks.local_sgd.faults import WAYS, faults
from benchmarks.local_sgd.inner import inner
from benchmarks.local_sgd.joiner import joiner
from benchmarks.local_sgd.link import link
from benchmarks.local_sgd.loss import EVERY, loss
from benchmarks.report import Report, parser

__all__ = ["PARTS", "main"]

PARTS: dict[str, tuple[Callable[[Namespace, Report], None], float]] = {
    "inner": (inner, 10.0),
    "faults": (faults, 400.0),
    "link": (link, 90.0),
    "loss": (loss, 900.0),
    "joiner": (joiner, 120.0),
}
"""What measures it, and about how many seconds it takes."""


def main() -> int:
    options = parser(__doc__, agent=False, kills=100, seeds=5, syncs=48, parameters=100_000_000, repetitions=3, seed=1)
    options.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART", help=", ".join(PARTS))
    options.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS), metavar="WAY", help=", ".join(WAYS))
    options.add_argument("--tasks", nargs="+", choices=EVERY, default=list(EVERY), metavar="TASK", help=", ".join(EVERY))
    options.add_argument("--picture", type=Path, default=None)
    args = options.parse_args()
    report = Report("Averages that are seldom", sum(PARTS[name][1] for name in args.only))
    for name in args.only:
        PARTS[name][0](args, report)
    return report.finish()
