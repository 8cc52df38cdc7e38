"""What can be seen of a launch while it runs: facts about each worker, and what the live view shows."""

from __future__ import annotations

from typing import Any

from ..run.restarts import WorkerPhase
from .decisions.hosts import HostPhase
from .decisions.launch_state import LaunchState
from .output.panel import HostFacts, LaunchFacts


def worker_facts(ledger: LaunchState) -> list[dict[str, Any]]:
    """One dict for each worker, in order."""
    return [
        {**record.facts(), "code": record.code, "host": place.host, "local_rank": place.local_rank, "rank": place.rank}
        for place, record in zip(ledger.places, ledger.policy.records, strict=True)
    ]


def launch_facts(job: str, ledger: LaunchState) -> LaunchFacts:
    """What the live view shows."""
    hosts = []
    for host in ledger.hosts.values():
        records = [ledger.policy.records[index] for index in host.workers]
        if host.phase is HostPhase.GONE and not any(record.phase is WorkerPhase.RUNNING for record in records):
            continue
        hosts.append(
            HostFacts(
                host.name,
                str(host.phase.value),
                sum(record.phase is WorkerPhase.RUNNING for record in records),
                host.slots,
                sum(ledger.policy.holds_view(record) and record.epoch > 0 for record in records),
                sum(max(0, record.starts - 1) for record in records),
                "" if host.phase is HostPhase.UP else host.why,
            )
        )
    return LaunchFacts(job, hosts)
