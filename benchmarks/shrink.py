"""4 -> 1 by successive kills and back to 4 by joins, training all the while, again and again.

    python -m benchmarks.shrink --rounds 20

Victims are drawn at random, the most senior among them; no kill waits for more than the survivors' next average. Bar: every
round works, no step is lost and all results are alike.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.processes.cluster import Cluster, load
from tests.processes.shrinking import shrink_and_grow
from tests.processes.verdict import Verdict


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    chance = random.Random(args.seed)
    directory = Path(tempfile.mkdtemp(prefix="ftlib-shrink-"))
    verdict = Verdict()
    began = time.monotonic()
    print(f"{args.workers} -> 1 -> {args.workers}, {args.rounds} rounds, seed {args.seed}; {load()}")
    with Cluster(directory, sizes=[20_000, 300]) as cluster:
        cluster.found(args.workers)
        cluster.training(args.workers)
        for number in range(1, args.rounds + 1):
            try:
                shrink_and_grow(cluster, args.workers, chance)
                verdict.check(cluster.workers)
                faults = [*verdict.violations, *cluster.faults()]
                assert not faults, "\n  ".join(faults[:10])
            except AssertionError as error:
                print(f"round {number} FAILED, logs in {directory}:\n  {error}")
                return 1
            print(f"\r{number} of {args.rounds}, {verdict.steps} steps, {time.monotonic() - began:.0f} s", end="", flush=True)
    shutil.rmtree(directory)
    print(f"\n{args.rounds} of {args.rounds} worked, {verdict.steps} steps, none lost, all alike; {load()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
