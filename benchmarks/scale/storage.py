"""What shared-storage consensus takes, with a directory, a Redis server and an etcd server of its own.

    python -m benchmarks storage                                    # 25 minutes
    python -m benchmarks storage --only kill stop --store redis     # parts: kill stop start away idle kills

* kill: SIGKILL of 1 of 4 workers to the next finished average of all others, beside gossip that decides by majority.
* stop: SIGSTOP of 1 of 4, with leases of 2 s; nobody supervises.
* start: 16 members in 4 processes, started at once without introducers, to the last one's view of all.
* away: the store is gone for 30 s in training, and in the middle of view changes (how: see ``depot``).
* idle: operations of the store a second and member while nothing happens; a listing of n counts as n.
* kills: kills at random moments (see ``kills``) with a server behind a line that is slow, breaks and loses answers.

Directories are below TMPDIR (fsync costs what its disk takes), the one of ``away`` is a tmpfs and needs root.
"""

from __future__ import annotations

import contextlib
import functools
import random
import signal
import statistics
import time
from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from benchmarks.failures.faults import Watch, all_after, crew, newest_epoch, pause, put_away, reason, refill
from benchmarks.failures.kills import rampage
from benchmarks.failures.recovery import alternate, block
from benchmarks.report import Report, chosen, parser, spread
from benchmarks.scale.depot import KINDS, Depot, depot, missing
from benchmarks.scale.sixty_four import Town
from tests.harness.cluster import Cluster
from tests.harness.verdict import Verdict

WORKERS = 4
CALM = 5.0
"""Seconds of training before it, to compare with."""
SHORT = 6.0
"""Seconds of all outages but the first in a view change."""
MIDDLE = 0.03
"""A view change takes about so many seconds from the kill to the record: within these the store goes."""
LOSS_LIMIT = 60.0


class Loss:
    """What one cluster goes through."""

    def __init__(self, place: Depot, cluster: Cluster, chance: random.Random) -> None:
        self._place = place
        self._cluster = cluster
        self._chance = chance
        self.before: list[float] = []
        self.meanwhile: list[float] = []
        """Seconds of every step, before and while the store was away."""
        self.after: list[float] = []
        """Seconds from the store's return to the end of each change."""
        self.through = 0
        """Changes that were decided before the store went."""

    def in_training(self, seconds: float, report: Report) -> None:
        """Away for so long while nothing happens; then somebody joins."""
        calm = Watch(self._cluster, refilling=False)
        calm.train(CALM, report)
        self._place.lose()
        away = Watch(self._cluster, refilling=False)
        away.train(seconds, report)
        self._place.restore()
        self.before, self.meanwhile = calm.steps, away.steps
        self._cluster.join()
        self._cluster.training(WORKERS + 1, LOSS_LIMIT)

    def in_a_change(self, seconds: float, *, first: bool) -> None:
        """Somebody is killed, the store away: ``first``, or a moment later. It comes back after so long."""
        cluster, chance = self._cluster, self._chance
        time.sleep(0.3 + 0.2 * chance.random())  # at whatever moment of a call and of a probe round
        cluster.read()
        workers = cluster.alive()
        victim = chance.choice(workers)
        survivors = [worker for worker in workers if worker is not victim]
        epoch = newest_epoch(workers)
        if first:
            self._place.lose()
            time.sleep(0.2)  # what was on its way to the store has come back, or never will
            fault = victim.kill()
        else:
            fault = victim.kill()
            time.sleep(MIDDLE * chance.random())  # the change has come so far
            self._place.lose()
        time.sleep(seconds)  # the outage that was ordered
        done = functools.partial(all_after, survivors, fault, epoch)
        cluster.read()
        through = done()
        self._place.restore()
        back = time.monotonic()
        cluster.until("the survivors average without the victim", done, LOSS_LIMIT)
        if through:
            self.through += 1
        else:
            self.after.append(pause(survivors, fault, epoch) - (back - fault))
        put_away(cluster, victim)

    @property
    def lost(self) -> list[str]:
        """Members that ended though nobody ended them, and why."""
        self._cluster.read()
        ended = [worker for worker in self._cluster.workers if worker.code is not None and not worker.killed]
        return [f"{worker.task.name}: {reason(worker)}" for worker in ended]


