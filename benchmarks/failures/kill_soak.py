"""Kills at random moments with every framework of the CPU: no step lost, none divergent, nobody stuck, each sample used once.

    python -m benchmarks kill_soak                                              # 1,000 kills, the frameworks in turns
    python -m benchmarks kill_soak --frameworks rehearsal --kills 300 --seed 7
    python -m benchmarks kill_soak --record out/kills.jsonl                     # goes on where an earlier run was stopped

Episodes of 2 to 5 workers, as in ``kills``; new workers join in the place of the dead. Each worker notes which part of its step
it is in, so that some kills can wait for a part that is short, and the table can say what the kills have hit. The bulk is what
carries the gradients, by Gloo or (in brackets) by an accelerator. With ``rehearsal`` each episode draws how the accelerator
behaves, and most kills wait until it is on again. The workers draw batches from an ``ElasticSampler``. The hashes of the
parameters of all workers are compared step by step, and the ledgers of their samples at the end of each data epoch.

Each framework gets as much time as the others. Ctrl-C (or SIGTERM) ends it, and prints what was found so far. Exit code 1 if
anything was violated; the logs of that episode are kept. ``--limit``: seconds for workers to come up, on a busy machine.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.report import Report, parser
from ftlib.frameworks.accelerators.rehearsal.faults import VARIABLE
from tests.harness.cluster import Cluster, Worker
from tests.harness.nursery import Nursery, Stuck
from tests.harness.whereabouts import Part, whereabouts
from tests.processes.jobs.episode import Episode
from tests.processes.jobs.readers import ledger_violations

FRAMEWORKS = ("gloo", "isolated:gloo", "rehearsal")
KILLS = 25
"""In one episode."""
PATIENT = 10.0
"""Seconds of silence that exclude a worker. A kill is proven; so this is for those that a busy machine does not let run."""
SAMPLES = 480
"""In a data epoch: some hundred calls."""
FAULTS = (
    "",
    "",
    "silent=1",
    "launch_seconds=0.003, kernel_seconds=0.003",
    "kernel_seconds=0.005, silent=1",
    "start_seconds=0.05, kernel_seconds=0.002",
    "start_seconds=0.3",
)
"""What an episode draws its accelerators from."""
ON = 0.8
"""Of the kills, those that wait until the accelerators are on."""
AIMED = 0.6
"""Of the kills, those that wait until the victim is in a part of its step that was drawn: some are over in no time."""
PATIENCE = 0.2
"""Seconds that they wait for it."""
SORTS = {
    "lost": ("was followed by", "are not in step", "used up", "nobody has seen"),
    "divergent": ("averaged over different members", "have different ledgers", " has "),
}
"""What the texts of violations say. All others are errors."""


@dataclass
class Score:
    """What came of one framework's episodes."""

    kills: int = 0
    steps: int = 0
    joins: int = 0
    adopted: int = 0
    """Steps that somebody took over from another one who had finished it."""
    epochs: int = 0
    """Data epochs that were seen complete."""
    parts: Counter[str] = field(default_factory=Counter)
    """What the kills have hit."""
    bad: Counter[str] = field(default_factory=Counter)
    """Violations: lost, divergent, stuck, errors."""
    pauses: list[float] = field(default_factory=list)
    """Seconds from an event's last kill until all survivors had averaged without the victims."""
    seconds: float = 0.0

    def add(self, other: Score) -> None:
        """Those of ``other``, too."""
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


class Soak:
    """Episodes, framework by framework, until there were enough kills. May be interrupted at any time."""

    def __init__(self, args: argparse.Namespace, report: Report) -> None:
        self.scores = {name: Score() for name in args.frameworks}
        self._args, self._report = args, report
        self._seeds = random.Random(args.seed)
        self._record: Path | None = args.record
        for line in self._record.read_text().splitlines() if self._record is not None and self._record.exists() else ():
            row = json.loads(line)
            if row["framework"] in self.scores:
                counts = {key: Counter(value) if isinstance(value, dict) else value for key, value in row["score"].items()}
                self.scores[row["framework"]].add(Score(**counts))

    @property
    def kills(self) -> int:
        """Of all."""
        return sum(score.kills for score in self.scores.values())

    def run(self) -> None:
        """All that are left."""
        place = Path(tempfile.mkdtemp(prefix="ftlib-kill-soak-"))
        try:
            with Nursery(place) as nursery:
                while self.kills < self._args.kills:
                    name = min(self.scores, key=lambda each: self.scores[each].seconds)
                    self._episode(name, nursery, self._seeds.randrange(1 << 30))
        finally:
            shutil.rmtree(place, ignore_errors=True)

    def _episode(self, name: str, nursery: Nursery, seed: int) -> None:
        chance, began = random.Random(seed), time.monotonic()
        place = Path(tempfile.mkdtemp(prefix=f"ftlib-kills-{name.replace(':', '-')}-{seed}-", dir=self._args.directory))
        faults = chance.choice(FAULTS) if name == "rehearsal" else ""

        def accelerated(cluster: Cluster) -> None:
            if chance.random() < ON:
                cluster.until("the accelerators are on", lambda: all_on(place, cluster.alive()))

        def aim(victim: Worker) -> None:
            if chance.random() < AIMED:
                drawn, deadline = chance.choice(list(Part)[1:]), time.monotonic() + PATIENCE
                while whereabouts(place, victim.pid).part is not drawn and time.monotonic() < deadline:
                    pass

        episode = Episode(
            place,
            seed,
            min(KILLS, self._args.kills - self.kills),
            {"framework": name, "exclude_after": PATIENT},
            nursery,
            accelerated if name == "rehearsal" else None,
            aim,
            self._args.limit,
            samples=SAMPLES,
            habit=["tests.harness.whereabouts:Whereabouts", str(place), name],
            environment={VARIABLE: faults} if faults else {},
        )
        score, stuck, interrupted = Score(), "", False
        try:
            episode.run()
        except Stuck as error:
            stuck = str(error)
        except AssertionError:
            pass  # it is among the violations
        except KeyboardInterrupt:
            interrupted = True
        workers = episode.cluster.workers
        found, complete = ledger_violations(workers, SAMPLES)
        found += [*episode.verdict.violations, *episode.cluster.faults()]
        score.bad.update(map(sort, found))
        score.bad["stuck"] += bool(stuck)
        victims = [worker for worker in workers if worker.killed and worker.code == -signal.SIGKILL]
        score.parts.update(hit(place, victims))
        score.kills, score.steps, score.epochs = len(victims), episode.verdict.steps, len(complete)
        score.joins, score.pauses, score.adopted = episode.joins, episode.pauses, len(adopted(workers))
        score.seconds = time.monotonic() - began
        if stuck or found:
            (place / "verdict").write_text("\n".join([f"{name}, seed {seed}, faults {faults!r}", *found, stuck]))
            print(f"\nVIOLATION with {name} (seed {seed}: {episode.text}; {faults}); logs in {place}", flush=True)
            print("  " + "\n  ".join([*found[:10], stuck[:2_000]]), flush=True)
        else:
            shutil.rmtree(place)
        self.scores[name].add(score)
        if self._record is not None:
            self._record.parent.mkdir(parents=True, exist_ok=True)
            with self._record.open("a") as file:
                file.write(json.dumps({"framework": name, "seed": seed, "faults": faults, "score": vars(score)}) + "\n")
        self._report.say(f"{self.kills} of {self._args.kills} kills; last: {name}, {episode.text}")
        if interrupted:
            raise KeyboardInterrupt


