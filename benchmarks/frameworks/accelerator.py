"""What the loss of an accelerator costs: how long until calls go by it again at all members, and what they cost meanwhile.

    python -m benchmarks accelerator                          # everything, with the rehearsed accelerator
    python -m benchmarks accelerator --only back --starts 2   # one of: back away

back    4 workers average 1 M parameters in a tight loop, by accelerators. One is killed; in other jobs, an operation fails
        at one member alone. Time: from the kill, or the launch of that operation, until a call has gone by accelerators again
        at every member. Bar: the accelerator's start-up, one call (of those by Gloo meanwhile), and 100 ms.
away    25 MB averages while the accelerator starts for ever, beside plain Gloo, pair by pair (see ``pairs``).
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
import statistics
import sys
import time
from dataclasses import dataclass, field

from benchmarks.failures.faults import crew, lose, pause, refill
from benchmarks.frameworks.pairs import SIZES, paired
from benchmarks.report import Report, chosen, parser, spread
from ftlib import FTLib
from ftlib.core.engine.transport import Transport
from ftlib.frameworks.accelerators import backoff
from ftlib.frameworks.accelerators.figures import Figures
from ftlib.frameworks.accelerators.rehearsal.communicator import RehearsedCommunicator
from ftlib.frameworks.accelerators.rehearsal.faults import VARIABLE
from tests.harness.cluster import Cluster, Worker
from tests.harness.moments import wrapped
from tests.harness.worker import Lines

REHEARSAL = "rehearsal"
PARTS = ("back", "away")
SLACK = 0.1
"""Seconds beside the start-up and a call."""
ERRING = 60
"""The launch of each communicator that fails at ``RANK``: after a second or so."""
RANK = 1
LIMIT = 60.0
"""Seconds for accelerators to come on, beside their start-up."""
NEVER = 100_000.0
"""Seconds of a start-up that nobody will see the end of."""


class Carried:
    """A worker's habit: tells whenever what carries its calls has changed, or the view; and what a start took."""

    def __init__(self, ft: FTLib, lines: Lines) -> None:
        self._ft, self._lines = ft, lines
        self._known = (False, 0)
        backoff.LONG = 0.0  # every failure is the first one: what follows a row of them is not measured here
        self._launched_at = 0.0
        # The methods are looked up at each call.
        for owner, name, note in (
            (Transport, "note", self._ended),
            (Figures, "ready_after", self._ready),
            (RehearsedCommunicator, "launch", self._launched),
        ):
            setattr(owner, name, wrapped(getattr(owner, name), note, before=True))

    def __call__(self) -> None:
        """Before a call: nothing."""

    def _launched(self, *_: object) -> None:
        self._launched_at = time.monotonic()

    def _ended(self, *_: object, accelerated: bool) -> None:
        now = accelerated, self._ft.epoch
        if now != self._known:
            self._known = now
            self._lines.write(event="carried", accelerated=accelerated, at_epoch=now[1], launched=self._launched_at)

    def _ready(self, _figures: Figures, seconds: float) -> None:
        self._lines.write(event="ready", seconds=seconds)


@dataclass
class Losses:
    """Of one kind, in seconds."""

    times: list[float] = field(default_factory=list)
    averages: list[float] = field(default_factory=list)
    """Until all had averaged again, by Gloo."""
    starts: list[float] = field(default_factory=list)
    """The communicators' own, of all members."""
    calls: list[float] = field(default_factory=list)
    """By Gloo meanwhile."""

    def note(self, workers: list[Worker], at: float, epoch: int) -> None:
        """All calls of ``workers`` go by accelerators again since a loss at ``at`` in ``epoch``."""
        back = max(on(worker, epoch) for worker in workers)
        self.times.append(back - at)
        self.averages.append(pause(workers, at, epoch))
        for worker in workers:
            ready = [event for event in worker.events if event.get("event") == "ready" and at < event["t"] <= back]
            self.starts += [event["seconds"] for event in ready]
            ends = [line["end"] for line in worker.calls if line["epoch"] > epoch and at < line["end"] < back]
            self.calls += [after - before for before, after in itertools.pairwise(ends)]

    def tell(self, what: str, start: float, report: Report) -> None:
        """Rows."""
        call = statistics.median(self.calls) if self.calls else 0.0
        limit = start + call + SLACK
        good = statistics.median(self.times) <= limit
        bar = f"<= {start:g} s + {call * 1e3:.0f} ms + {SLACK * 1e3:g} ms"
        report.row(
            f"{what}, to calls by accelerators at all others, {len(self.times)} times", spread(self.times), bar=bar, good=good
        )
        report.row("... to the next average, by Gloo", spread(self.averages))
        report.row("... beyond the start-up", spread([each - start for each in self.times]))
        report.row("... the communicators' own start", spread(self.starts))
        report.row("... a call by Gloo meanwhile", spread(self.calls))