def outage(kind: str, seconds: float, changes: int, settings: Mapping[str, Any], report: Report, seed: int) -> None:
    """Rows for one kind of store: away for ``seconds`` in training, and for ``changes`` view changes. Raises Stuck."""
    verdict, chance = Verdict(), random.Random(seed)
    try:
        with (
            depot(kind, mounted=True) as place,
            crew("storage", WORKERS, sizes=[100_000], settings={**settings, "storage": place.url}) as cluster,
        ):
            loss = Loss(place, cluster, chance)
            loss.in_training(seconds, report)
            for number in range(changes):
                report.say(f"{kind}: away in view change {number + 1} of {changes}")
                loss.in_a_change(SHORT if number else seconds, first=number % 2 == 0)
                refill(cluster, WORKERS)
            lost = loss.lost
            verdict.check(cluster.workers)
    except PermissionError as error:
        report.row(f"{kind}: away", f"not measured: {error}")
        return
    before, meanwhile = (statistics.median(steps) * 1e3 for steps in (loss.before, loss.meanwhile))
    longest = max(loss.meanwhile) * 1e3
    text = f"{before:.1f} -> {meanwhile:.1f} ms, longest {longest:.0f} ms; {len(loss.meanwhile) // WORKERS} steps"
    report.row(f"{kind}: away for {seconds:.0f} s in training, a step", text)
    decided = f"; {loss.through} were decided before it went" if loss.through else ""
    report.row(f"{kind}: away in {changes} view changes, done after its return", f"{spread(loss.after, unit='s')}{decided}")
    report.row(f"{kind}: members lost", f"{len(lost)} {'; '.join(lost[:2])[:160]}", bar="0", good=not lost)
    report.verdict(verdict, f"{kind}: ")


PARTS = ("kill", "stop", "start", "away", "idle", "kills")
KILL_BAR, STOP_BAR, START_BAR = 0.120, 3.5, 3.0
SIZES = (1, 2, 4, 16)
"""Members that idle."""
CROWD = 16
TURN = 5
"""Kills of one turn."""
SETTLED = 3.0
"""Seconds after the last view until members idle."""
SHARED: dict[str, Any] = {"consensus": "shared_storage"}


def kill(kinds: list[str], args: Namespace, report: Report) -> None:
    """All stores in turns, and gossip."""
    report.say("SIGKILL of 1 of 4")
    with contextlib.ExitStack() as stack:
        urls = {kind: stack.enter_context(depot(kind)).url for kind in kinds}
        variants: dict[str, dict[str, Any]] = {"gossip, majority": chosen(args.agent)}
        for kind, url in urls.items():
            variants[kind] = chosen(args.agent, **SHARED, storage=url)
        for kind, url in urls.items():
            variants[f"gossip, {kind} decides"] = chosen(args.agent, policy="storage", storage=url)
        turn = min(TURN, args.repetitions)
        rounds = max(1, round(args.repetitions / turn))
        times = alternate(variants, rounds, turn, random.Random(args.seed), "any", elements=args.elements)
    usual = statistics.median(times["gossip, majority"])
    for name, found in times.items():
        what, ratio = f"{name}: SIGKILL of 1 of 4, {len(found)} times", statistics.median(found) / usual
        text = spread(found) + ("" if name == "gossip, majority" else f", {ratio:.2f} of gossip's")
        good = statistics.median(found) <= KILL_BAR if name in kinds else None
        report.row(what, text, bar="" if good is None else f"<= {KILL_BAR * 1e3:g} ms", good=good)


