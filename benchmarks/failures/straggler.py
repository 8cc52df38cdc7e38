"""One of 3 workers takes five times as long for a step as the others: with and without a deadline.

    python -m benchmarks straggler                         # about 5 minutes
    python -m benchmarks straggler --rounds 1 --steps 60

Learners (``tests/processes/programs/learner``) with Adam; their forward and backward pass is a sleep, so that the slow one
takes no processor from the others. In each round, in turns: all alike (*usual*), one slow without a deadline, one slow with
one of 1.2 usual steps. The others' step time is that of all their steps together, those that wait for the deadline and for
what the slow one takes over included: seconds from the first to the last of them, by their number. It begins when the slow
one's call pattern is known. Bar: with a deadline at most 1.3 times the usual one, median of the rounds. Parameters are hashed
after every step.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.report import Report, chosen, parser, spread
from ftlib.core.backup.pattern import WINDOW
from tests.harness.cluster import Cluster, Worker

BAR = 1.3
FACTOR = 1.2
"""The deadline, in usual steps."""
LIMIT = 60.0
SIZE = 3


class Turn:
    """What one cluster did."""

    def __init__(self, workers: list[Worker], slow: Worker | None, steps: int) -> None:
        """The last ``steps`` steps of the others."""
        others = [worker for worker in workers if worker is not slow]
        lines = [worker.calls[-steps - 1 :] for worker in others]
        spans = [[later["end"] - sooner["end"] for sooner, later in pairwise(each)] for each in lines]
        self.mean = statistics.mean(statistics.mean(each) for each in spans)
        self.median = statistics.median(span for each in spans for span in each)
        self.longest = max(span for each in spans for span in each)
        self.alone = 0.0
        """Share of the others' steps that were taken without the slow one."""
        if slow is not None:
            part = [line["who"] >> slow.task.slot & 1 for line in lines[0][1:]]
            self.alone = 1.0 - sum(part) / len(part)
        found: dict[int, set[tuple[str, int]]] = defaultdict(set)
        for worker in workers:
            for line in worker.calls[:-1]:
                found[line["step"]].add((line["hash"], line["who"]))
        self.differ = sum(len(values) > 1 for values in found.values())
        self.checked = len(found)


def turn(elements: int, rest: float, slow: float, steps: int, settings: dict[str, Any]) -> Turn:
    """One cluster, its most senior worker slow."""
    directory = Path(tempfile.mkdtemp(prefix="ftlib-straggler-"))
    try:
        with Cluster(
            directory,
            program="tests.processes.programs.learner:learn",
            sizes=[elements // 10] * 10,
            given={"rest": rest},
            settings=settings,
        ) as cluster:
            workers = cluster.found(SIZE, first={"given": {"rest": slow}})
            cluster.until("the pattern is known", lambda: all(len(worker.calls) > WINDOW + 2 for worker in workers), 3 * LIMIT)
            before = len(workers[1].calls)
            cluster.until(f"{steps} steps", lambda: len(workers[1].calls) > before + steps, LIMIT + 3 * steps * max(rest, slow))
            for fault in cluster.faults():
                print(f"  FAULT {fault}", flush=True)
            return Turn(workers, workers[0] if slow != rest else None, min(steps, *(len(w.calls) - 2 for w in workers[1:])))
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def main() -> int:
    options = parser(__doc__, rounds=5)
    options.add_argument("--steps", type=int, default=100, help="of the others, in each turn")
    options.add_argument("--elements", type=int, default=1_000_000, help="parameters")
    options.add_argument("--rest", type=float, default=0.1, help="seconds of a usual forward and backward pass")
    options.add_argument("--times", type=float, default=5.0, help="as long as usual, for the slow one")
    args = options.parse_args()
    slow, waits = args.rest * args.times, args.steps // 3
    expected = args.rounds * (2 * 1.2 * args.rest * args.steps + slow * (waits + 2 * WINDOW) + 20)
    report = Report(f"one of {SIZE} workers takes {args.times:g} times as long for a step", expected)
    turns: dict[str, list[Turn]] = defaultdict(list)
    ratios: dict[str, list[float]] = defaultdict(list)
    for number in range(args.rounds):
        report.say(f"round {number + 1} of {args.rounds}")
        usual = turn(args.elements, args.rest, args.rest, args.steps, chosen(args.agent))
        deadline = chosen(args.agent, straggler_deadline=FACTOR * usual.median)
        variants = [("without a deadline", waits, chosen(args.agent)), ("with a deadline", args.steps, deadline)]
        turns["usual"].append(usual)
        for name, steps, settings in variants if number % 2 == 0 else reversed(variants):
            turns[name].append(turn(args.elements, args.rest, slow, steps, settings))
            ratios[name].append(turns[name][-1].mean / usual.mean)
    for name, found in turns.items():
        text = f"{spread([each.mean for each in found])}; longest {max(each.longest for each in found) * 1e3:.0f} ms"
        report.row(f"the others' step, {name}", text)
    for name, values in ratios.items():
        text = f"{statistics.median(values):.2f} [{min(values):.2f} - {max(values):.2f}] times the usual step"
        has_bar = name == "with a deadline"
        report.row(name, text, bar=f"<= {BAR}" if has_bar else "", good=statistics.median(values) <= BAR if has_bar else None)
    alone = [each.alone for each in turns["with a deadline"]]
    report.row("the others' steps without the slow one's part", f"{100 * statistics.median(alone):.0f} %")
    every = [each for found in turns.values() for each in found]
    differ, checked = sum(each.differ for each in every), sum(each.checked for each in every)
    report.row("steps after which workers differ", f"{differ} of {checked}", bar="0", good=not differ)
    return report.finish()
