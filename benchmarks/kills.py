"""A thousand kills at random moments: no step lost, none divergent, nobody stuck, no survivor that errs.

    python -m benchmarks.kills --kills 1000 --seed 1

Episodes of 2 to 5 workers with 1 to 3 buckets in flight train without end. Workers get SIGKILL at random moments: most while
training (before, inside, between and after operations), some a moment after another one (inside the view change), some two at
once, some right after they were started (inside their own admission), now and then the most senior. New workers join in their
place. Each event has 20 s. Exit code 1 if anything was violated; the logs of that episode are kept.
"""

from __future__ import annotations

import argparse
import collections
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.processes.cluster import load
from tests.processes.episode import Episode

EPISODE = 40
"""Kills per episode."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--directory", type=Path, default=None, help="where to keep the logs of a failing episode")
    args = parser.parse_args()
    began = time.monotonic()
    print(f"seed {args.seed}, {load()}")
    done, steps, joins, bad = 0, 0, 0, 0
    kinds: collections.Counter[str] = collections.Counter()
    pauses: list[float] = []
    number = 0
    while done < args.kills:
        seed = args.seed * 1_000 + number
        number += 1
        directory = Path(tempfile.mkdtemp(prefix=f"kills-{seed}-", dir=args.directory))
        episode = Episode(directory, seed, min(EPISODE, args.kills - done))
        try:
            episode.run()
        except AssertionError as error:
            bad += 1
            print(f"\nVIOLATION in episode {number} (seed {seed}: {episode.text}); logs in {directory}:\n  {error}", flush=True)
        else:
            shutil.rmtree(directory)
        done += max(1, episode.kills)
        steps += episode.verdict.steps
        joins += episode.joins
        kinds += episode.kinds
        pauses += episode.pauses
        print(
            f"{done:5} kills, {steps} steps, {joins} joins, {bad} bad episodes, {time.monotonic() - began:.0f} s, {load()}; "
            f"last: {episode.text}",
            flush=True,
        )
    pauses.sort()
    if pauses:
        print(
            f"pause of all survivors after an event: median {pauses[len(pauses) // 2] * 1e3:.0f} ms, "
            f"99 % {pauses[int(len(pauses) * 0.99)] * 1e3:.0f} ms, worst {pauses[-1] * 1e3:.0f} ms"
        )
    print(
        f"{done} kills {dict(kinds)}; {'no step lost, none divergent, nobody stuck' if not bad else f'{bad} EPISODES FAILED'}"
    )
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