def on(worker: Worker, epoch: int) -> float:
    """When its first call by accelerators in an epoch above ``epoch`` ended; infinity: not yet."""
    carried = (event for event in worker.events if event.get("event") == "carried" and event["at_epoch"] > epoch)
    return next((float(event["t"]) for event in carried if event["accelerated"]), math.inf)


def all_on(workers: list[Worker], epoch: int) -> bool:
    return all(on(worker, epoch) < math.inf for worker in workers)


def newest(worker: Worker) -> int:
    """That of its newest call."""
    return int(worker.last["epoch"])


def back(args: argparse.Namespace, report: Report) -> None:
    """Rows for each start-up."""
    chance = random.Random(args.seed)
    for start in args.starts:
        for faults, what in (("", "1 of {} killed"), (f", rank={RANK}, error_at={ERRING}", "an operation fails at 1 of {}")):
            settings, losses = chosen(args.agent, framework=REHEARSAL), Losses()
            task = {"sizes": [args.elements], "fill": False, "digest": False, "settings": settings}
            task |= {
                "habit": ["benchmarks.frameworks.accelerator:Carried"],
                "environment": {VARIABLE: f"start_seconds={start:g}{faults}"},
            }
            with crew("accelerator", args.workers, **task) as cluster:
                for number in range(args.repetitions):
                    if faults:
                        fail(cluster, losses, LIMIT + start)
                    else:
                        kill(cluster, losses, LIMIT + start, chance)
                        refill(cluster, args.workers)
                    report.say(f"{what.format(args.workers)}, start-up {start:g} s: {number + 1} of {args.repetitions}")
            losses.tell(f"{what.format(args.workers)}, start-up {start:g} s", start, report)


def kill(cluster: Cluster, losses: Losses, limit: float, chance: random.Random) -> None:
    """A worker dies while all calls go by accelerators."""
    workers = cluster.alive()
    before = max(map(newest, workers))
    cluster.until("calls go by accelerators", lambda: all_on(workers, before - 1), limit)
    time.sleep(0.3 + 0.2 * chance.random())  # anywhere in a call
    loss = lose(cluster, chance.choice(workers), limit=limit)
    cluster.until("calls go by accelerators again", lambda: all_on(loss.survivors, loss.epoch), limit)
    losses.note(loss.survivors, loss.at, loss.epoch)


def fail(cluster: Cluster, losses: Losses, limit: float) -> None:
    """An operation fails at one member; the others' hang."""
    workers = cluster.alive()
    before = max(map(newest, workers))
    victim = next(worker for worker in workers if worker.last["rank"] == RANK)

    def redone() -> list[float]:
        """When the operation that failed was launched."""
        carried = (event for event in victim.events if event.get("event") == "carried" and event["at_epoch"] > before)
        return [float(event["launched"]) for event in carried]

    launched = cluster.until("an operation has failed", redone, limit)[0]
    cluster.until("calls go by accelerators again", lambda: all_on(workers, before), limit)
    losses.note(workers, launched, before)


def away(args: argparse.Namespace, report: Report) -> None:
    """Rows for each size."""
    settings = chosen(args.agent, rehearsal=f"start_seconds={NEVER:g}")  # a variable as those of settings
    paired(report, REHEARSAL, args.sizes, args.rounds, args.small_rounds, settings)


def main() -> int:
    options = parser(__doc__, workers=4, elements=1_000_000, repetitions=10, rounds=40, small_rounds=1000, seed=1)
    options.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    options.add_argument(
        "--starts", nargs="+", type=float, default=[0.5, 2.0], help="seconds that an accelerator takes to start"
    )
    options.add_argument("--sizes", nargs="+", choices=SIZES, default=["25MB"])
    args = options.parse_args()
    seconds = {"away": 30.0, "back": sum(2 * (10.0 + (start + 2.0) * args.repetitions) for start in args.starts)}
    report = Report("An accelerator that is lost", sum(seconds[part] for part in args.only))
    for part in args.only:
        {"back": back, "away": away}[part](args, report)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
