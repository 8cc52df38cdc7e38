"""Workers on several hosts, one on each: a ``Cluster`` whose workers live in the namespaces of a ``Network``."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.harness.cluster import LIMIT, Cluster, Worker
from tests.harness.network import Host, Network
from tests.harness.nursery import Nursery

PORT = 7001
"""Of every worker; each host has addresses of its own."""


class Fleet(Cluster):
    """``anew`` ends everybody, and the next ones are another job's."""

    def __init__(self, directory: Path, network: Network, nursery: Nursery | None = None, **task: Any) -> None:
        """``network`` is up."""
        super().__init__(directory, nursery, **task)
        self.network = network
        self._top = directory
        self._lives = 0

    def anew(self, **settings: Any) -> None:
        """Kill all, mend the network; ``settings`` are added for the workers to come."""
        self._lives += 1
        self.clear(self._top / f"{self._lives:02}", **settings)
        self.heal()

    # Starting

    def found(self, size: int, *, first: dict[str, Any] | None = None, **task: Any) -> list[Worker]:
        """One worker on each of the first ``size`` hosts; the first one's is the most senior."""
        hosts = self.network.hosts[:size]
        return [self._on(host, hosts, size, {**task, **((first or {}) if host is hosts[0] else {})}) for host in hosts]

    def join(self, host: Host | None = None, **task: Any) -> Worker:
        """One more worker, by default on the first host without any."""
        busy = {worker.task.namespace for worker in self.alive()}
        place = host or next(each for each in self.network.hosts if each.name not in busy)
        introducers = [each for each in self.network.hosts if each is not place and each.name in busy]
        return self._on(place, introducers, 1, task)

    def _on(self, host: Host, introducers: Iterable[Host], size: int, task: dict[str, Any]) -> Worker:
        # whoever was there has ended, but its agent, a process of its own, ends a moment later
        self.until("the port is free again", lambda: not host.pids())
        addresses = [f"{each.v4}:{PORT}" for each in introducers]
        settings = {"introducers": addresses, "initial_size": size, "bind": f"{host.v4}:{PORT}"}
        return self._spawn(settings, **{**task, "namespace": host.name})

    # Who is where

    def host_of(self, worker: Worker) -> Host:
        """Where it runs."""
        return next(host for host in self.network.hosts if host.name == worker.task.namespace)

    def senior(self) -> Worker:
        """The most senior of those that run."""
        return min(self.alive(), key=lambda worker: worker.last["rank"])

    # Faults

    def heal(self) -> None:
        """All hosts reach each other again, those that vanished too."""
        self.network.heal()
        for host in self.network.hosts:
            host.nft("flush ruleset")

    def vanish(self, worker: Worker, *, unplug: bool = True) -> float:
        """Its host's link breaks, and with it the host: nobody hears of its end. CLOCK_MONOTONIC of that.

        ``unplug``: not even the question where that host is is answered any more; a link that comes up again takes a second.
        """
        host = self.host_of(worker)
        pids = host.pids()
        began = time.monotonic()
        self.network.isolate(host)
        if unplug:
            self.network.unplug(host)
        worker.killed = began
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return began

    def lost(self, *workers: Worker) -> float:
        """They are cut off, and not counted among the living from now on. CLOCK_MONOTONIC once no packet gets through."""
        gone = [self.host_of(worker) for worker in workers]
        self.network.split(gone, [host for host in self.network.hosts if host not in gone])
        cut = time.monotonic()
        for worker in workers:
            worker.killed = cut
        return cut

    # Judging

    def went_on(self, survivors: Iterable[Worker], since: float, limit: float = LIMIT) -> float:
        """Wait until exactly ``survivors`` average together; seconds from ``since`` until the last of them does."""
        workers = list(survivors)
        mask = sum(1 << worker.task.slot for worker in workers)

        def first(worker: Worker) -> float | None:
            """When it finished the first average of exactly these."""
            found = None
            for line in reversed(worker.calls):
                if line["end"] <= since or line["who"] != mask:
                    break
                found = line["end"]
            return found

        self.until(f"{len(workers)} survivors average together", lambda: all(map(first, workers)), limit)
        return max(first(worker) or 0.0 for worker in workers) - since
