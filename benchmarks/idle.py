"""What an agent costs while nobody trains: CPU time of each of 8 members.

    python -m benchmarks.idle                         # about a minute
    python -m benchmarks.idle --seconds 5

Each worker is an interpreter started anew that calls ``FTLib.init`` and then waits. The CPU time (user and system) is that of
the agent's process where it has one, of the whole worker otherwise. Bar: 0.5 % of a core, the median of the members.
"""

from __future__ import annotations

import statistics
import sys
import time

from benchmarks.job import Job
from benchmarks.machine import cpu_seconds, footprint
from benchmarks.report import Report, chosen, parser

BAR = 0.005


def share(values: list[float]) -> str:
    """``median [least - most]`` of a core."""
    return f"{statistics.median(values):.3%} [{min(values):.3%} - {max(values):.3%}]"


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--members", type=int, default=8)
    options.add_argument("--seconds", type=float, default=30.0)
    options.add_argument("--settle", type=float, default=5.0, help="seconds before measuring")
    args = options.parse_args()
    report = Report(f"{args.members} members that do nothing", 4 * args.members + args.settle + args.seconds)
    with Job(["-m", "benchmarks.fresh", "rest"], args.members, chosen(args.agent)) as job:
        job.until("all have started", lambda: len(job.all_lines()) == args.members, 60.0 + 8.0 * args.members)
        time.sleep(args.settle)  # the costs of starting and of the last join are none of idling
        pids = [process.pid for process in job.processes]
        before, began = [cpu_seconds(pid) for pid in pids], time.monotonic()
        time.sleep(args.seconds)  # the time that is measured
        after, seconds = [cpu_seconds(pid) for pid in pids], time.monotonic() - began
        held = [footprint(pid) for pid in pids]
    workers = [(late[0] - early[0]) / seconds for early, late in zip(before, after, strict=True)]
    agents = [(late[1] - early[1]) / seconds for early, late in zip(before, after, strict=True)]
    apart = all(found.processes > 1 for found in held)
    measured = agents if apart else workers
    what = "agent, a process of its own" if apart else "worker, the agent a thread in it"
    report.row(f"{what}: share of a core", share(measured), bar=f"<= {BAR:.1%}", good=statistics.median(measured) <= BAR)
    if apart:
        report.row("its worker", share(workers))
    report.row("resident memory of worker and agent", f"{statistics.median(found.rss for found in held):.0f} MB")
    report.row("threads of worker and agent", f"{statistics.median(found.threads for found in held):.0f}")
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
