"""What to do when a worker ends: every decision of the launcher, and nothing else. Pure: no process, clock or socket.

The rules, in the order in which they are tried when a worker ended otherwise than with 0:

1. Before any view existed, once every worker has failed with an exit code of its own, the run ends: the script is at
   fault, and restarting it would only repeat its traceback.
2. While restarts are left, the worker is started again (``StartMode``); also after an end with 0, if it has asked for that.
   As long as no view existed: at the same address, because the others were started with that address. Later: as a joiner,
   with the live members of the view as introducers. Once there is no member left to join: in a new founding, together with
   all others that may start.
3. Once a worker has finished and no live worker holds a view, the job is done and nothing is restarted.
4. With fewer workers than ``--min`` able to run, and none finished, the run ends.

A replica of several processes is restarted as a whole, once all of them have ended, which counts as one restart; not if one of
them has finished, or is stuck in the kernel. Who is stuck is not restarted.

The run's result is the exit of the worker that ended last: a failure that others outlived does not fail the run.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from .plan import StartPlan


class WorkerPhase(Enum):
    """The state of a slot. WAITING -> RUNNING | RETIRED; RUNNING -> WAITING | DONE | FAILED | RETIRED."""

    WAITING = "waiting"
    """For its first start, or to be restarted."""
    RUNNING = "running"
    DONE = "finished"
    """Ended with 0."""
    FAILED = "failed"
    RETIRED = "not needed any more"


class StartMode(Enum):
    """How a worker begins."""

    FOUND = "at its founding address, to meet the others there"
    JOIN = "as a joiner of the live members"
    HOLD = "not yet: those who run may yet hold a view, or end"
    REFOUND = "in a new founding: nobody is left to join"


class RunAction(Enum):
    """The consequence of an exit for the run as a whole."""

    GO_ON = "go on"
    RETIRE = "the job is done: whoever holds no view is not needed"
    END = "end the run"


@dataclass(slots=True)
class WorkerRecord:
    """The facts about one slot. The fields from ``pid`` on are about its newest lifetime."""

    index: int
    phase: WorkerPhase = WorkerPhase.WAITING
    starts: int = 0
    blamed_itself: bool = False
    """Whether a lifetime ever ended with an exit code above 0."""
    pid: int = 0
    founder: bool = False
    member: str = ""
    """Its member id, once announced."""
    address: str = ""
    """Its control address, once known."""
    epoch: int = 0
    """Epoch of the newest view that it announced; 0: none."""
    code: int = 0
    """Its return code, as ``subprocess`` gives it."""
    cause: str = ""
    """Why the launcher killed it, if it did."""
    again: bool = False
    """Whether it is to be started again though it ends well: it leaves on purpose, to come back."""
    stuck: bool = False
    """Whether its process is there for good: killed, and not let go by the kernel. It may hold its GPU and its port."""

    def facts(self) -> dict[str, int | str]:
        """Return the public fields, as plain values."""
        return {
            "worker": self.index,
            "phase": str(self.phase.value),
            "starts": self.starts,
            "pid": self.pid,
            "member": self.member,
            "address": self.address,
            "epoch": self.epoch,
        }


@dataclass(slots=True)
class RestartPolicy:
    """All slots, and how many restarts are left."""

    plan: StartPlan
    least: int | None = None
    """Workers that must be able to run; None: as the plan says. Given: there are no slots before they are added."""
    records: list[WorkerRecord] = field(init=False)
    restarts_left: int = field(init=False)
    founded: bool = False
    """Whether any worker of the present founding ever announced a view."""
    ever_founded: bool = False
    ending: str = ""
    """Why the run is ending; empty: it is not."""
    result: int = 0
    """The run's result so far, as ``subprocess`` gives it."""
    last_failed: int | None = None
    """The slot that failed last."""
    past: set[str] = field(default_factory=set)
    """Member ids that are certainly over: their process ended, or goes on under another id."""

    def __post_init__(self) -> None:
        """Create one record for each worker."""
        self.records = [WorkerRecord(index) for index in range(self.plan.workers if self.least is None else 0)]
        self.restarts_left = self.plan.max_restarts

    def add(self) -> int:
        """One slot more, that waits for its start; returns its index."""
        self.records.append(WorkerRecord(len(self.records)))
        return len(self.records) - 1

    def lost(self, index: int, cause: str) -> None:
        """The host of a slot is gone, and with it the worker: it waits for a host, and no restart is used up."""
        record = self.records[index]
        if record.member:
            self.past.add(record.member)
        record.phase, record.code, record.cause = WorkerPhase.WAITING, -9, cause
        record.member, record.epoch, record.founder = "", 0, False
        if self.ending:
            record.phase = WorkerPhase.FAILED

    def remove(self, index: int) -> None:
        """A slot is not wanted any more, if it does not run. Fewer than ``least`` may be left: others may come."""
        if self.records[index].phase is WorkerPhase.WAITING:
            self.records[index].phase = WorkerPhase.RETIRED

    def revive(self, index: int) -> None:
        """A slot that was not wanted is, again."""
        record = self.records[index]
        if record.phase is WorkerPhase.RETIRED and not (record.stuck or self.ending):
            record.phase = WorkerPhase.WAITING

    def of_pid(self, pid: int) -> WorkerRecord | None:
        """The slot whose running worker has this pid."""
        return next((record for record in self.in_phase(WorkerPhase.RUNNING) if record.pid == pid), None)

    def in_phase(self, *phases: WorkerPhase) -> list[WorkerRecord]:
        """The slots in any of these phases."""
        return [record for record in self.records if record.phase in phases]

    @property
    def job_done(self) -> bool:
        """Whether some have finished and no live worker holds a view, so that there is nothing left to join."""
        if not self.in_phase(WorkerPhase.DONE):
            return False
        return not (self.introducers() if self.founded else self.in_phase(WorkerPhase.RUNNING))

    @property
    def over(self) -> bool:
        """Whether nothing runs and nothing will."""
        return not self.in_phase(WorkerPhase.WAITING, WorkerPhase.RUNNING)

    def holds_view(self, record: WorkerRecord) -> bool:
        """Whether the worker runs as a member of a view: it announced one, or it is a founder and another founder did."""
        return record.phase is WorkerPhase.RUNNING and (record.epoch > 0 or (record.founder and self.founded))

    def introducers(self) -> list[str]:
        """Addresses of the live members of the view."""
        return [record.address for record in self.records if self.holds_view(record)]

    def start_mode(self) -> StartMode:
        """Return how a worker that is due now begins."""
        if not self.founded:
            return StartMode.FOUND
        if self.introducers():
            return StartMode.JOIN
        return StartMode.HOLD if self.in_phase(WorkerPhase.RUNNING) else StartMode.REFOUND

    def refound(self) -> None:
        """A new founding begins: the views of the last one are gone."""
        self.founded = False

    def started(self, index: int, pid: int, address: str, *, founder: bool) -> None:
        """Record that a lifetime began; ``address`` is empty if the worker binds its own."""
        record = self.records[index]
        if record.member:
            self.past.add(record.member)
        record.phase, record.pid, record.founder, record.address = WorkerPhase.RUNNING, pid, founder, address
        record.member, record.epoch, record.cause, record.again = "", 0, "", False
        record.starts += 1

    def announced(self, pid: int, member: str, address: str, epoch: int) -> bool:
        """Record a worker's member id, its address, and the epoch of its view (0: none yet); False if no such worker runs.

        Another id than before is another lifetime in the same process.
        """
        record = self.of_pid(pid)
        return record is not None and self.announced_by(record, member, address, epoch)

    def announced_by(self, record: WorkerRecord, member: str, address: str, epoch: int) -> bool:
        """The same for a worker that is known already."""
        if member in self.past:
            return True  # a later announcement has arrived before this one
        if record.member not in ("", member):  # the worker was excluded, and is about to join again
            self.past.add(record.member)
            record.founder, record.epoch = False, 0
        record.member, record.address, record.epoch = member, address, max(record.epoch, epoch)
        if record.epoch > 0:
            self.founded = self.ever_founded = True
        return True

    def wanted_again(self, pid: int) -> bool:
        """The worker with this pid is about to end well, and is to be started again then; False if no such worker runs."""
        record = self.of_pid(pid)
        if record is None:
            return False
        record.again = True
        return True

    def awaited(self, pid: int) -> bool:
        """Whether anybody else may yet come to a worker that is alone in its view: whoever runs is not in that view, and so
        joins it, or ends and may be restarted.
        """
        others = self.in_phase(WorkerPhase.WAITING, WorkerPhase.RUNNING)
        return not self.ending and any(record.phase is WorkerPhase.WAITING or record.pid != pid for record in others)

    def exited(self, index: int, code: int, cause: str = "", *, sent_away: bool = False, stuck: bool = False) -> RunAction:
        """Record that a lifetime ended. A slot left WAITING is to be restarted.

        ``cause``: why the launcher killed it, if it did. ``sent_away``: the run no longer needed it. ``stuck``: it was killed,
        and counts as ended though its process is still there. Nobody takes its place, and so its replica is not restarted.
        """
        record = self.records[index]
        record.code, record.cause, record.stuck = code, cause, stuck
        if sent_away or self.ending:
            record.phase = WorkerPhase.RETIRED
            return RunAction.GO_ON
        mates = self.mates(index)
        counted = any(mate.phase is WorkerPhase.WAITING and mate.starts == record.starts for mate in mates)
        whole = not (stuck or any(mate.phase in (WorkerPhase.DONE, WorkerPhase.FAILED) for mate in mates))
        if code == 0 and record.again and whole and (counted or self.restarts_left):
            record.phase = WorkerPhase.WAITING
            self.restarts_left -= not counted
        elif code == 0:
            record.phase, self.result = WorkerPhase.DONE, 0
        else:
            self.result, self.last_failed = code, index
            record.blamed_itself |= code > 0
            if not self.ever_founded and all(slot.blamed_itself for slot in self.records):
                record.phase = WorkerPhase.FAILED
                return self.end("every worker failed before there was a first view: the script is at fault")
            record.phase = WorkerPhase.WAITING if whole and (counted or self.restarts_left) else WorkerPhase.FAILED
            self.restarts_left -= record.phase is WorkerPhase.WAITING and not counted
            for mate in mates if stuck else ():
                mate.phase = WorkerPhase.FAILED if mate.phase is WorkerPhase.WAITING else mate.phase
        return self._consequence()

    def mates(self, index: int) -> list[WorkerRecord]:
        """The other slots of its replica."""
        shards = self.plan.shards
        first = index - index % shards
        return [record for record in self.records[first : first + shards] if record.index != index]

    def ready(self, index: int) -> bool:
        """Whether the slot waits for a restart, and all others of its replica do."""
        return all(each.phase is WorkerPhase.WAITING for each in (self.records[index], *self.mates(index)))

    def end(self, reason: str) -> RunAction:
        """End the run with the present result; the first reason stays."""
        self.ending = self.ending or reason
        self.retire_waiting()
        return RunAction.END

    def retire_waiting(self) -> None:
        """Retire all slots that wait for a start; a slot whose last lifetime failed stays a failure."""
        for record in self.in_phase(WorkerPhase.WAITING):
            record.phase = WorkerPhase.FAILED if record.code else WorkerPhase.RETIRED

    def _consequence(self) -> RunAction:
        able = self.in_phase(WorkerPhase.WAITING, WorkerPhase.RUNNING)
        if not able:
            return RunAction.GO_ON
        if self.in_phase(WorkerPhase.DONE):
            return RunAction.RETIRE if self.job_done else RunAction.GO_ON
        least = self.plan.fewest if self.least is None else self.least
        if len(able) < least:
            return self.end(f"only {len(able)} of the workers can still run, and --min is {least}")
        return RunAction.GO_ON
