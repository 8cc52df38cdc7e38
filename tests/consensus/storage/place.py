"""Where the stores of one test are, and races there: several processes that do the same at the same moments."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from typing import Any

import pytest

from consensus.storage.locate import store_at
from consensus.storage.store import Store

_RACERS = 3
_TIMEOUT = 60.0


class Place(ABC):
    """Where the stores of one test are."""

    url: str
    options: dict[str, Any] = {}
    """Further arguments of ``store_at``; for processes of their own, too, so: what JSON can say."""

    def make(self, job: str = "job", **options: Any) -> Store:
        """A handle, not yet open."""
        return store_at(self.url, job, **{"timeout": 5.0, **self.options, **options})

    @asynccontextmanager
    async def store(self, job: str = "job", **options: Any) -> AsyncIterator[Store]:
        """A handle, open."""
        store = self.make(job, **options)
        await store.open()
        try:
            yield store
        finally:
            await store.close()

    @abstractmethod
    def wipe(self) -> None:
        """Remove everything of every job, behind the handles' backs, as an operator might."""

    def losing_answers(self, store: Store) -> AbstractContextManager[None]:
        """Within it, writes of ``store`` are done and their answers lost. Skips where that cannot be arranged."""
        pytest.skip("answers of this store are not lost here")
        return nullcontext()


def race(place: Place, task: str, rounds: int, job: str = "job") -> list[list[Any]]:
    """What each of several processes got in each round: they do ``task`` (see ``racer``) at the same moments."""
    command = [
        sys.executable,
        "-m",
        "tests.consensus.storage.racer",
        place.url,
        job,
        json.dumps(place.options),
        task,
        str(rounds),
    ]
    racers = [
        subprocess.Popen([*command, str(number)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for number in range(_RACERS)
    ]
    try:
        for racer in racers:
            assert racer.stdout is not None and racer.stdout.readline() == "ready\n"
        for racer in racers:
            assert racer.stdin is not None
            racer.stdin.write(f"{time.monotonic() + 0.05}\n")
            racer.stdin.flush()
        results = [json.loads(racer.communicate(timeout=_TIMEOUT)[0]) for racer in racers]
    finally:
        for racer in racers:
            racer.kill()
            racer.communicate()
    assert all(len(result) == rounds for result in results)
    return results
