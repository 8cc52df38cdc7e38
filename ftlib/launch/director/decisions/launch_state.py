"""Every decision of a launch over many hosts. Pure: no process, clock, stream or randomness; it says what is to be done.

A launch *gathers* its hosts until each has said what it has, or has failed. It *binds* the founders' sockets, *runs* all
workers at once, and *ends*. Two kinds of launches:

* **Static**: all hosts or none. The first worker that fails, and the first host that is lost, ends the launch (fail fast).
* **Elastic**: a worker that ends is restarted as ``RestartPolicy`` says. A lost host rests, longer each time; its workers
  start in free slots of other hosts, or wait for it. Hosts come, go and change their size; a removed one drains. The launch
  ends when the policy says so, when too few workers could run for long, or when too few can because of hosts that refuse.

A worker's index is its for ever. Its host and local rank are, too, unless its host is lost. Nothing is started that runs
already.
"""

from __future__ import annotations

from enum import Enum

from ...run.plan import StartPlan
from ...run.restarts import RestartPolicy, RunAction, StartMode, WorkerPhase
from .actions import Action, BindHost, CallHost, DropHost, Failure, FailureKind, StartWorker, StopWorker
from .founding import Founding
from .hosts import Host, HostPhase, Loss
from .roster import Place, Roster
from .rules import Rules

SETTLE = 0.1
"""Seconds for which, after a first failure, others may show theirs before they are killed."""


class Stage(Enum):
    """How far the launch is. One direction, but that a new founding binds again."""

    GATHERING = "gathering"
    BINDING = "binding"
    RUNNING = "running"
    SETTLING = "settling"
    """A failure ends it; others may show theirs."""
    ENDING = "ending"


