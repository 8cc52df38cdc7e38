"""Random histories by the ten thousand: every invariant checked, every history healed and judged.

    python -m benchmarks soak --seeds 50000 -j 2                 # resumes where it was stopped; --fresh starts over
    python -m benchmarks soak --seeds 2000 --faults all,-pause
    python -m benchmarks soak --seed 2050                        # one history: its script, and what became of it
    python -m benchmarks soak --seed 2050 --shrink               # the shortest that still fails alike
    python -m benchmarks soak --train --seeds 10000              # with processes that train: the promises about steps, too
    python -m benchmarks soak --policy storage --seeds 10000     # with a shared store that decides, and fails
    python -m benchmarks soak --large 2                          # two histories of 1000 members (minutes each)

The exit status is 1 if anything failed. A failing history is the same in every run: seed and profile say all.
"""

from __future__ import annotations

import argparse
import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.report import parser
from consensus.simulation import FaultProfile, Result, Scenario, World, draw, judged, play
from consensus.simulation.script.scenario import POLICIES
from consensus.simulation.script.shrink import shrink

CHUNK = 50
LARGE = 1000
LARGE_FAULTS = 3


@dataclass
class Tally:
    """What so many histories came to. ``bad``: (seed, what happened)."""

    seeds: int = 0
    events: int = 0
    seconds: float = 0.0
    simulated: float = 0.0
    slowest: float = 0.0
    outcomes: Counter[str] = field(default_factory=Counter)
    bad: list[tuple[int, str]] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        self.seeds += other.seeds
        self.events += other.events
        self.seconds += other.seconds
        self.simulated += other.simulated
        self.slowest = max(self.slowest, other.slowest)
        self.outcomes += other.outcomes
        self.bad += other.bad

    def as_dict(self) -> dict[str, object]:
        return {**self.__dict__, "outcomes": dict(self.outcomes)}

    @classmethod
    def of(cls, values: dict[str, object]) -> Tally:
        tally = cls(**values)  # type: ignore[arg-type]
        tally.outcomes = Counter(tally.outcomes)
        tally.bad = [(seed, text) for seed, text in tally.bad]
        return tally


def player(*, train: bool) -> Callable[[Scenario], Result]:
    """What plays a history."""
    if not train:
        return play
    from tests.simulation.data_plane import play as play_training  # imports torch

    logging.getLogger("ftlib").setLevel(logging.CRITICAL)
    return play_training


def chunk(
    first: int,
    count: int,
    faults: str,
    size: int | None = None,
    events: int | None = None,
    *,
    train: bool = False,
    policy: str = "",
) -> Tally:
    """``count`` histories from seed ``first`` on, in this process."""
    tally, profile, tell = Tally(), FaultProfile.parse(faults), player(train=train)
    for seed in range(first, first + count):
        began = time.process_time()  # others may use the machine, too
        result = tell(draw(seed, profile, size, events, policy=policy))
        took = time.process_time() - began
        tally.add(Tally(1, result.world.events, took, result.world.now - 100.0, took, Counter([result.kind])))
        if not result.good:
            tally.bad.append((seed, str(result).splitlines()[0][:300]))
    return tally


def done_before(path: Path, faults: str) -> dict[int, Tally]:
    """Chunks that an earlier run finished, by first seed."""
    found = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        row = json.loads(line)
        if row["faults"] == faults:
            found[row["first"]] = Tally.of(row["tally"])
    return found


def run(args: argparse.Namespace) -> int:
    faults = str(FaultProfile.parse(args.faults))
    kind = f"training, {faults}" if args.train else faults
    kind = f"{args.policy}, {kind}" if args.policy else kind
    path: Path = args.record
    if args.fresh:
        path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    total, known = Tally(), done_before(path, kind)
    todo = []
    for first in range(args.first, args.first + args.seeds, CHUNK):
        if first in known:
            total.add(known[first])
        else:
            todo.append(first)
    if known:
        print(f"{total.seeds} histories were played before: {path}")
    began, shown = time.perf_counter(), 0.0
    with ProcessPoolExecutor(args.jobs) as pool, path.open("a") as record:
        for first, tally in finished(pool, todo, faults, args.jobs, train=args.train, policy=args.policy):
            total.add(tally)
            record.write(json.dumps({"first": first, "faults": kind, "tally": tally.as_dict()}) + "\n")
            record.flush()
            for seed, text in tally.bad:
                print(
                    f"\nseed {seed}: {text}\n  python -m benchmarks soak --seed {seed} --faults {faults} --shrink"
                    + " --train" * args.train
                    + f" --policy {args.policy}" * bool(args.policy),
                    flush=True,
                )
            now = time.perf_counter() - began
            if now - shown > args.every or first == todo[-1]:
                shown = now
                print(f"{total.seeds} of {args.seeds}, {len(total.bad)} failed, {now:.0f} s", end="\r", flush=True)
    tell(total)
    return int(bool(total.bad))


