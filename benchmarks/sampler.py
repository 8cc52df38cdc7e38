"""What ``ElasticSampler`` costs at ten million samples: time a batch, memory, and the size of its state.

    python -m benchmarks.sampler                   # 10 million samples, 4 and 64 members, one epoch each with churn
    python -m benchmarks.sampler --samples 1000000

All members but one are told, not run: the one draws ahead as a loader does, says its share, and applies the shares of all.
Times are this process's own; memory is what it has resident more than before, each in a process of its own.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections import deque
from dataclasses import replace
from pathlib import Path

from benchmarks.report import Report, parser
from ftlib import ElasticSampler
from ftlib.state.codec import snapshot

AHEAD = 8
BATCH = 32
FEW = 8
"""Up to so many members the bar is for a whole call; with more, each of them adds its few microseconds to everybody's."""
BATCH_LIMIT, MEMORY_LIMIT, STATE_LIMIT = 50e-6, 100e6, 1e6


def resident(*, peak: bool = False) -> int:
    """Bytes, now or at most."""
    name = "VmHWM:" if peak else "VmRSS:"
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    return 0


def measure(samples: int, members: int, changes: int) -> dict[str, float]:
    """One member's epoch among ``members``, all of which draw ``AHEAD`` batches ahead, with ``changes`` view changes in it."""
    luck = random.Random(1)
    warm = ElasticSampler(range(1000), batch_size=BATCH)
    next(iter(warm))
    before = resident()
    sampler = ElasticSampler(range(samples), batch_size=BATCH)
    names = [f"member-{index:04}" for index in range(members)]
    own = names[0]
    sampler.bind(own)
    sampler.found(names)
    loop = iter(sampler)
    waiting: deque[list[int]] = deque(next(loop) for _ in range(AHEAD))
    calls = samples // (BATCH * members)
    due = set(luck.sample(range(1, calls - 1), changes))
    own_time = drawn = 0.0
    largest, view, reports = 0, names, {}
    for step in range(1, calls + 1):
        began = time.process_time()
        waiting.append(next(loop))
        waiting.popleft()
        share = sampler.begin(1)
        own_time += time.process_time() - began
        if not share.samples:
            break
        shares = {name: replace(share, ahead=luck.randrange(AHEAD)) if step in due else share for name in view}
        shares[own] = share
        began = time.process_time()
        sampler.finished(shares, step)
        own_time += time.process_time() - began
        drawn += 1
        if step in due:
            # One leaves and another comes; all report what they had drawn.
            report = sampler.report()
            reports = dict.fromkeys(view, report)
            gone = luck.choice(view[1:])
            view = [name for name in view if name != gone]
            sampler.activated(view, reports)
            view = [*view, f"member-{members + step:04}"]
    largest = len(snapshot(sampler.state_dict()))
    began = time.process_time()
    sampler.state_dict()
    saving = time.process_time() - began
    return {
        "batch": own_time / drawn,
        "batches": drawn,
        "memory": resident() - before,
        "peak": resident(peak=True) - before,
        "state": largest,
        "saving": saving,
    }


def main() -> int:
    options = parser(__doc__, agent=False)
    options.add_argument("--samples", type=int, default=10_000_000)
    options.add_argument("--changes", type=int, nargs="+", default=[0, 200, 1000])
    options.add_argument("--members", type=int, nargs="+", default=[4, 64])
    options.add_argument("--measure", type=int, nargs=2, metavar=("MEMBERS", "CHANGES"))
    args = options.parse_args()
    if args.measure:
        print(json.dumps(measure(args.samples, *args.measure)))
        return 0
    report = Report(f"ElasticSampler at {args.samples:,} samples, batches of {BATCH}", 25 * len(args.changes))
    for members in args.members:
        for changes in args.changes:
            report.say(f"{members} members, {changes} view changes")
            command = [sys.executable, "-m", "benchmarks.sampler", "--samples", str(args.samples)]
            command += ["--measure", str(members), str(changes)]
            done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=600)
            figures = json.loads(done.stdout)
            what = f"{members} members, {changes} view changes: "
            batch, memory, state = figures["batch"], figures["peak"], figures["state"]
            text = f"{batch * 1e6:.1f} us, {batch / members * 1e6:.1f} us a batch of anybody's"
            if members <= FEW:
                report.row(f"{what}own batch, draw and call", text, bar="<= 50 us", good=batch <= BATCH_LIMIT)
            else:
                report.row(f"{what}own batch, draw and call", text)
            text = f"{memory / 1e6:.0f} MB, {figures['memory'] / 1e6:.0f} at the end"
            report.row(f"{what}memory, at most", text, bar="<= 100 MB", good=memory <= MEMORY_LIMIT)
            text = f"{state / 1e3:.1f} kB in {figures['saving'] * 1e3:.1f} ms"
            report.row(f"{what}state, ledger included", text, bar="<= 1 MB", good=state <= STATE_LIMIT)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
