"""Which faults happen when, and to whom: drawn from a seed alone, or read from the log of an earlier run. Pure functions."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import ConfigError

NAMES = ("kill", "stop", "wedge", "slow", "cut", "leave", "agent")
"""All kinds of faults."""
LASTING = ("stop", "wedge", "slow", "cut")
"""Those that end by themselves."""


@dataclass(frozen=True, slots=True)
class Planned:
    """One fault to come."""

    number: int
    after: float
    """Seconds from the moment that the fault before was due at; of the first, from the beginning."""
    kind: str
    worker: str
    seconds: float
    """How long it lasts; it means nothing for kinds that are not ``LASTING``."""

    def as_dict(self) -> dict[str, Any]:
        """For a log."""
        return {name: getattr(self, name) for name in ("number", "after", "kind", "worker", "seconds")}


def kinds_of(text: str) -> tuple[str, ...]:
    """Read ``kill,stop``. ConfigError for a kind that is unknown."""
    kinds = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    for kind in kinds:
        if kind not in NAMES:
            raise ConfigError(f"--kinds: there is no fault {kind!r}: choose of {', '.join(NAMES)}")
    if not kinds:
        raise ConfigError(f"--kinds: give at least one of {', '.join(NAMES)}")
    return kinds


def draw(
    seed: int,
    mtbf: float,
    kinds: Sequence[str],
    replicas: Iterable[Collection[str]],
    count: int,
    seconds: float,
    *,
    targets: Iterable[str],
    returning: Collection[str] = (),
) -> tuple[Planned, ...]:
    """Draw ``count`` faults: ``mtbf`` seconds apart on average (exponentially), each of any kind, at any of ``targets``.

    ``replicas``: the names of the workers of each replica. Whoever leaves takes its replica with it, which comes back if all of
    it are among ``returning``, which a launcher starts again. Else none of it is hit any more, and two replicas stay at least.
    ConfigError if that leaves fewer faults than ``count``.
    """
    left = [frozenset(replica) for replica in replicas]
    mates = {worker: replica for replica in left for worker in replica}
    returning = {worker for worker, replica in mates.items() if replica.issubset(returning)}
    randomly, hit = random.Random(seed), in_order(targets)
    plan: list[Planned] = []
    for number in range(1, count + 1):
        lasts = {kind for kind in kinds if kind != "leave" or len(left) > 2}
        possible = [kind for kind in kinds if kind in lasts or any(worker in returning for worker in hit)]
        if not possible or not hit:
            remedy = f"give --count {number - 1}, or more --kinds" if plan else "give more --kinds, or start more"
            why = "as who has left does not come back, and two stay"
            raise ConfigError(f"only {number - 1} faults of these kinds are possible, {why}: {remedy}")
        after = round(randomly.expovariate(1 / mtbf), 3)
        kind = randomly.choice(possible)
        worker = randomly.choice(hit if kind in lasts else [each for each in hit if each in returning])
        plan.append(Planned(number, after, kind, worker, seconds))
        if kind == "leave" and worker not in returning:
            left.remove(mates[worker])
            hit = [each for each in hit if each not in mates[worker]]
    return tuple(plan)


def replayed(lines: Iterable[str]) -> tuple[Planned, ...]:
    """The faults of a log (one JSON object a line; lines without a kind are left out). ConfigError if it is none."""
    plan = []
    for place, line in enumerate(lines, 1):
        try:
            row = json.loads(line) if line.strip() else {}
            if "kind" not in row:
                continue
            plan.append(
                Planned(int(row["number"]), float(row["after"]), str(row["kind"]), str(row["worker"]), float(row["seconds"]))
            )
        except (ValueError, TypeError, KeyError) as error:
            raise ConfigError(f"line {place} is none of a log of ftlib chaos ({error}): give a file that --log wrote") from None
        kinds_of(plan[-1].kind)
    if not plan:
        raise ConfigError("the log has no fault: give a file that --log wrote")
    return tuple(plan)


def in_order(names: Iterable[str]) -> list[str]:
    """Sorted as people count: worker-2 before worker-10."""
    return sorted(
        names, key=lambda name: [(not part.isdigit(), int(part) if part.isdigit() else 0, part) for part in _parts(name)]
    )


def _parts(name: str) -> list[str]:
    return re.findall(r"\d+|\D+", name)
