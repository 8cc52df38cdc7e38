"""SIGKILLs at random moments of forward, backward and step, and joins while others train: real processes with the wrapper."""

from __future__ import annotations

import random
import shutil
import statistics
import tempfile
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.data_parallel.stand import quartiles
from benchmarks.data_parallel.steps import MODES
from benchmarks.failures.faults import crew
from benchmarks.failures.joining import beside, gone, ready, report_faults, watched
from benchmarks.report import Report, spread
from benchmarks.steps.costs import PROBES
from tests.harness.cluster import Cluster, Worker
from tests.harness.nursery import Nursery, Stuck
from tests.processes.jobs.episode import Episode
from tests.processes.programs.wrapped import Phase, at, repeated, replayed

PROGRAM = "tests.processes.programs.wrapped:learn"
KILLS = 15
"""In one episode."""
AIMED = 0.8
"""Of the kills, those that wait until the victim is in a phase that was drawn: some are over in no time."""
PATIENCE = 0.3
"""Seconds that they wait for it."""
EXCLUDED = 10.0
"""Seconds of silence that exclude a worker. A kill is proven; so this is for those that a busy machine does not let run."""
PAUSE_BAR = 0.060
JOIN_BAR, COUNTS_BAR = 0.040, 0.5
PARAMETERS, LAYERS = 1_000_000, 10
REST = 0.015
"""Seconds of forward and backward, in which the processor rests."""
UNDISTURBED, FURTHER = 20, 30
"""Steps before a join, and from the joiner's first contribution on."""
COUNTED = 8.0
"""Seconds in which control messages are counted."""


class Tally:
    """What came of all episodes."""

    def __init__(self) -> None:
        self.kills = self.steps = self.joins = self.repeated = self.stuck = 0
        self.lost: list[str] = []
        """Violations: steps lost, results that differ, errors."""
        self.hit: Counter[str] = Counter()
        """What the kills have hit."""
        self.pauses: list[float] = []


def kills(args: Namespace, report: Report) -> None:
    """Episodes, the modes in turns, until there were enough."""
    tally, seeds, modes = Tally(), random.Random(args.seed), list(args.modes)
    place = Path(tempfile.mkdtemp(prefix="ftlib-parallel-kills-"))
    try:
        with Nursery(place, PROGRAM.partition(":")[0]) as nursery:
            while tally.kills < args.kills:
                seed, mode = seeds.randrange(1 << 30), modes[0]
                modes.append(modes.pop(0))
                _episode(tally, min(KILLS, args.kills - tally.kills), seed, mode, nursery)
                report.say(f"{tally.kills} of {args.kills} kills")
    finally:
        shutil.rmtree(place, ignore_errors=True)
    hit = ", ".join(f"{count} {what}" for what, count in sorted(tally.hit.items()))
    report.row("kills", f"{tally.kills}: {hit}; {tally.joins} joins")
    text = f"{len(tally.lost)} in {tally.steps} steps; stuck {tally.stuck}"
    report.row(
        "steps lost, results that differ or that no replay has, errors", text, bar="0", good=not (tally.lost or tally.stuck)
    )
    report.row("forward or backward passes repeated or for nothing", str(tally.repeated), bar="0", good=not tally.repeated)
    text = f"{quartiles([1e3 * each for each in tally.pauses], ' ms', 0)}, worst {1e3 * max(tally.pauses):.0f} ms"
    good = statistics.median(tally.pauses) <= PAUSE_BAR
    report.row(f"pause beyond the end of backward ({len(tally.pauses)})", text, bar=f"<= {PAUSE_BAR * 1e3:g} ms", good=good)


def _episode(tally: Tally, wanted: int, seed: int, mode: str, nursery: Nursery) -> None:
    chance = random.Random(seed)
    sizes = [chance.choice([300, 20_000, 120_000])] * chance.randint(3, 10)
    given = {
        "views": MODES[mode],
        "optimizer": chance.random() < 0.5,
        "forward": chance.choice([0.0, 0.001, 0.003]),
        "backward": chance.choice([0.0, 0.002, 0.006]),
        "drag": chance.choice([0.0, 0.003]),
    }

    def aim(victim: Worker) -> None:
        if chance.random() < AIMED:
            drawn, deadline = chance.choice(list(Phase)[1:]), time.monotonic() + PATIENCE
            layers = chance.randrange(len(sizes))
            while time.monotonic() < deadline:
                now = at(victim)
                if now.phase is drawn and (drawn is not Phase.BACKWARD or now.layers == layers):
                    break

    place = Path(tempfile.mkdtemp(prefix=f"ftlib-parallel-{seed}-"))
    settings = {"exclude_after": EXCLUDED}
    task: dict[str, Any] = {"program": PROGRAM, "sizes": sizes, "given": given}
    episode = Episode(place, seed, wanted, settings, nursery, None, aim, **task)
    found, stuck = [], ""
    try:
        episode.run()
    except Stuck as error:
        stuck = str(error)
    except AssertionError:
        pass  # it is among the violations
    workers = episode.cluster.workers
    again = repeated(workers)
    found = [*episode.verdict.violations, *episode.cluster.faults(), *replayed(final(workers), sizes)]
    victims = [worker for worker in workers if worker.killed and worker.code == -9]
    for victim in victims:
        where = at(victim)
        phase = Phase.STARTING if not victim.calls else where.phase
        tally.hit[phase.name.lower()] += 1
    tally.kills += max(1, len(victims))
    tally.steps += episode.verdict.steps
    tally.joins += episode.joins
    tally.repeated += len(again)
    tally.lost += found
    tally.stuck += bool(stuck)
    tally.pauses += pauses(workers)
    text = f"{len(sizes)} x {sizes[0]} elements, {given}"
    if found or again or stuck:
        (place / "verdict").write_text("\n".join([text, *found, *again, stuck]))
        print(f"\nVIOLATION (seed {seed}: {episode.text}; {text}); logs in {place}", flush=True)
        print("  " + "\n  ".join([*found[:5], *again[:5], stuck[:2_000]]), flush=True)
    else:
        shutil.rmtree(place)


