"""Time from SIGSTOP of a worker to the next finished average of the others, under ``ftlib run`` with default settings.

    python -m benchmarks.fencing --repetitions 5

One of 4 workers, then either of 2, is stopped while all average in a tight loop. The others accuse it of silence, and the
launcher kills it: that is proof, also for one of two. Afterwards it gets SIGCONT, which must find nobody, and the launcher has
started a new worker that joins. Bar: 3 s.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import random
import signal
import sys
import time

from benchmarks.faults import all_after, crew, newest_epoch, pause
from benchmarks.report import chosen, parser, spread
from tests.processes.cluster import Worker, load
from tests.processes.verdict import Verdict

BAR = 3.0


def measure(size: int, args: argparse.Namespace) -> list[float]:
    """Seconds of each repetition."""
    chance = random.Random(args.seed)
    totals = []
    verdict = Verdict()
    before = load()
    task = {"sizes": [args.elements], "settings": chosen(args.agent)}
    with crew("fencing", size, launched=True, **task) as run:
        for repetition in range(args.repetitions):
            # Past what the last join left behind, and at whatever moment of a call and of a probe round.
            time.sleep(0.5 + chance.random() * 0.5)  # see above
            run.read()
            workers = sorted(run.alive(), key=lambda worker: worker.last["rank"])
            victim = workers[repetition % size]
            survivors = [worker for worker in workers if worker is not victim]
            epoch = newest_epoch(workers)
            fault = victim.signal(signal.SIGSTOP)
            victim.killed = fault
            run.until("the others average without it", functools.partial(all_after, survivors, fault, epoch))
            totals.append(pause(survivors, fault, epoch))
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim.pid, signal.SIGCONT)
            run.until("the stopped worker is gone", functools.partial(_ended, victim))
            late = [line for line in victim.calls if line["t"] > fault + 0.1]
            assert not late, f"the stopped worker went on: {late}"
            run.training(size, 60.0)
            verdict.check(run.workers)
            assert not verdict.violations, verdict.violations
    print(f"SIGSTOP of 1 of {size} under ftlib run, {args.repetitions} times; {before}, then {load()}")
    print(f"  median {spread(totals, unit='s')}; {verdict.steps} steps, all alike")
    return totals


def _ended(worker: Worker) -> bool:
    return worker.code is not None


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--repetitions", type=int, default=5)
    options.add_argument("--elements", type=int, default=1_000_000)
    options.add_argument("--seed", type=int, default=1)
    args = options.parse_args()
    totals = [total for size in (4, 2) for total in measure(size, args)]
    print(f"  bar {BAR:g} s: {'met' if max(totals) <= BAR else 'MISSED'}")
    return int(max(totals) > BAR)


if __name__ == "__main__":
    sys.exit(main())
