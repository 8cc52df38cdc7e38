"""How soon a worker is gone after SIGTERM, and what the others notice of it.

    python -m benchmarks leaving                       # 5 minutes
    python -m benchmarks leaving --only plain --rounds 2

Interpreters of their own train 1 M parameters; a step sleeps for 30 ms, as if a device worked. In turns, one after the other
gets SIGTERM at a random moment until two are left.

* gone: from the signal until its process was reaped (the end of the interpreter and of its loader's processes included), less
  the usual step.
* others: their longest step, from the end of one average to that of the next, from the signal until ten steps in the new view,
  less the usual one, the median of the thirty before. *control*: the longest of those thirty, less the usual.
* ``plain``; ``loaders``: with a DataLoader of two processes; ``looks``: the loop looks at ``should_leave`` after each step, and
  breaks.
"""

from __future__ import annotations

import argparse
import itertools
import random
import signal
import statistics
import time
from dataclasses import dataclass, field
from typing import Any

from benchmarks.job import Job
from benchmarks.report import Report, parser, spread

VARIANTS = {"plain": [], "loaders": ["--loaders", "2"], "looks": ["--looks"]}
GONE_BAR, OTHERS_BAR = 0.3, 0.040
BEFORE, AFTER = 30, 10
"""Steps that are looked at."""
LIMIT = 120.0


@dataclass
class Found:
    """Seconds, of all rounds of one variant."""

    gone: list[float] = field(default_factory=list)
    others: list[float] = field(default_factory=list)
    control: list[float] = field(default_factory=list)
    usual: list[float] = field(default_factory=list)
    redone: int = 0
    """Calls that the others had to do again."""


def steps(lines: list[dict[str, Any]]) -> list[tuple[float, float]]:
    """(end, seconds since the end before) of each."""
    return [(two["end"], two["end"] - one["end"]) for one, two in itertools.pairwise(lines)]


def leave(job: Job, alive: list[int], chance: random.Random, found: Found) -> None:
    """One of them."""
    leaver = chance.choice(alive)
    others = [index for index in alive if index != leaver]
    ready = {index: len(job.lines(index)) for index in alive}
    job.until("they train", lambda: all(len(job.lines(index)) > ready[index] + BEFORE for index in alive), LIMIT)
    time.sleep(chance.random() * 0.1)  # at whatever moment of a step
    process = job.processes[leaver]
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    code = process.wait(LIMIT)
    gone = time.monotonic() - began
    if code:
        raise AssertionError(f"worker {leaver} ended with {code}")

    def beyond(index: int) -> bool:
        return sum(line["size"] == len(others) and line["end"] > began for line in job.lines(index)) > AFTER

    job.until("the others go on", lambda: all(beyond(index) for index in others), LIMIT)
    before, above, control = [], [], []
    for index in others:
        all_steps = steps(job.lines(index))
        earlier = [took for end, took in all_steps if end < began][-BEFORE:]
        first = min(line["end"] for line in job.lines(index) if line["size"] == len(others) and line["end"] > began)
        later = [took for end, took in all_steps if end >= began]
        later = later[: sum(began <= end <= first for end, _ in all_steps) + AFTER]
        usual = statistics.median(earlier)
        before.append(usual)
        above.append(max(later) - usual)
        control.append(max(earlier) - usual)
    found.usual.append(statistics.median(before))
    found.gone.append(gone - found.usual[-1])
    found.others.append(max(above))
    found.control.append(max(control))
    found.redone += sum(job.lines(index)[-1]["redone"] for index in others)


def measure(variant: str, args: argparse.Namespace, chance: random.Random) -> Found:
    """All rounds of one."""
    found = Found()
    for _ in range(args.rounds):
        arguments = ["-m", "benchmarks", "leaver", "--rest", str(args.rest), *VARIANTS[variant]]
        with Job(arguments, args.workers) as job:
            alive = list(range(args.workers))
            while len(alive) > 2:
                leave(job, alive, chance, found)
                alive = [index for index in alive if job.processes[index].poll() is None]
    return found


def main() -> int:
    options = parser(__doc__, agent=False, workers=4, seed=1)
    options.add_argument("--only", nargs="+", choices=VARIANTS, default=list(VARIANTS), metavar="VARIANT")
    options.add_argument("--rounds", type=int, default=4, help="jobs; of each all workers but two leave")
    options.add_argument("--rest", type=float, default=0.03, help="seconds of sleep a step")
    args = options.parse_args()
    report = Report("leaving", len(args.only) * args.rounds * (12 + 5 * (args.workers - 2)))
    for variant in args.only:
        report.say(variant)
        found = measure(variant, args, random.Random(args.seed))
        report.bar(f"{variant}: SIGTERM to exit 0, beyond one step", found.gone, GONE_BAR)
        report.bar(f"{variant}: the others' longest step, beyond the usual", found.others, OTHERS_BAR, unit="ms")
        report.row(f"{variant}: control, and the usual step", f"{spread(found.control)}, {spread(found.usual)}")
        report.row(f"{variant}: calls that the others did again", str(found.redone))
    return report.finish()
