"""What shared-storage consensus takes, with a directory, a Redis server and an etcd server of its own.

    python -m benchmarks.storage                                    # 25 minutes
    python -m benchmarks.storage --only kill stop --store redis     # parts: kill stop start away idle kills

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
import random
import signal
import statistics
import sys
import time
from argparse import Namespace
from typing import Any

from benchmarks.depot import KINDS, depot, missing
from benchmarks.kills import rampage
from benchmarks.outage import outage
from benchmarks.recovery import alternate, block
from benchmarks.report import Report, chosen, parser, spread
from benchmarks.sixty_four import Town

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
    options = parser(__doc__)
    options.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, metavar="PART")
    options.add_argument("--store", nargs="+", choices=KINDS, default=KINDS, metavar="STORE")
    options.add_argument("--repetitions", type=int, default=20, help="of kill; a quarter of them of stop")
    options.add_argument("--rounds", type=int, default=3, help="of start")
    options.add_argument("--seconds", type=float, default=30.0, help="for which the store is away")
    options.add_argument("--changes", type=int, default=4, help="view changes in which it is away")
    options.add_argument("--idle", type=float, default=12.0, help="seconds of idling")
    options.add_argument("--kills", type=int, default=100, help="of each store")
    options.add_argument("--elements", type=int, default=1_000_000)
    options.add_argument("--seed", type=int, default=1)
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


if __name__ == "__main__":
    sys.exit(main())
