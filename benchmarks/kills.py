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
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.processes.cluster import load
from tests.processes.episode import Episode

__all__ = ["Tally", "rampage"]

EPISODE = 40
"""Kills per episode."""


@dataclass
class Tally:
    """What came of all episodes."""

    kills: int = 0
    steps: int = 0
    joins: int = 0
    bad: int = 0
    """Episodes in which something was violated."""
    kinds: collections.Counter[str] = field(default_factory=collections.Counter)
    pauses: list[float] = field(default_factory=list)
    """See ``Episode``."""

    @property
    def pause_text(self) -> str:
        """For a table."""
        if not self.pauses:
            return "none"
        pauses = sorted(self.pauses)
        median, most = pauses[len(pauses) // 2], pauses[int(len(pauses) * 0.99)]
        return f"median {median * 1e3:.0f} ms, 99 % {most * 1e3:.0f} ms, worst {pauses[-1] * 1e3:.0f} ms"


def rampage(kills: int, seed: int, directory: Path | None = None, settings: Mapping[str, Any] | None = None) -> Tally:
    """Episodes until there were so many kills. ``settings``: of all workers. Logs of bad episodes stay in ``directory``."""
    tally, began = Tally(), time.monotonic()
    number = 0
    while tally.kills < kills:
        own = seed * 1_000 + number
        number += 1
        place = Path(tempfile.mkdtemp(prefix=f"kills-{own}-", dir=directory))
        episode = Episode(place, own, min(EPISODE, kills - tally.kills), settings)
        try:
            episode.run()
        except AssertionError as error:
            tally.bad += 1
            print(f"\nVIOLATION in episode {number} (seed {own}: {episode.text}); logs in {place}:\n  {error}", flush=True)
        else:
            shutil.rmtree(place)
        tally.kills += max(1, episode.kills)
        tally.steps += episode.verdict.steps
        tally.joins += episode.joins
        tally.kinds += episode.kinds
        tally.pauses += episode.pauses
        print(
            f"{tally.kills:5} kills, {tally.steps} steps, {tally.joins} joins, {tally.bad} bad episodes, "
            f"{time.monotonic() - began:.0f} s, {load()}; last: {episode.text}",
            flush=True,
        )
    return tally


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--directory", type=Path, default=None, help="where to keep the logs of a failing episode")
    args = parser.parse_args()
    print(f"seed {args.seed}, {load()}")
    tally = rampage(args.kills, args.seed, args.directory)
    if tally.pauses:
        print(f"pause of all survivors after an event: {tally.pause_text}")
    verdict = f"{tally.bad} EPISODES FAILED" if tally.bad else "no step lost, none divergent, nobody stuck"
    print(f"{tally.kills} kills {dict(tally.kinds)}; {verdict}")
    return int(tally.bad > 0)


if __name__ == "__main__":
    sys.exit(main())
