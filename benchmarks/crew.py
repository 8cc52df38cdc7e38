"""Clusters for benchmarks: started, brought back to size, cleaned up; their logs are kept only if something failed."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.processes.cluster import Cluster, Stuck, Worker
from tests.processes.launched import LaunchedRun

__all__ = ["crew", "put_away", "reason", "refill"]

LIMIT = 60.0
"""Seconds for a cluster to come up or to be whole again, on a busy machine."""


@contextlib.contextmanager
def crew(name: str, size: int, *, launched: bool = False, **task: Any) -> Iterator[Cluster]:
    """``size`` workers that train, under ``ftlib run`` if ``launched``; ``task``: fields of ``Task``."""
    directory = Path(tempfile.mkdtemp(prefix=f"ftlib-{name}-"))
    try:
        if launched:
            cluster: Cluster = LaunchedRun(directory, size, restarts=1_000, **task)
        else:
            cluster = Cluster(directory, **task)
        with cluster:
            if not launched:
                cluster.found(size)
            _come_up(cluster, size)
            yield cluster
    except Exception:
        print(f"\nlogs in {directory}", flush=True)
        raise
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    if os.environ.get("KEEP"):
        print(f"logs in {directory}", flush=True)
    else:
        shutil.rmtree(directory)


def _come_up(cluster: Cluster, size: int) -> None:
    """Wait until all train; Stuck at once where one of them failed."""

    def failed() -> list[Worker]:
        return [worker for worker in cluster.workers if worker.code is not None]

    def settled() -> bool:
        alive = cluster.alive()
        return bool(failed()) or (len(alive) == size and all(worker.last.get("size") == size for worker in alive))

    cluster.until(f"{size} workers train together", settled, LIMIT)
    for worker in failed():
        raise Stuck(f"{worker.task.name} failed: {reason(worker)}")
    cluster.training(size, LIMIT)


def reason(worker: Worker) -> str:
    """What ended it."""
    worker.read()
    texts = [str(event["text"]) for event in worker.events if event.get("event") == "error"]
    return texts[-1] if texts else f"exit code {worker.code}"


def put_away(cluster: Cluster, worker: Worker) -> None:
    """SIGKILL, also of a stopped one, and wait until it is gone."""
    if worker.code is None:
        with contextlib.suppress(ProcessLookupError):
            worker.signal(signal.SIGKILL)
    cluster.until(f"{worker.task.name} ends", lambda: worker.code is not None, LIMIT)


def refill(cluster: Cluster, size: int) -> None:
    """Start joiners for those that are gone, also for those that go meanwhile, and wait until all train together."""
    deadline = time.monotonic() + 2 * LIMIT
    while time.monotonic() < deadline:
        for _ in range(size - len(cluster.alive())):
            cluster.join()

        def settled() -> str:
            alive = cluster.alive()
            if len(alive) < size:
                return "again"
            return "whole" if all(worker.last.get("size") == size for worker in alive) else ""

        if cluster.until(f"{size} workers train together", settled, LIMIT) == "whole":
            break
    cluster.training(size, LIMIT)