class LaunchState:
    """All hosts and workers of one launch. Each method takes what happened and returns what is to be done."""

    def __init__(self, rules: Rules, hosts: list[tuple[str, int | None]], now: float) -> None:
        self.rules = rules
        self.stage = Stage.GATHERING
        self.hosts = {name: Host(name, asked, since=now) for name, asked in hosts}
        plan = StartPlan(
            ("worker",), 1, min_workers=1, max_restarts=rules.max_restarts, restart_delay=rules.restart_delay, grace=rules.grace
        )
        self.policy = RestartPolicy(plan, rules.min_workers)
        self.failures: list[Failure] = []
        """In the order in which they came; the first one ended the launch."""
        self._roster = Roster(self.policy, self.hosts)
        self._founding = Founding()
        self._settled = 0.0
        self._looked = float("-inf")
        self._short_since: float | None = None

    # What can be asked.

    @property
    def over(self) -> bool:
        """Whether nothing runs and nothing will be started."""
        if self.stage is Stage.ENDING:
            return not self.running()
        return self.stage is Stage.RUNNING and self.policy.over

    @property
    def places(self) -> list[Place]:
        """Where each worker is, or was last, by its index."""
        return self._roster.places

    def running(self) -> list[int]:
        """Indices of the workers that were started and have not ended."""
        return self._roster.running()

    @property
    def failure(self) -> Failure | None:
        """Why the launch failed; None: it did not."""
        if self.failures:
            return self.failures[0]
        last = self.policy.last_failed
        if self.policy.result and last is not None:
            return Failure(FailureKind.WORKER, last, self.places[last].host, self.policy.records[last].cause)
        return None

    @property
    def size(self) -> int:
        """Workers of the launch."""
        return len(self.places)

    def next_at(self) -> float | None:
        """When ``tick`` is due. What was due at the last one, and was not done, waits for something else than the clock."""
        if self.stage is Stage.ENDING:
            return None
        times = [place.due for place in self.places if place.due is not None]
        times += [host.rested_at for host in self.hosts.values() if host.phase is HostPhase.RESTING]
        if self.stage is Stage.SETTLING:
            times.append(self._settled)
        if self._short_since is not None:
            times.append(self._short_since + self.rules.patience)
        return min((each for each in times if each > self._looked), default=None)

    # What happens to hosts.

    def begin(self, now: float) -> list[Action]:
        """Call all hosts."""
        if not self.hosts:
            self._short_since = now
        return [CallHost(name) for name in self.hosts]

    def host_up(self, name: str, slots: int, address: str, now: float) -> list[Action]:
        """An agent has said what its host has: ``slots`` workers shall be there, which listen at ``address``."""
        host = self.hosts[name]
        if host.phase is not HostPhase.CALLED:
            return [DropHost(name)]
        host.up(slots, address, now)
        if self.stage is Stage.GATHERING:
            return self._gathered(now)
        if self.stage in (Stage.SETTLING, Stage.ENDING):
            host.phase = HostPhase.GONE
            return [DropHost(name)]
        return [BindHost(name, self._founding.number, 0, False), *self._resize(host, now)]

    def host_bound(self, name: str, founding: int, addresses: list[str], now: float) -> list[Action]:
        """Its sockets are bound, at these addresses."""
        host = self.hosts[name]
        if founding != self._founding.number or host.phase is not HostPhase.UP:
            return []
        host.bound = True
        if self.stage is Stage.RUNNING:
            return self._start_due(now)
        if self.stage is not Stage.BINDING:
            return []
        mine = [index for index in self._founding.members if self.places[index].host == name] if addresses else []
        self._founding.bound(mine, addresses)
        return self._all_bound(now)

    def host_lost(self, name: str, why: str, now: float, loss: Loss = Loss.ENDED) -> list[Action]:
        """Its agent could not be reached, ended, or is silent. All that ran there is over, or will be without us."""
        host = self.hosts[name]
        if host.phase in (HostPhase.GONE, HostPhase.RESTING):
            return []
        drained = host.phase is HostPhase.DRAINING or loss is Loss.OVER
        host.lost(why, loss, now, for_good=(drained and not host.returns) or loss is Loss.OVER or not self.rules.elastic)
        actions: list[Action] = [DropHost(name)]
        if not self.rules.elastic and self.stage is not Stage.ENDING:
            actions += self._fail(Failure(FailureKind.HOST, host=name, why=why), now)
        for index in host.workers:
            self.places[index].due = None
            if self._roster.phase(index) is WorkerPhase.RUNNING:
                self.policy.lost(index, why)
                if drained or self.stage in (Stage.SETTLING, Stage.ENDING):
                    self.policy.remove(index)
        if self.stage in (Stage.GATHERING, Stage.BINDING):
            return actions + self._gathered(now)
        if self.stage is Stage.RUNNING and loss is Loss.OVER and not (self._roster.up() or self._hoping()):
            return actions + self._end([Failure(FailureKind.HOST, host=name, why=why)])
        if self.stage is Stage.RUNNING:
            self._house(now)
            actions += self._retire() if self.policy.job_done else self._start_due(now)
            self._count(now)
        return actions

    def add_host(self, name: str, asked: int | None, now: float) -> list[Action]:
        """A host more, one that was removed again, or another number of workers for one that is there."""
        host = self.hosts.get(name)
        if self.stage in (Stage.SETTLING, Stage.ENDING):
            return []
        if host is None:
            self.hosts[name] = Host(name, asked, since=now)
            return [CallHost(name)]
        if host.phase is HostPhase.GONE:
            host.wanted(asked, now)
            return [CallHost(name)]
        host.asked = asked
        host.returns = host.phase is HostPhase.DRAINING
        if host.phase is not HostPhase.UP or self.stage is not Stage.RUNNING:
            return []
        actions = self._resize(host, now)
        actions += self._retire() if self.policy.job_done else self._start_due(now)
        self._count(now)
        return actions

    def remove_host(self, name: str, now: float) -> list[Action]:
        """Drain a host: its workers get SIGTERM, and its agent ends after them."""
        host = self.hosts.get(name)
        if host is None:
            return []
        host.returns = False
        if host.phase in (HostPhase.GONE, HostPhase.DRAINING):
            return []
        was_up = host.phase is HostPhase.UP
        running = self._roster.running_at(host)
        host.phase = HostPhase.DRAINING if was_up and running else HostPhase.GONE
        actions: list[Action] = [StopWorker(index, self.rules.grace, "its host was removed") for index in running]
        for index in host.workers:
            self.places[index].due = None
            self.policy.remove(index)
        if host.phase is HostPhase.GONE:
            actions.append(DropHost(name))
        if self.stage in (Stage.GATHERING, Stage.BINDING):
            actions += self._gathered(now)
        elif self.stage is Stage.RUNNING:
            actions += self._retire() if self.policy.job_done else []
            self._count(now)
        return actions

    # What happens to workers.

    def announced(self, index: int, start: int, member: str, address: str, epoch: int, now: float) -> list[Action]:
        """A worker says where it listens, and of which view it is a member."""
        if not self._runs(index, start):
            return []
        self.policy.announced_by(self.policy.records[index], member, address, epoch)
        return self._start_due(now) if self.stage is Stage.RUNNING else []

    def started(self, index: int, start: int, pid: int) -> None:
        """Its process id."""
        if self._runs(index, start):
            self.policy.records[index].pid = pid

    def again(self, index: int, start: int) -> None:
        """A worker is about to end well, and wants to be started again then."""
        if self._runs(index, start):
            self.policy.records[index].again = True

    def ended(
        self, index: int, start: int, code: int, cause: str, now: float, *, sent_away: bool = False, stuck: bool = False
    ) -> list[Action]:
        """One of its starts has ended, or is ``stuck``: then its slot stays empty."""
        if not self._runs(index, start):
            return []
        place = self.places[index]
        host = self._roster.host_of(index)
        draining = host.phase is HostPhase.DRAINING
        following = self.policy.exited(index, code, cause, sent_away=sent_away or draining, stuck=stuck)
        actions: list[Action] = []
        if self.rules.elastic and self.stage in (Stage.BINDING, Stage.RUNNING):
            if self._roster.phase(index) is WorkerPhase.WAITING:
                place.due = now + self.rules.restart_delay
            if following is RunAction.END:
                why = self.policy.ending
                actions += self._end([Failure(FailureKind.WORKER, index, place.host, why)] if code else [])
            elif following is RunAction.RETIRE or self.policy.job_done:
                actions += self._retire()
            else:
                if sent_away and not stuck and host.phase is HostPhase.UP and place.local_rank < host.slots:
                    self.policy.revive(index)  # its host has got its slots back meanwhile
                    place.due = now
                if self.stage is Stage.RUNNING:  # else once the founding is complete
                    self._house(now)
                    actions += self._start_due(now)
            self._count(now)
        elif sent_away and self.stage is Stage.RUNNING:  # not by us: its agent was told to end
            actions += self._fail(Failure(FailureKind.HOST, host=place.host, why=cause), now)
        elif code != 0 and not (sent_away or draining):
            actions += self._fail(Failure(FailureKind.WORKER, index, place.host, cause), now)
        if draining and not self._roster.running_at(host):
            actions += self._drained(host, now)
        return actions

    def cancel(self, why: str) -> list[Action]:
        """End it all, with grace; a second time at once."""
        if self.stage is Stage.ENDING:
            return [StopWorker(index, 0.0, why) for index in self.running()]
        return self._end([Failure(FailureKind.CANCELLED, why=why)])

    def tick(self, now: float) -> list[Action]:
        """The clock has come to ``next_at``."""
        self._looked = now
        actions: list[Action] = []
        if self.stage is Stage.SETTLING and now >= self._settled:
            return self._kill()
        if self.stage in (Stage.SETTLING, Stage.ENDING):
            return []
        for host in self.hosts.values():
            if host.phase is HostPhase.RESTING and now >= host.rested_at:
                host.called(now)
                actions.append(CallHost(host.name))
        if self.stage is Stage.RUNNING:
            actions += self._start_due(now)
        if self._short_since is not None and now >= self._short_since + self.rules.patience:
            lost = self._why_lost()
            why = f"for {self.rules.patience:g} s fewer than {self.rules.min_workers} workers could run"
            failure = Failure(FailureKind.TOO_FEW, host=lost.name if lost else "", why=f"{why}: {lost.why}" if lost else why)
            actions += self._end([failure])
        return actions

    # The inside.

    def _runs(self, index: int, start: int) -> bool:
        """Whether this is a worker's present lifetime: what is said of an earlier one comes too late to matter."""
        record = self.policy.records[index]
        return record.phase is WorkerPhase.RUNNING and record.starts == start

    def _drained(self, host: Host, now: float) -> list[Action]:
        """The last worker of a host that drains has ended."""
        actions: list[Action] = [DropHost(host.name)]
        if host.returns and self.stage not in (Stage.SETTLING, Stage.ENDING):
            host.wanted(host.asked, now)
            return [*actions, CallHost(host.name)]
        host.phase = HostPhase.GONE
        return actions

    def _resize(self, host: Host, now: float) -> list[Action]:
        """Have a host that is up use its slots, all of them and no more."""
        surplus, moved = self._roster.resize(host, now)
        self._moved(moved)
        return [StopWorker(index, self.rules.grace, "its host has fewer slots") for index in surplus]

    def _house(self, now: float) -> None:
        """Give workers whose host is lost the free slots of hosts that are up."""
        self._moved(self._roster.house(now))

    def _moved(self, workers: list[int]) -> None:
        for index in workers:
            self._founding.forget(index)  # nobody is at that address any more

    def _gathered(self, now: float) -> list[Action]:
        """Whether all hosts are there, or have failed: then their sockets are bound."""
        if any(host.phase is HostPhase.CALLED for host in self.hosts.values()) and self.stage is Stage.GATHERING:
            return []
        for host in self._roster.up():
            self._roster.give(host)
        ready = self._roster.ready()
        if len(ready) >= max(1, self.rules.min_workers):
            return self._found(ready)
        if self.rules.elastic and self._hoping():
            self.stage = Stage.GATHERING
            self._short_since = now if self._short_since is None else self._short_since
            return []
        lost = self._why_lost()
        kind = FailureKind.HOST if lost is not None else FailureKind.TOO_FEW
        why = lost.why if lost is not None else self._too_few(len(ready))
        return self._end([Failure(kind, host=lost.name if lost else "", why=why)])

    def _too_few(self, ready: int) -> str:
        least = max(1, self.rules.min_workers)
        return f"{ready} workers are fewer than min_workers={least}: name more hosts, or more workers a host"

    def _hoping(self) -> bool:
        """Whether hosts that are not up may yet be."""
        there = (HostPhase.CALLED, HostPhase.RESTING)
        coming = [host for host in self.hosts.values() if host.phase in there or host.returns]
        return self.rules.moving or any(not host.hopeless for host in coming)

    def _why_lost(self) -> Host | None:
        """A host to name where there are too few: one that was refused before one that is merely away."""
        lost = [host for host in self.hosts.values() if host.why]
        return min(lost, key=lambda host: (not host.hopeless, host.phase is HostPhase.UP), default=None)

    def _found(self, indices: list[int]) -> list[Action]:
        """Bind the sockets of these, and then start them as the founders of one cluster."""
        self.stage = Stage.BINDING
        self._founding = self._founding.next(indices)
        if not self.rules.elastic:
            for rank, index in enumerate(indices):
                self.places[index].rank = rank
        actions: list[Action] = []
        for host in self._roster.up():
            mine = [index for index in indices if self.places[index].host == host.name]
            host.bound = False
            actions.append(BindHost(host.name, self._founding.number, len(mine), indices[0] in mine and not self.rules.elastic))
        return actions

    def _all_bound(self, now: float) -> list[Action]:
        founding = self._founding
        if not founding.complete:
            return []
        self.stage = Stage.RUNNING
        actions: list[Action] = [
            self._start(index, founder, founding.address_of(index), founding.addresses)
            for index, founder in founding.numbered(lambda index: self.places[index].host)
        ]
        actions += self._start_due(now)
        self._count(now)
        return actions

    def _start(self, index: int, founder: int, address: str, introducers: tuple[str, ...]) -> StartWorker:
        self.places[index].due = None
        self.policy.started(index, 0, address, founder=bool(address))
        return StartWorker(index, self.policy.records[index].starts, founder, address, introducers, len(self._founding.members))

    def _start_due(self, now: float) -> list[Action]:
        """Start what waits and may be started."""
        actions: list[Action] = []
        for index, place in enumerate(self.places):
            host = self._roster.host_of(index)
            if place.due is None or now < place.due or host.phase is not HostPhase.UP or not host.bound:
                continue
            if self._roster.phase(index) is not WorkerPhase.WAITING:
                place.due = None
                continue
            mode = self.policy.start_mode()
            if mode is StartMode.HOLD:
                break
            if mode is StartMode.REFOUND or (mode is StartMode.FOUND and not self._founding.addresses):
                return actions + self._refound()
            if mode is StartMode.FOUND:
                actions.append(self._start(index, -1, self._founding.address_of(index), self._founding.addresses))
            else:
                actions.append(self._start(index, -1, "", tuple(self.policy.introducers())))
        return actions

    def _refound(self) -> list[Action]:
        """Nobody is left to join: all that wait at hosts that are up found a new cluster."""
        self.policy.refound()
        return self._found(self._roster.ready())

    def _count(self, now: float) -> None:
        """Note since when too few workers can run. After all that may end a worker, or its waiting."""
        self._roster.rest()
        able = self._roster.able()
        done = bool(self.policy.in_phase(WorkerPhase.DONE))
        if able < self.rules.min_workers and not done and not self.policy.over:
            self._short_since = now if self._short_since is None else self._short_since
        else:
            self._short_since = None

    def _retire(self) -> list[Action]:
        """The job is done: joiners that hold no view have nothing to join, and nobody founds any more."""
        if self.stage is Stage.BINDING:
            self.stage, self._founding = Stage.RUNNING, self._founding.next(())
        self.policy.retire_waiting()
        self._roster.rest()
        return [StopWorker(index, self.rules.grace, "the job was done") for index in self.running()]

    def _fail(self, failure: Failure, now: float) -> list[Action]:
        """A static launch fails. Those that fail within a moment are noted too."""
        self.failures.append(failure)
        if self.stage in (Stage.SETTLING, Stage.ENDING):
            return []
        self.policy.end("a part of it failed")
        self._settled = now + SETTLE
        if not self.running():
            return self._kill()
        self.stage = Stage.SETTLING
        return []

    def _kill(self) -> list[Action]:
        self.stage = Stage.ENDING
        return [StopWorker(index, 0.0, "another part of the launch failed") for index in self.running()]

    def _end(self, failures: list[Failure]) -> list[Action]:
        self.failures += failures
        self.stage = Stage.ENDING
        self._short_since = None
        self.policy.end("it was ended")
        self._roster.rest()
        return [StopWorker(index, self.rules.grace, "the launch ends") for index in self.running()]
