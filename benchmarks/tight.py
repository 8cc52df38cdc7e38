"""``exclude_after=0.3``: how soon a stopped worker is out, and whether anybody else ever is.

    python -m benchmarks.tight                        # 10 minutes, and one more for the stops
    python -m benchmarks.tight --seconds 10 --repeats 2

4 workers average 1 M parameters in a tight loop and nothing else runs. SIGSTOP of a random worker: time from the signal to the
end of the first average without it, the latest of the survivors; bar 0.7 s, each. Then training with nobody hurt: 0 excluded.
"""

from __future__ import annotations

import random
import signal
import sys

from benchmarks.busy import detect
from benchmarks.faults import Watch, crew
from benchmarks.report import Report, chosen, parser
from tests.processes.verdict import Verdict

BAR = 0.7


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--seconds", type=float, default=600.0, help="of training, for false exclusions")
    options.add_argument("--repeats", type=int, default=10, help="stops")
    options.add_argument("--exclude-after", type=float, default=0.3)
    options.add_argument("--workers", type=int, default=4)
    options.add_argument("--elements", type=int, default=1_000_000)
    options.add_argument("--whole", action="store_true", help="SIGSTOP the victim's agent too, where that is a process")
    options.add_argument("--seed", type=int, default=1)
    args = options.parse_args()
    title = f"exclude_after={args.exclude_after:g}, {args.workers} workers of {args.elements:,} parameters"
    report = Report(title, 10 + args.seconds + 4 * args.repeats)
    verdict = Verdict()
    settings = chosen(args.agent, exclude_after=args.exclude_after)
    with crew("tight", args.workers, sizes=[args.elements], settings=settings) as cluster:
        stops = Watch(cluster)
        times = detect(cluster, signal.SIGSTOP, args.repeats, random.Random(args.seed), report, whole=args.whole)
        report.bar("SIGSTOP to the survivors' next average", times, BAR, worst=BAR)
        stops.look()
        report.row("others excluded meanwhile", str(len(stops.ended)), bar="0", good=not stops.ended)
        watch = Watch(cluster)
        watch.train(args.seconds, report)
        report.row("training, steps", watch.step_text)
        report.row(f"false exclusions in {args.seconds:.0f} s", watch.text, bar="0", good=not watch.exclusions)
        verdict.check(cluster.workers)
    report.verdict(verdict)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
