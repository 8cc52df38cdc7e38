"""Detection on a busy machine: nobody is excluded who lives, and who dies or stops is noticed all the same.

    python -m benchmarks.busy                         # 15 minutes, and about 3 more for the detection
    python -m benchmarks.busy --seconds 20 --repeats 1

4 workers average 1 M parameters beside 4 busy loops. About every 10 s one of them, drawn at random, keeps the GIL for 1.5 s at
a random moment of its training loop, in turns asleep and spinning. Excluded: workers that ended though nobody ended them, or
views with fewer members than before. Then, beside the same loops but without such holds (a survivor that holds its GIL is late
for the next average whatever was detected), SIGKILL and SIGSTOP of a random worker: time from the signal to the end of the
first average without the victim, the latest of the survivors. Bars: 0 excluded; 0.5 s and 4 s, each.
"""

from __future__ import annotations

import random
import signal
import sys

from benchmarks.faults import Watch, crew, put_away, refill, strike
from benchmarks.machine import busy_loops
from benchmarks.report import Report, chosen, parser
from tests.processes.cluster import Cluster, Stuck
from tests.processes.verdict import Verdict

BARS = {signal.SIGKILL: 0.5, signal.SIGSTOP: 4.0}


def detect(
    cluster: Cluster, number: signal.Signals, repeats: int, chance: random.Random, report: Report, *, whole: bool
) -> list[float]:
    """Seconds of each fault that was noticed; the cluster is whole again after each."""
    size, times = len(cluster.alive()), []
    for repeat in range(repeats):
        report.say(f"{number.name} {repeat + 1} of {repeats}")
        try:
            victim, seconds = strike(cluster, number, chance, whole=whole)
        except Stuck as error:
            print(f"{number.name}: {str(error).splitlines()[0]}", flush=True)
            times.append(float("inf"))
            for worker in cluster.workers:
                if worker.killed and worker.code is None:
                    put_away(cluster, worker)
        else:
            times.append(seconds)
            put_away(cluster, victim)
        refill(cluster, size)
    return times


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--seconds", type=float, default=900.0, help="of training, for false exclusions")
    options.add_argument("--repeats", type=int, default=10, help="of each fault")
    options.add_argument("--workers", type=int, default=4)
    options.add_argument("--loops", type=int, default=4, help="busy loops beside them")
    options.add_argument("--elements", type=int, default=1_000_000)
    options.add_argument("--hold", type=float, default=1.5, help="seconds for which the GIL is held")
    options.add_argument("--every", type=float, default=10.0, help="seconds between holds, on average")
    options.add_argument("--whole", action="store_true", help="SIGSTOP the victim's agent too, where that is a process")
    options.add_argument("--seed", type=int, default=1)
    args = options.parse_args()
    chance = random.Random(args.seed)
    title = f"{args.workers} workers of {args.elements:,} parameters beside {args.loops} busy loops"
    report = Report(title, 15 + args.seconds + args.repeats * 14)
    verdict = Verdict()
    habit = ["benchmarks.habits:HoldGil", args.hold]
    with (
        busy_loops(args.loops),
        crew("busy", args.workers, sizes=[args.elements], habit=habit, settings=chosen(args.agent)) as cluster,
    ):
        watch = Watch(cluster)
        watch.train(args.seconds, report, holds=args.every, chance=chance)
        held = [event for worker in cluster.workers for event in worker.events if event.get("event") == "held"]
        longest = max((event["t"] - event["began"] for event in held), default=0.0)
        report.row("training, steps", watch.step_text)
        report.row("holds of the GIL", f"{len(held)}; longest {longest:.2f} s")
        report.row(f"false exclusions in {args.seconds:.0f} s", watch.text, bar="0", good=not watch.exclusions)
        detection = Watch(cluster)
        for number, bar in BARS.items():
            times = detect(cluster, number, args.repeats, chance, report, whole=args.whole)
            report.bar(f"{number.name} to the survivors' next average", times, bar, worst=bar)
        detection.look()
        report.row("others excluded meanwhile", str(len(detection.ended)), bar="0", good=not detection.ended)
        verdict.check(cluster.workers)
    report.verdict(verdict)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
