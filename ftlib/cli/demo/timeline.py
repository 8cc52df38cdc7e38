"""What has happened so far, put together from the workers' notes, the launcher's events and the demo's own deeds.

One ``ProcessLife`` for each process. All output, decisions and reports read from the timeline.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple


class Fault(Enum):
    """What the demo does to the workers. The value is what people read."""

    KILL = "SIGKILL"
    STOP = "SIGSTOP"
    SENIOR = "SIGKILL, the most senior"
    ADD = "one worker added"


class State(Enum):
    """The state of a lifetime."""

    STARTING = "starting"
    """Imports, then meets the others."""
    JOINING = "joining"
    """Has met the others; no average yet."""
    TRAINING = "training"
    STOPPED = "stopped"
    """By SIGSTOP, not noticed by the launcher yet."""
    KILLED = "killed"
    FENCED = "fenced"
    """Killed by the launcher, because its peers found it silent."""
    DONE = "done"
    FAILED = "failed"


class Step(NamedTuple):
    """One finished average of one worker."""

    t: float
    """CLOCK_MONOTONIC when the average returned, seconds."""
    step: int
    epoch: int
    rank: int
    size: int
    loss: float
    hash: str


@dataclass(slots=True)
class ProcessLife:
    """One process."""

    pid: int
    worker: int
    """The slot: restarts keep it."""
    born: float
    state: State = State.STARTING
    steps: list[Step] = field(default_factory=list)
    ended: float | None = None
    code: int | None = None
    correct: int | None = None
    """Test images that the model got right after the last step."""
    address: str = ""

    @property
    def alive(self) -> bool:
        """Whether the process still runs, stopped or not."""
        return self.ended is None

    @property
    def last(self) -> Step | None:
        """Its newest step."""
        return self.steps[-1] if self.steps else None

    @property
    def name(self) -> str:
        """The worker's name for people."""
        return f"worker {self.worker}"


@dataclass(frozen=True, slots=True)
class Deed:
    """One fault that the demo caused. ``pid``: the victim, or the added worker. ``t``: the time just before."""

    fault: Fault
    t: float
    pid: int
    worker: int
    rank: int
    """The victim's rank; -1 for a worker that was added."""


@dataclass(frozen=True, slots=True)
class Event:
    """A line for people. ``fault``: whether the demo caused it."""

    t: float
    text: str
    fault: bool = False