def final(workers: Sequence[Worker]) -> list[Worker]:
    """Those whose lines are all final, first; of a killed one the last may be of a step that the survivors have redone."""
    for worker in workers:
        if worker.code != 0 and worker.calls:
            worker.calls.pop()
    return sorted(workers, key=lambda worker: worker.code == 0)


def pauses(workers: Sequence[Worker]) -> list[float]:
    """For each kill: how long the first backward without the victim took beyond its last gradient, or beyond the kill if that
    came later; the longest of all survivors.
    """
    found = []
    for victim in workers:
        if not victim.killed or not victim.calls:
            continue
        slot, each = 1 << victim.task.slot, []
        for worker in workers:
            lines = [line for line in worker.calls if line["end"] > victim.killed and not line["who"] & slot]
            members = any(line["end"] < victim.killed for line in worker.calls)
            if lines and members and worker is not victim:
                each.append(lines[0]["end"] - max(lines[0]["computed"], victim.killed))
        if each:
            found.append(max(each))
    return found


def joins(args: Namespace, report: Report) -> None:
    """Three workers of 1 M parameters; in turns one of another job is beside them, and one more joins; then it is killed."""
    sizes, mode = [PARAMETERS // LAYERS] * LAYERS, args.modes[0]
    given = {"views": MODES[mode], "forward": REST / LAYERS / 3, "backward": REST / LAYERS * 2 / 3}
    found, alone = [], []
    with crew("parallel-joins", 3, program=PROGRAM, sizes=sizes, given=given, digest=False) as cluster:
        for number in range(args.joins):
            report.say(f"join {number + 1} of {args.joins}")
            alone.append(beside(cluster, undisturbed=UNDISTURBED, given=given))
            joiner = ready(cluster, given)
            found.append(watched(cluster, joiner, undisturbed=UNDISTURBED, further=FURTHER))
            gone(cluster, joiner, 3)
        report_faults(cluster, report)
        violations = repeated(worker for worker in cluster.workers if not worker.killed)
    what = f"{args.joins} joins, 1 M parameters, {mode}"
    report.bar(f"{what}: longest step above the usual", [join.above for join in found], JOIN_BAR, unit="ms")
    report.row(f"{what}: control, without a join", spread([join.control for join in found]))
    report.row(f"{what}: control, a worker of another job starts and trains alone", spread(alone))
    report.row(f"{what}: the usual step, the joiner in it", spread([join.usual for join in found]))
    report.bar(f"{what}: init to first contribution", [join.contributed for join in found], COUNTS_BAR)
    report.row(f"{what}: passes repeated or for nothing", str(len(violations)), bar="0", good=not violations)


def messages(_args: Namespace, report: Report) -> None:
    """Control messages that a healthy step causes: those sent while training, beyond as long a rest's."""
    directory = Path(tempfile.mkdtemp(prefix="ftlib-parallel-quiet-"))
    with Cluster(
        directory, program=PROGRAM, sizes=[1_000] * 4, given={"forward": 0.0, "backward": 0.0}, idle=COUNTED
    ) as cluster:
        cluster.found(3)

        def counted() -> bool:
            return all(sum("sent" in event for event in worker.events) == 3 for worker in cluster.workers)

        cluster.until("all have counted", counted, 2 * COUNTED + 40.0, poll=0.2)
        more, kinds, steps = [], set[str](), []
        for worker in cluster.workers:
            start, idle, busy = (event for event in worker.events if "sent" in event)
            longer = (busy["t"] - idle["t"]) / (idle["t"] - start["t"])  # steps may take longer than the rest
            more.append(sum(busy["sent"].values()) - longer * sum(idle["sent"].values()))
            kinds |= set(busy["sent"])
            steps.append(busy["steps"])
    shutil.rmtree(directory)
    each = ", ".join(f"{extra:+.0f} in {count} steps" for extra, count in zip(more, steps, strict=True))
    good = kinds <= PROBES and all(extra <= 0.05 * count for extra, count in zip(more, steps, strict=True))
    report.row("control messages beyond those of a rest as long", f"{each} ({', '.join(sorted(kinds))})", bar="0", good=good)
