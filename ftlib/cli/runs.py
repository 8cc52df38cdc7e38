"""The runs of this user on this host, for commands that are given the name of a worker instead of an address, or nothing."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from consensus import KeyRing

from ..common.units import span
from ..errors import ConfigError
from ..launch.processes.credentials import drawn_rings, ring_of_user
from ..launch.processes.registry import RunRecord, runs

_TIMEOUT = 5.0
_WIDE = 1000


@dataclass(frozen=True, slots=True)
class Run:
    """One run, as its launcher tells it; without workers if it does not answer, or belongs to another secret."""

    record: RunRecord
    stage: str
    restarts_left: int | None
    workers: Sequence[Mapping[str, Any]]

    def as_dict(self) -> dict[str, Any]:
        """For programs."""
        facts = {"stage": self.stage, "restarts_left": self.restarts_left, "workers": list(self.workers)}
        return {**asdict(self.record), **facts}

    def reachable(self) -> Iterator[tuple[str, str]]:
        """Name and address of each worker that runs, those in the newest view first."""
        for worker in sorted(self.workers, key=lambda worker: -int(worker.get("epoch") or 0)):
            if worker.get("phase") == "running" and worker.get("address"):
                yield f"worker-{worker['worker']}", str(worker["address"])


def running(timeout: float = _TIMEOUT) -> list[Run]:
    """The runs that live, the latest first; each launcher gets ``timeout`` seconds to answer."""
    ring = ring_of_user()
    rings = drawn_rings() if ring is None else [ring, *drawn_rings()]
    records = runs()
    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(lambda record: _asked(record, rings, timeout), records))


def address_of(who: str | None, found: Sequence[Run] | None = None) -> str:
    """The address that ``who`` stands for: host:port itself, ``worker-2``, ``JOB/worker-2``; None: any member of the only job.

    Raises ConfigError, with the remedy, if that is nobody here, or not one alone.
    """
    if who is not None and ":" in who:
        return who
    found = running() if found is None else found
    job, _, name = (who or "").rpartition("/")
    there = [(run, each, address) for run in found for each, address in run.reachable()]
    there = [(run, each, address) for run, each, address in there if job in ("", run.record.job) and name in ("", each)]
    jobs = list(dict.fromkeys(run.record.job for run, _, _ in there))
    if len(jobs) == 1:
        return there[0][2]
    if jobs:
        raise ConfigError(f"{len(jobs)} jobs of yours run here: say which, as {jobs[0]}/{name or there[0][1]}; see ftlib ps")
    if who is None:
        raise ConfigError("no job of yours runs here by ftlib run: give the ADDRESS (host:port) of a member, from its log")
    known = ", ".join(f"{run.record.job}/{each}" for run in found for each, _ in run.reachable())
    remedy = f"choose of {known}" if known else "give host:port"
    raise ConfigError(f"{who!r} is not an address, and no worker that runs here: {remedy}")


def show(found: Sequence[Run], console: Console | None = None) -> None:
    """Print a row a worker, under its job."""
    console = console or Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_WIDE)
    if not found:
        console.print("no job of yours runs here by ftlib run")
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in ("job", "launcher", "since", "worker", "phase", "pid", "starts", "epoch", "address"):
        table.add_column(column, overflow="fold")
    for run in found:
        record = run.record
        left = "" if run.restarts_left is None else f", {run.restarts_left} restarts left"
        first = [record.job, f"pid {record.pid}", f"{span(max(0.0, time.time() - record.since))}"]
        table.add_row(*first, f"{len(run.workers)} workers" if run.workers else "-", f"{run.stage}{left}")
        for worker in run.workers:
            values = (worker.get(key) for key in ("phase", "pid", "starts", "epoch", "address"))
            table.add_row("", "", "", f"worker-{worker.get('worker')}", *(str(value or "-") for value in values))
    console.print(table)


def _asked(record: RunRecord, rings: Sequence[KeyRing], timeout: float) -> Run:
    for ring in rings:
        connection = http.client.HTTPConnection(record.supervisor, timeout=timeout)
        try:
            connection.request("GET", "/workers", headers={"Authorization": f"Bearer {ring.first.bearer('workers')}"})
            answer = connection.getresponse()
            report = json.loads(answer.read()) if answer.status == http.client.OK else None
        except (OSError, http.client.HTTPException, ValueError):
            return Run(record, "does not answer", None, ())
        finally:
            connection.close()
        if isinstance(report, dict):
            return Run(record, str(report.get("stage")), report.get("restarts_left"), tuple(report.get("workers") or ()))
    return Run(record, "has another secret: set FTLIB_SECRET or FTLIB_SECRET_FILE", None, ())
