"""Every sample once an epoch, whatever happens: kills, hangs, leaves, preemptions and joins at random moments.

    python -m benchmarks.epochs                      # 200 events
    python -m benchmarks.epochs --events 40 --load 2

Jobs of 2 to 5 workers go through 3 epochs of a dataset, each worker with a ``DataLoader`` that looks ahead in a process of its
own. Half a second apart, on average, something happens: SIGKILL, SIGSTOP for a few seconds (the worker is excluded, and joins
again), SIGTERM, a leave, a join; several at once now and then. Halfway through the last epoch it stops, and all have to come to
the end.

Bars: in every ledger every sample was used up once in each epoch; the samples in the averages are those of the ledgers; all
hashes are equal after every step; no step is lost; nobody is stuck, and every worker that was not killed ends with 0.
"""

from __future__ import annotations

import collections
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.machine import busy_loops
from benchmarks.report import Report, chosen, parser
from tests.processes.cluster import Cluster, Worker
from tests.processes.reader import Orders
from tests.processes.readers import ended, reading, violations

LEAST, MOST = 2, 5
"""Workers."""
LIMIT = 120.0
"""Seconds for a job to come to its end once nothing happens any more, on a busy machine."""


class Term:
    """One job, from its founding to the end of its last epoch."""

    def __init__(self, directory: Path, seed: int, events: int, orders: Orders, agent: str | None) -> None:
        """``events``: at most so many."""
        self._chance = random.Random(seed)
        self._most = events
        self._orders = orders
        self.kinds: collections.Counter[str] = collections.Counter()
        self._stopped: dict[Worker, float] = {}
        """Workers that hang, and when they go on."""
        settings = chosen(agent, rejoin=True)
        self.cluster = Cluster(directory, program="tests.processes.reader:read", settings=settings)
        self.steps = 0

    def run(self) -> list[str]:
        """What went wrong."""
        cluster, chance = self.cluster, self._chance
        with cluster:
            reading(cluster, chance.randint(LEAST, MOST), self._orders)
            while sum(self.kinds.values()) < self._most and not self._late():
                time.sleep(chance.expovariate(2.0))  # the next event comes at a random moment
                for _ in range(chance.choice([1, 1, 1, 1, 2])):
                    self._event()
                self._go_on(time.monotonic())
            self._go_on(float("inf"))
            ended(cluster, LIMIT + self._orders.rest * self._orders.samples * self._orders.epochs)
        self.steps = max((worker.last.get("step", 0) for worker in cluster.workers), default=0)
        return violations(cluster.workers, self._orders.samples, self._orders.epochs) + list(cluster.faults())

    def _late(self) -> bool:
        """Whether half of the last epoch is over; or everything, where it went quicker than anybody looked."""
        half = (self._orders.epochs - 1, self._orders.samples // 2)
        places = [
            (line["data"], line["used"]) for worker in self.cluster.alive() for line in worker.calls[-50:] if "data" in line
        ]
        return any(place >= half for place in places) or any(
            worker.code == 0 and _done(worker) for worker in self.cluster.workers
        )

    def _event(self) -> None:
        chance, cluster = self._chance, self.cluster
        there = [worker for worker in cluster.alive() if worker not in self._stopped]
        holders = [worker for worker in there if len(worker.calls) >= 2]
        kind = chance.choice(["kill", "kill", "hang", "leave", "preempt", "join", "join", "join"])
        if kind == "join":
            if len(there) + len(self._stopped) >= MOST or not holders:
                return
            # Through all: who is told of some only may find that these have gone, one after the other, when it asks.
            introducers = [worker.address for worker in cluster.alive() if worker.calls]
            cluster.join(given=vars(self._orders), settings={"introducers": introducers})
        else:
            # Those who were killed a moment ago may have been the only ones with the state that others were to get.
            if len(holders) < 3 and not (len(holders) == 2 and all(worker in holders for worker in there)):
                return
            worker = chance.choice(holders)
            if kind == "kill":
                worker.kill()
            elif kind == "preempt":
                worker.signal(signal.SIGTERM)
            elif kind == "leave":
                worker.signal(signal.SIGUSR2)
                worker.killed = time.monotonic()
            else:
                worker.signal(signal.SIGSTOP)
                self._stopped[worker] = time.monotonic() + chance.uniform(0.2, 5.0)
        self.kinds[kind] += 1

    def _go_on(self, now: float) -> None:
        """Let those whose time has come go on."""
        for worker, until in list(self._stopped.items()):
            if until <= now:
                del self._stopped[worker]
                worker.signal(signal.SIGCONT)


def _done(worker: Worker) -> bool:
    return any(event.get("event") == "done" for event in worker.events)


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--events", type=int, default=200)
    options.add_argument("--samples", type=int, default=6000, help="of the dataset")
    options.add_argument("--loaders", type=int, default=1, help="processes of each worker's loader")
    options.add_argument("--load", type=int, default=0, help="busy loops beside it")
    options.add_argument("--seed", type=int, default=1)
    args = options.parse_args()
    report = Report(f"{args.events} events over 3 epochs of {args.samples} samples", 60 + 1.2 * args.events)
    kinds: collections.Counter[str] = collections.Counter()
    orders = Orders(samples=args.samples, batch_size=4, epochs=3, loaders=args.loaders, rest=0.02, every=5)
    faults, jobs, steps = list[str](), 0, 0
    with busy_loops(args.load):
        while kinds.total() < args.events:
            report.say(f"{kinds.total()} of {args.events} events")
            place = Path(tempfile.mkdtemp(prefix="ftlib-epochs-"))
            term = Term(place, args.seed + jobs, args.events - kinds.total(), orders, args.agent)
            try:
                found = term.run()
            except AssertionError as error:
                found = [f"stuck: {error}"]
            kinds += term.kinds
            steps += term.steps
            if found:
                print(f"VIOLATION (seed {args.seed + jobs}; logs in {place}): {found[:5]}", flush=True)
                faults += found
            else:
                shutil.rmtree(place)
            jobs += 1
    report.row("events", ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())))
    report.row("jobs, steps", f"{jobs}, {steps}")
    report.row(
        "samples not used up once, ledgers and hashes that differ, steps lost, stuck",
        str(len(faults)),
        bar="0",
        good=not faults,
    )
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