def finished(
    pool: ProcessPoolExecutor, todo: list[int], faults: str, jobs: int, *, train: bool, policy: str
) -> Iterator[tuple[int, Tally]]:
    """Chunks in order; only a few are handed out at a time, so that an interrupt loses little."""
    waiting = []
    for first in [*todo, None]:
        if first is not None:
            waiting.append((first, pool.submit(chunk, first, CHUNK, faults, train=train, policy=policy)))
        while waiting and (first is None or len(waiting) > 2 * jobs):
            start, future = waiting.pop(0)
            yield start, future.result()


def tell(total: Tally) -> None:
    each = 1000 * total.seconds / max(1, total.seeds)
    speed = total.events / max(1e-9, total.seconds)
    print(f"\n{total.seeds} histories, {total.simulated / 3600:.1f} simulated hours, {total.events} events")
    print(f"{each:.1f} ms a history (slowest {total.slowest:.2f} s), {speed:.0f} events/s and process, checkers on")
    print(", ".join(f"{kind}: {count}" for kind, count in total.outcomes.most_common()))
    print(f"failed: {len(total.bad)} {[seed for seed, _ in total.bad] or ''}")


def one(args: argparse.Namespace) -> int:
    scenario = draw(args.seed, FaultProfile.parse(args.faults), args.size, policy=args.policy)
    tell = player(train=args.train)
    result = tell(scenario)
    if args.shrink and not result.good:
        scenario = shrink(scenario, tell)
        result = tell(scenario)
    print(scenario, result, f"digest {result.world.digest}", sep="\n")
    for host in result.world.hosts.values():
        print(" ", host)
    return int(not result.good)


def large(args: argparse.Namespace) -> int:
    total = Tally()
    for seed in range(args.first, args.first + args.large):
        tally = chunk(seed, 1, args.faults, args.size or LARGE, LARGE_FAULTS, policy=args.policy)
        print(
            f"seed {seed}: {tally.seconds:.0f} s, {tally.events} events, {dict(tally.outcomes)} {tally.bad or ''}", flush=True
        )
        total.add(tally)
    tell(total)
    return int(bool(total.bad))


def main() -> int:
    options = parser(__doc__, agent=False, seeds=50_000, first=0)
    options.add_argument("-j", "--jobs", type=int, default=2)
    options.add_argument("--faults", default="all", help="names and weights: see consensus/simulation/script/faults.py")
    options.add_argument("--record", type=Path, default=Path("out/soak.jsonl"), help="finished chunks, for resuming")
    options.add_argument("--fresh", action="store_true")
    options.add_argument("--every", type=float, default=5.0, help="seconds between two lines of progress")
    options.add_argument("--seed", type=int, help="only this one")
    options.add_argument("--size", type=int, help="founders, instead of a random number")
    options.add_argument("--shrink", action="store_true")
    options.add_argument("--policy", default="", choices=POLICIES, help="storage: a shared store decides")
    options.add_argument("--train", action="store_true", help="with processes that train")
    options.add_argument("--large", type=int, default=0, help="so many histories of 1000 members instead")
    args = options.parse_args()
    if args.seed is not None:
        return one(args)
    return large(args) if args.large else run(args)


IDLE_SIZES = (4, 16, 64, 200, 500, 1000)


def resting(size: int, seconds: float) -> tuple[World, float, float]:
    """``size`` members that only watch each other; (world, own time, wall time)."""
    world = judged(World(1))
    began = time.process_time()
    world.cluster(size)
    founding = time.process_time() - began
    before, wall, own = world.events, time.perf_counter(), time.process_time()
    world.run(seconds)
    own, wall = time.process_time() - own, time.perf_counter() - wall
    events = world.events - before
    print(
        f"{size:5} members: founding {founding:6.2f} s; {seconds:5.1f} simulated s in {own:6.2f} s ({wall:.2f} wall), "
        f"{events} events, {events / own:,.0f} events/s, {world.messages} messages"
    )
    return world, own, wall


def simulator() -> int:
    """How fast the simulated world is, all checkers on.

        python -m benchmarks simulator              # 4 to 1000 idle members, 1000 for 60 simulated seconds; random histories
        python -m benchmarks simulator --quick      # 10 seconds for the 1000

    An event is a message delivered or a timer fired. Rates are per second of this process's own time (the machine may be busy
    with other things), wall time beside it.
    """
    options = parser(simulator.__doc__, agent=False, seeds=200)
    options.add_argument("--quick", action="store_true")
    args = options.parse_args()
    for size in IDLE_SIZES[:-1]:
        resting(size, max(1.0, 400.0 / size))
    _, own, wall = resting(IDLE_SIZES[-1], 10.0 if args.quick else 60.0)
    tally = chunk(0, args.seeds, "all")
    each, speed = tally.seconds / tally.seeds, tally.events / tally.seconds
    print(f"random histories: {1000 * each:.1f} ms each, {speed:,.0f} events/s, failed: {len(tally.bad)}")
    print(f"1000 members: {own:.0f} s of own time, {wall:.0f} s wall (bar: 120 for 60 simulated seconds)")
    return int(bool(tally.bad))