class Timeline:
    """Gets lines in the order of time within a file, in any order between files."""

    def __init__(self, start: float) -> None:
        self.start = start
        """CLOCK_MONOTONIC when the demo began."""
        self.lives: dict[int, ProcessLife] = {}
        """By pid."""
        self.views: dict[int, frozenset[int]] = {}
        """Pids of the members by epoch."""
        self.deeds: list[Deed] = []
        self._events: list[Event] = []
        self._fenced: set[int] = set()
        self._firsts: dict[int, Step] = {}
        self.code: int | None = None
        """The launcher's exit code, once it is over."""

    # What happened.

    def noted(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Take lines of the workers' notes."""
        for line in lines:
            t, pid = float(line["t"]), int(line["pid"])
            match line["event"]:
                case "born":
                    self._life(pid, int(line["worker"]), t)
                case "met":
                    if self.lives[pid].state is State.STARTING:
                        self.lives[pid].state = State.JOINING
                case "view":
                    self._viewed(t, int(line["epoch"]), frozenset(map(int, line["pids"])))
                case "step":
                    self._stepped(self.lives[pid], Step(*(line[name] for name in Step._fields)))
                case "done":
                    self.lives[pid].correct = int(line["correct"])

    def launched(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Take lines of the launcher's file of events."""
        for line in lines:
            t = float(line["t"])
            match line["event"]:
                case "started":
                    life = self._life(int(line["pid"]), int(line["worker"]), t)
                    if int(line["start"]) > 1:
                        self.say(t, f"{life.name} is started again, as pid {life.pid}")
                case "announced" if int(line["pid"]) in self.lives:
                    self.lives[int(line["pid"])].address = str(line["address"])
                case "fenced":
                    self._fenced.add(int(line["pid"]))
                    self.say(t, f"{self.lives[int(line['pid'])].name} is silent to its peers: the launcher kills it")
                case "ended":
                    self.ended(t, int(line["pid"]), int(line["code"]))
                case "over":
                    self.code = int(line["code"])

    def done(self, deed: Deed) -> None:
        """Record a deed of the demo."""
        self.deeds.append(deed)
        if deed.fault is Fault.ADD:
            self._life(deed.pid, deed.worker, deed.t)
            self.say(deed.t, f"worker {deed.worker} is added, as pid {deed.pid}", fault=True)
            return
        if deed.fault is Fault.STOP:
            self.lives[deed.pid].state = State.STOPPED
        self.say(deed.t, f"{deed.fault.value}: worker {deed.worker}, rank {deed.rank}, pid {deed.pid}", fault=True)

    def ended(self, t: float, pid: int, code: int) -> None:
        """Record that a process ended, with ``code`` as ``subprocess`` gives it."""
        life = self.lives[pid]
        life.ended, life.code = t, code
        fell = State.FENCED if pid in self._fenced else State.KILLED
        life.state = State.DONE if code == 0 else fell if code < 0 else State.FAILED
        if life.state is State.FAILED:
            self.say(t, f"{life.name} failed with exit code {code}: see logs/worker-{life.worker}.log")

    def over(self, code: int | None) -> None:
        """Record that the launcher ended with ``code``, or does not end (None)."""
        self.code = code

    def say(self, t: float, text: str, *, fault: bool = False) -> None:
        """Add a line for people."""
        self._events.append(Event(t, text, fault))

    # What is the case.

    @property
    def events(self) -> list[Event]:
        """All lines for people, in time's order."""
        return sorted(self._events, key=lambda event: event.t)

    @property
    def first(self) -> float | None:
        """When the first average was finished."""
        return min((life.steps[0].t for life in self.lives.values() if life.steps), default=None)

    @property
    def newest(self) -> Step | None:
        """The newest step that any worker finished."""
        return max((life.steps[-1] for life in self.lives.values() if life.steps), key=lambda s: (s.step, s.t), default=None)

    @property
    def training(self) -> list[ProcessLife]:
        """The lifetimes that train now, by rank."""
        found = [life for life in self.lives.values() if life.alive and life.state is State.TRAINING]
        return sorted(found, key=lambda life: life.steps[-1].rank)

    def slots(self) -> list[ProcessLife]:
        """The newest lifetime of each worker, by worker."""
        newest = {life.worker: life for life in sorted(self.lives.values(), key=lambda life: life.born)}
        return [newest[worker] for worker in sorted(newest)]

    def rate(self, now: float, span: float = 2.0) -> float:
        """Steps a second over the last ``span`` seconds."""
        recent = {s.step for life in self.lives.values() for s in life.steps[-400:] if s.t > now - span}
        return len(recent) / span

    def losses(self) -> list[Step]:
        """Return one ``Step`` for each step number, in order: that of the worker which finished it first."""
        return [self._firsts[number] for number in sorted(self._firsts)]

    # Consequences of deeds.

    def witnesses(self, deed: Deed) -> list[ProcessLife]:
        """Return the workers that were training at the deed and lived on: not its victim, nor victims of earlier deeds.

        Victims of later deeds count.
        """
        gone = {other.pid: other.t for other in self.deeds if other.fault is not Fault.ADD}
        after = min((other.t for other in self.deeds if other.t > deed.t), default=float("inf"))
        return [
            life
            for life in self.lives.values()
            if life.pid != deed.pid
            and life.steps
            and life.steps[0].t < deed.t
            and gone.get(life.pid, float("inf")) >= after
            and (life.ended is None or life.ended > deed.t)
        ]

    def recovery(self, deed: Deed) -> float | None:
        """Return the seconds from the deed to the slowest survivor's first average finished in an epoch without the victim.

        For an added worker: to its own first average. None: not finished yet.
        """
        if deed.fault is Fault.ADD:
            steps = self.lives[deed.pid].steps
            return steps[0].t - deed.t if steps else None
        survivors = self.survivors(deed)
        ends = [end for life in survivors if (end := self._next_average(life, deed)) is not None]
        return max(ends) - deed.t if ends and len(ends) == len(survivors) else None

    def survivors(self, deed: Deed) -> list[ProcessLife]:
        """Return the witnesses but those that were silent, too, before they finished an average without the victim, and were
        killed by their launcher: on a machine that is busy enough any worker may be.
        """
        found = self.witnesses(deed)
        return [life for life in found if life.state is not State.FENCED or self._next_average(life, deed) is not None]

    def _next_average(self, life: ProcessLife, deed: Deed) -> float | None:
        """When ``life`` finished its first average after the deed in an epoch without the victim."""
        later = (s.t for s in life.steps if s.t > deed.t and deed.pid not in self.views.get(s.epoch, {deed.pid}))
        return next(later, None)

    def _life(self, pid: int, worker: int, t: float) -> ProcessLife:
        life = self.lives.setdefault(pid, ProcessLife(pid, worker, t))
        life.born = min(life.born, t)
        return life

    def _viewed(self, t: float, epoch: int, pids: frozenset[int]) -> None:
        if epoch in self.views:
            return
        self.views[epoch] = pids
        names = ", ".join(str(self.lives[pid].worker) for pid in pids if pid in self.lives)
        self.say(t, f"epoch {epoch}: {len(pids)} members, workers {', '.join(sorted(names.split(', ')))}")

    def _stepped(self, life: ProcessLife, step: Step) -> None:
        if not life.steps and life.alive:
            life.state = State.TRAINING
            earlier = self.first
            if earlier is not None and len(self.views) > 1:
                self.say(step.t, f"{life.name} takes part, {step.t - life.born:.1f} s after its start")
        life.steps.append(step)
        first = self._firsts.get(step.step)
        if first is None or step.t < first.t:
            self._firsts[step.step] = step