def all_on(place: Path, workers: Iterable[Worker]) -> bool:
    """Whether the newest calls of all went by accelerators."""
    return all(whereabouts(place, worker.pid).accelerated for worker in workers)


def hit(place: Path, victims: Iterable[Worker]) -> Counter[str]:
    """Which parts of a step the kills fell into."""
    found: Counter[str] = Counter()
    for victim in victims:
        part = whereabouts(place, victim.pid).part if len(victim.calls) >= 1 else Part.STARTING
        found[part.name.lower()] += 1
    return found


def adopted(workers: Iterable[Worker]) -> set[int]:
    """Steps that anybody took over from another one."""
    return {
        line["step"]
        for worker in workers
        for before, line in itertools.pairwise(worker.calls)
        if line["adopted"] > before["adopted"]
    }


def sort(text: str) -> str:
    """Of a violation."""
    return next((name for name, words in SORTS.items() if any(word in text for word in words)), "errors")


def tell(scores: dict[str, Score], report: Report) -> None:
    """The table."""
    every = list(scores.values())
    total = Score()
    for score in every:
        total.add(score)
    columns = [*every, total]

    def row(what: str, *texts: object, **more: Any) -> None:
        report.row(what, *map(str, texts), **more)

    row("kills", *(each.kills for each in columns))
    row("steps; joins", *(f"{each.steps}; {each.joins}" for each in columns))
    row("kills a minute", *(f"{60 * each.kills / each.seconds:.0f}" if each.seconds else "" for each in columns))
    for text, names in {
        "hit: outside of calls": ("outside",),
        "... in a call, before the bulk": ("before",),
        "... in the middle of the bulk (by an accelerator)": ("bulk", "accelerated"),
        "... after the bulk": ("after",),
        "... while an earlier loss was dealt with": ("recovering",),
        "... while it joined": ("starting",),
    }.items():
        counts = (tuple(each.parts[name] for name in names) for each in columns)
        row(text, *(f"{sum(count)} ({count[-1]})" if len(count) > 1 else count[0] for count in counts))
    row("steps adopted from who had finished them", *(each.adopted for each in columns))
    row("data epochs, each sample used once", *(each.epochs for each in columns))
    for name in ("lost", "divergent", "stuck", "errors"):
        row(name, *(each.bad[name] for each in columns), bar="0", good=not total.bad[name])
    times = [each.pauses for each in columns]
    row("recovery, median", *(f"{statistics.median(each) * 1e3:.0f} ms" if each else "" for each in times))
    row("... worst", *(f"{max(each) * 1e3:.0f} ms" if each else "" for each in times))


def main() -> int:
    options = parser(__doc__, agent=False, kills=1_000, limit=60.0)
    options.add_argument("--frameworks", nargs="+", choices=FRAMEWORKS, default=list(FRAMEWORKS))
    options.add_argument("--seed", type=int, default=random.randrange(10**6))
    options.add_argument("--directory", type=Path, default=None, help="where to keep the logs of a failing episode")
    options.add_argument("--record", type=Path, default=None, help="file of what was done, to add to")
    args = options.parse_args()
    report = Report(f"Kills at random moments, seed {args.seed}", 1.0 * args.kills, (*args.frameworks, "all"))
    soak = Soak(args, report)
    try:
        soak.run()
    except KeyboardInterrupt:
        print(f"\ninterrupted after {soak.kills} of {args.kills} kills", flush=True)
    tell(soak.scores, report)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
