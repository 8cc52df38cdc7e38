"""A job of replicas of several processes: starts them whole, and judges what they did together."""

from __future__ import annotations

import itertools
from collections import defaultdict
from typing import Any

from tests.harness.basics import bind
from tests.harness.cluster import LIMIT, Cluster, Worker

REPLICAS = 12
"""Numbers of replicas, which come again in the same order: a float32 holds a sum of their powers exactly."""


class Replicas(Cluster):
    """``size`` replicas of ``shards`` processes each; every process runs ``sharded``, or the ``program`` that was given."""

    shards = 2

    def __init__(self, *given: Any, **task: Any) -> None:
        super().__init__(*given, **{"program": "tests.processes.programs.sharded:train", "pause": 0.01, **task})
        self._numbers = itertools.count()

    def begin(self, size: int, **task: Any) -> list[list[Worker]]:
        """Start so many replicas, which found the job; by replica and shard."""
        pairs = [[bind() for _ in range(self.shards)] for _ in range(size)]
        addresses = [f"127.0.0.1:{pair[1].getsockname()[1]}" for row in pairs for pair in row]
        found = []
        for row in pairs:
            who = next(self._numbers)
            replica = []
            for shard, pair in enumerate(row):
                address = f"127.0.0.1:{pair[1].getsockname()[1]}"
                settings = {"introducers": addresses, "initial_size": size, "bind": address, **self._part(who, shard)}
                replica.append(self._spawn(settings, pair, **self._told(who, shard, task)))
            found.append(replica)
        return found

    def replica(self, **task: Any) -> list[Worker]:
        """Start one more, which joins."""
        addresses = [worker.address for worker in self.alive() if worker.calls][-4:]
        assert addresses, "nobody to join"
        who = next(self._numbers)
        settings = {"introducers": addresses, "bind": "127.0.0.1:0"}
        return [
            self._spawn({**settings, **self._part(who, shard)}, **self._told(who, shard, task)) for shard in range(self.shards)
        ]

    def together(self, *replicas: list[Worker], steps: int = 5, limit: float = LIMIT) -> None:
        """Wait until all processes of exactly these have finished so many steps over exactly these."""
        mask = sum(1 << row[0].task.given["who"] for row in replicas)
        before = {worker.pid: len(worker.calls) for row in replicas for worker in row}

        def there() -> bool:
            return all(
                sum(line["who"] == mask for line in worker.calls[before[worker.pid] :]) >= steps
                for row in replicas
                for worker in row
            )

        self.until(f"{len(replicas)} replicas train together", there, limit)

    def judge(self) -> int:
        """No step over different replicas, none lost, equal weights in each shard; how many there were.

        The last step of a replica that was lost does not count: what it alone has finished may be done again without it.
        """
        self.read()
        sets: dict[int, set[int]] = defaultdict(set)
        hashes: dict[tuple[int, int], set[int]] = defaultdict(set)
        for worker in self.workers:
            last = None
            ended = worker.code not in (None, 0)
            for line in worker.calls[: -1 if ended else None]:
                assert line["applied"], (worker, line)
                assert last is None or line["step"] == last + 1, (worker, last, line)
                last = line["step"]
                sets[line["step"]].add(line["who"])
                hashes[line["step"], line["shard"]].add(line["hash"])
        wrong = {step: found for step, found in sets.items() if len(found) > 1}
        assert not wrong, f"shards over different replicas: {wrong}"
        apart = {key: found for key, found in hashes.items() if len(found) > 1}
        assert not apart, f"replicas differ: {apart}"
        assert sorted(sets) == list(range(1, max(sets) + 1)), "a step was lost"
        for worker in self.workers:
            faults = [event for event in worker.events if event.get("event") == "error"]
            assert not faults, (worker, faults)
        return max(sets)

    def _part(self, who: int, shard: int) -> dict[str, Any]:
        return {"replica": f"replica-{who}", "shard": shard, "shards": self.shards}

    def _told(self, who: int, shard: int, task: dict[str, Any]) -> dict[str, Any]:
        die = task.get("die")
        taken = {each.task.given["who"] for each in self.workers if each.code is None and each.task.settings["shard"] == shard}
        free = next(number for number in ((who + more) % REPLICAS for more in range(REPLICAS)) if number not in taken)
        given = {"who": free, **task.get("given", {})}
        if isinstance(die, tuple) and die[0] == shard:
            given["die"] = die[1]
        return {**{key: value for key, value in task.items() if key not in ("die", "given")}, "given": given}
