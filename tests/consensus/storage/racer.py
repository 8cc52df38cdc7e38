"""One of several processes that do the same at the same moments; prints what it got in each round.

python -m tests.consensus.storage.racer URL JOB OPTIONS TASK ROUNDS NUMBER
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

from consensus.storage.locate import store_at
from consensus.storage.store import Created, Store

_PACE = 0.004
"""Seconds from one round to the next: without it the fastest would run ahead, and there would be no race."""


async def create(store: Store, turn: int, number: int) -> Any:
    """Everybody creates the same key. What came of it, and whose value stands there."""
    outcome = await store.create(f"views/{turn}", b"%d" % number * 3000, number=turn, series="views")
    value = await store.read(f"views/{turn}")
    assert value is not None and len(set(value)) == 1 and len(value) == 3000
    return outcome.name, int(value[:1])


async def compact(store: Store, turn: int, number: int) -> Any:
    """To numbers that rise and fall. The number asked for, what compacting said, what reading says."""
    asked = 1 + turn + 7 * ((turn + number) % 3)
    return asked, await store.compact("views", asked), await store.compacted("views")


async def create_and_compact(store: Store, turn: int, number: int) -> Any:
    """Number 0 compacts above a key while the others create it. What came of it."""
    if number == 0:
        await store.compact("views", turn + 1)
        return "COMPACTED"
    outcome = await store.create(f"views/{turn}", b"%d" % number, number=turn, series="views")
    if outcome is Created.DONE:
        assert await store.read(f"views/{turn}") == b"%d" % number
    return outcome.name


async def create_and_clean(store: Store, turn: int, number: int) -> Any:
    """Number 0 compacts above a key and deletes it while the others create it. What came of it."""
    if number == 0:
        await store.compact("views", turn + 1)
        await store.delete(f"views/{turn}")
        return "CLEANED"
    return (await store.create(f"views/{turn}", b"%d" % number, number=turn, series="views")).name


_TASKS: dict[str, Callable[[Store, int, int], Awaitable[Any]]] = {
    "create": create,
    "compact": compact,
    "create_and_compact": create_and_compact,
    "create_and_clean": create_and_clean,
}


async def main(url: str, job: str, options: str, task: str, rounds: str, number: str) -> None:
    store = store_at(url, job, **{"timeout": 20.0, **json.loads(options)})
    await store.open()
    print("ready", flush=True)
    start = float(sys.stdin.readline())
    results = []
    for turn in range(int(rounds)):
        while time.monotonic() < start + turn * _PACE:
            pass  # to the microsecond: that is what this process is for
        results.append(await _TASKS[task](store, turn, int(number)))
    await store.close()
    print(json.dumps(results))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
