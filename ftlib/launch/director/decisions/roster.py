"""Which worker is where: hosts with their slots, who has each of them, and who waits for one."""

from __future__ import annotations

from dataclasses import dataclass

from ...run.restarts import RestartPolicy, WorkerPhase
from .hosts import Host, HostPhase


@dataclass(slots=True)
class Place:
    """Where a worker is."""

    host: str
    local_rank: int
    rank: int | None = None
    due: float | None = None
    """When it may be restarted; None: it need not be, or runs."""


class Roster:
    """All hosts and the places of all workers. How each worker does is known to ``policy``."""

    def __init__(self, policy: RestartPolicy, hosts: dict[str, Host]) -> None:
        self.policy = policy
        self.hosts = hosts
        self.places: list[Place] = []

    def phase(self, index: int) -> WorkerPhase:
        """How far a worker is."""
        return self.policy.records[index].phase

    def host_of(self, index: int) -> Host:
        """Where a worker is, or was last."""
        return self.hosts[self.places[index].host]

    def running(self) -> list[int]:
        """Workers that were started and have not ended."""
        return [record.index for record in self.policy.in_phase(WorkerPhase.RUNNING)]

    def running_at(self, host: Host) -> list[int]:
        """The same at one host."""
        return [index for index in host.workers if self.phase(index) is WorkerPhase.RUNNING]

    def up(self) -> list[Host]:
        """Hosts whose agents are there."""
        return [host for host in self.hosts.values() if host.phase is HostPhase.UP]

    def ready(self) -> list[int]:
        """Workers that wait at hosts that are up."""
        return [index for host in self.up() for index in host.workers if self.phase(index) is WorkerPhase.WAITING]

    def able(self) -> int:
        """How many run, or will within a known time."""
        return len(self.running()) + sum(place.due is not None for place in self.places)

    def rest(self) -> None:
        """Nobody is to be started who does not wait any more."""
        for index, place in enumerate(self.places):
            if self.phase(index) is not WorkerPhase.WAITING:
                place.due = None

    def give(self, host: Host) -> None:
        """Give a host new workers for the slots that never had one."""
        taken = {self.places[index].local_rank for index in host.workers}
        for local_rank in range(host.slots):
            if local_rank not in taken:
                index = self.policy.add()
                self.places.append(Place(host.name, local_rank))
                host.workers.append(index)

    def resize(self, host: Host, now: float) -> tuple[list[int], list[int]]:
        """Have a host that is up use its slots, all of them and no more. Returns who runs in a slot that is not there any more,
        and who moved here from a lost host.
        """
        surplus: list[int] = []
        for index in host.workers:
            place = self.places[index]
            if place.local_rank < host.slots:
                self.policy.revive(index)
                if self.phase(index) is WorkerPhase.WAITING and place.due is None:
                    place.due = now
                continue
            place.due = None
            self.policy.remove(index)
            if self.phase(index) is WorkerPhase.RUNNING:
                surplus.append(index)
        moved = self.house(now)
        self.give(host)
        for index in host.workers:
            record = self.policy.records[index]
            if not record.starts and record.phase is WorkerPhase.WAITING and self.places[index].local_rank < host.slots:
                self.places[index].due = now
        return surplus, moved

    def house(self, now: float) -> list[int]:
        """Give workers whose host is lost the free slots of hosts that are up; returns who moved."""
        homeless = [
            index
            for host in self.hosts.values()
            if host.phase in (HostPhase.RESTING, HostPhase.CALLED)
            for index in host.workers
            if self.phase(index) is WorkerPhase.WAITING
        ]
        moved: list[int] = []
        for host in self.up():
            for local_rank in self._free(host):
                if len(moved) == len(homeless):
                    return moved
                index = homeless[len(moved)]
                place = self.places[index]
                self.hosts[place.host].workers.remove(index)
                place.host, place.local_rank, place.due = host.name, local_rank, now
                host.workers.append(index)
                moved.append(index)
        return moved

    def _free(self, host: Host) -> list[int]:
        """Local ranks that nobody has, or whose worker will not be started again, and is not stuck there."""
        over = (WorkerPhase.FAILED, WorkerPhase.RETIRED)
        held = [index for index in host.workers if self.phase(index) not in over or self.policy.records[index].stuck]
        taken = {self.places[index].local_rank for index in held}
        return [local_rank for local_rank in range(host.slots) if local_rank not in taken]