def stop(kind: str, args: Namespace, report: Report) -> None:
    """One store."""
    report.say(f"{kind}: SIGSTOP of 1 of 4")
    with depot(kind) as place:
        settings = chosen(args.agent, **SHARED, storage=place.url, lease=2.0)
        repetitions = max(2, args.repetitions // 4)
        found = block("any", signal.SIGSTOP, repetitions, random.Random(args.seed), elements=args.elements, settings=settings)
    what = f"{kind}: SIGSTOP of 1 of 4, lease 2 s, {repetitions} times"
    report.bar(what, found.totals, STOP_BAR, worst=STOP_BAR)


def start(kind: str, args: Namespace, report: Report) -> None:
    """One store: all know that they are so many, or one founds and lets the others in."""
    for size, how in ((CROWD, "initial_size=16"), (1, "the first founds")):
        whole, begun = [], []
        for number in range(args.rounds):
            report.say(f"{kind}: {CROWD} at once, {how}, {number + 1} of {args.rounds}")
            with depot(kind) as place, Town(CROWD, **SHARED, storage=place.url, initial_size=size) as town:
                whole.append(town.fill_at_once())
                begun.append(town.started)
                town.check(CROWD)
        what = f"{kind}: {CROWD} started at once, {how}; all bound after {max(begun):.2f} s"
        report.bar(what, whole, START_BAR)


def idle(kind: str, args: Namespace, report: Report) -> None:
    """One store."""
    for size in SIZES:
        report.say(f"{kind}: {size} members that idle")
        with depot(kind) as place, Town(size, **SHARED, storage=place.url, initial_size=size) as town:
            town.fill_at_once()
            time.sleep(SETTLED)
            town.look(town.all_houses)
            before, began = sorted(town.stored), time.monotonic()
            time.sleep(args.idle)
            town.look(town.all_houses)
            seconds = time.monotonic() - began
            town.check(size)
            mean = (sum(town.stored) - sum(before)) / seconds / size
        most = 3 + size / 2
        report.row(f"{kind}: operations a second, one of {size} idle", f"{mean:.2f}", bar=f"<= {most:g}", good=mean <= most)


def kills(kind: str, args: Namespace, report: Report) -> None:
    """One store."""
    report.say("")
    with depot(kind, trouble=args.seed) as place:
        settings = chosen(args.agent, **SHARED, storage=place.url, storage_timeout=1.0)
        tally = rampage(args.kills, args.seed, settings=settings)
        done = "" if place.line is None else ", ".join(f"{count} {what}" for what, count in sorted(place.line.done.items()))
    what = f"{kind}: {tally.kills} kills; {tally.pause_text}"
    text = f"{tally.bad} bad episodes in {tally.steps} steps, {tally.joins} joins"
    report.row(what, text, bar="0", good=not tally.bad)
    report.row(f"{kind}: what its line did to it", done or "nothing: a plain directory")


def attempt(part: str, kind: str, kinds: list[str], args: Namespace, report: Report) -> None:
    """Rows of one part; where it fails the others are measured all the same."""
    try:
        if part == "kill":
            kill(kinds, args, report)
        elif part == "away":
            outage(kind, args.seconds, args.changes, chosen(args.agent, **SHARED), report, args.seed)
        else:
            {"stop": stop, "start": start, "idle": idle, "kills": kills}[part](kind, args, report)
    except AssertionError as error:  # Stuck, or a list that is not whole
        print(error, flush=True)
        report.row(f"{kind}: {part}", str(error).splitlines()[0][:160], bar="ends", good=False)


def main() -> int:
    options = parser(__doc__, elements=1_000_000, seed=1)
    options.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, metavar="PART")
    options.add_argument("--store", nargs="+", choices=KINDS, default=KINDS, metavar="STORE")
    options.add_argument("--repetitions", type=int, default=20, help="of kill; a quarter of them of stop")
    options.add_argument("--rounds", type=int, default=3, help="of start")
    options.add_argument("--seconds", type=float, default=30.0, help="for which the store is away")
    options.add_argument("--changes", type=int, default=4, help="view changes in which it is away")
    options.add_argument("--idle", type=float, default=12.0, help="seconds of idling")
    options.add_argument("--kills", type=int, default=100, help="of each store")
    args = options.parse_args()
    kinds = [kind for kind in args.store if not missing(kind)]
    costs = {
        "kill": (1 + 2 * len(kinds)) * args.repetitions * 3.5,
        "stop": len(kinds) * (6 + args.repetitions),
        "start": len(kinds) * 2 * args.rounds * 6,
        "away": len(kinds) * (20 + 2 * args.seconds + 10 * args.changes),
        "idle": len(kinds) * len(SIZES) * (args.idle + 8),
        "kills": len(kinds) * args.kills * 1.2,
    }
    report = Report(f"shared storage: {', '.join(kinds)}", sum(costs[part] for part in args.only))
    for kind in (kind for kind in args.store if kind not in kinds):
        report.row(kind, f"not installed: {missing(kind)}")
    try:
        for part in (part for part in PARTS if part in args.only):
            for kind in kinds if part != "kill" else [", ".join(kinds)]:
                attempt(part, kind, kinds, args, report)
    except KeyboardInterrupt:
        report.row("interrupted", "the rest is missing", good=False)
    return report.finish()
