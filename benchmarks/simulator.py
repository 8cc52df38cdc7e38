"""How fast the simulated world is, all checkers on.

    python -m benchmarks.simulator              # 4 to 1000 idle members, 1000 for 60 simulated seconds; random histories
    python -m benchmarks.simulator --quick      # 10 seconds for the 1000

An event is a message delivered or a timer fired. Rates are per second of this process's own time (the machine may be busy with
other things), wall time beside it.
"""

from __future__ import annotations

import argparse
import sys
import time

from benchmarks.soak import chunk
from consensus.simulation import World, judged

SIZES = (4, 16, 64, 200, 500, 1000)


def idle(size: int, seconds: float) -> tuple[World, float, float]:
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seeds", type=int, default=200)
    args = parser.parse_args()
    for size in SIZES[:-1]:
        idle(size, max(1.0, 400.0 / size))
    _, own, wall = idle(SIZES[-1], 10.0 if args.quick else 60.0)
    tally = chunk(0, args.seeds, "all")
    each, speed = tally.seconds / tally.seeds, tally.events / tally.seconds
    print(f"random histories: {1000 * each:.1f} ms each, {speed:,.0f} events/s, failed: {len(tally.bad)}")
    print(f"1000 members: {own:.0f} s of own time, {wall:.0f} s wall (bar: 120 for 60 simulated seconds)")
    return int(bool(tally.bad))


if __name__ == "__main__":
    sys.exit(main())
