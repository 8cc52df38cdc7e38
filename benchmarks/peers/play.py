"""One run of one system through one round's faults, which are the same for all systems: see ``plan``.

A worker that a fault has hit is replaced with every system, also one that was told to leave; one that was stopped or hangs is
killed once the others have gone on, as an operator would do it. The next fault comes once all make steps again. Where that
takes longer than ``RETURN``, or nothing is on its way to it, the whole system is started again, which counts.

The injector is not ``ftlib chaos``: that asks ftlib's agents to hit their own worker, and other systems have none. All get
signals from outside.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from benchmarks.peers.notes import Notes
from benchmarks.peers.plan import ONE_WORKER, Round, Strike
from benchmarks.peers.systems import WORKERS, Running, alive

SIGNALS = dict(zip(ONE_WORKER, (signal.SIGKILL, signal.SIGSTOP, signal.SIGUSR1, signal.SIGTERM), strict=True))
START = 90.0
"""Seconds until all workers must train together."""
QUIET = 2.0
"""Seconds that nothing happens at first, from which the usual step is known; longer until there are ``GAPS`` of them."""
GAPS = 4
LONGEST = 20.0
CALM, MOMENT = 3, 0.3
"""Steps, and seconds, that a survivor has to go on until it counts as going on: a step in flight at the fault may yet end."""
RETURN = 20.0
"""Seconds, once survivors have gone on or patience is over, until all make steps again; none where all are ``_stuck``."""
LIMIT = 100.0
"""Seconds of one run, beside those that a system is waited for by its settings, after which no more faults come."""


@dataclass
class Fault:
    """What happened to whom, and when."""

    kind: str
    victim: int
    pid: int
    began: float
    present: frozenset[int]
    """Slots that were there and are to go on."""
    effect: float | None = None
    """From when on survivors' steps tell something: once who leaves is gone, once who joins makes steps."""
    ended: float = 0.0
    """When all survivors went on, or patience was over."""
    over: bool = False
    """Whether all survivors went on."""


@dataclass
class Run:
    """What one run has shown, as times of the monotonic clock."""

    system: str
    began: float
    together: float = 0.0
    """When all workers had made their first steps."""
    ended: float = 0.0
    usual: float = 0.0
    """Seconds between two steps while nothing happens."""
    pace: float = 0.0
    """Batches a second of one worker while nothing happens."""
    faults: list[Fault] = field(default_factory=list)
    sizes: list[tuple[float, int]] = field(default_factory=list)
    """How many workers there should be, from when on."""
    restarts: int = 0
    """How often the whole system had to be started again."""
    notes: Notes | None = None
    failed: str = ""
    """Why it could not be played to its end."""


class _FailedError(Exception):
    """It cannot go on."""


class Player:
    """Plays one round on a system that has been started."""

    def __init__(self, running: Running, patience: float) -> None:
        """``patience``: seconds until survivors must have gone on."""
        self._running = running
        self._notes = running.notes
        self._patience = patience
        self._present = set(range(WORKERS))
        self.run = Run(running.kind.name, time.monotonic(), notes=running.notes)

    def play(self, plan: Round, window: float) -> Run:
        """The schedule's faults one after the other, then the kills at random within ``window`` seconds."""
        run = self.run
        try:
            self._begin()
            limit = LIMIT + sum(self._patience_for(strike.kind, plan.first) - self._patience for strike in plan.schedule)
            for number, strike in enumerate(plan.schedule):
                if time.monotonic() > run.began + limit:
                    left = ", ".join(each.kind for each in plan.schedule[number:])
                    raise _FailedError(f"no time was left for {left} after {limit:.0f} s")
                self._fault(strike, self._patience_for(strike.kind, plan.first))
            if window:
                self._kills(plan, window)
        except _FailedError as error:
            run.failed = str(error)
        run.ended = time.monotonic()
        self._notes.refresh()
        return run

    def _begin(self) -> None:
        run = self.run
        self._common_steps("no common steps")
        run.together = time.monotonic()
        self._pause(QUIET)
        self._until(lambda: all(len(self._notes.steps(slot, run.together)) > GAPS for slot in self._present), LONGEST)
        now = time.monotonic()
        gaps = [gap for slot in self._present for gap in _gaps(self._notes, slot, run.together)]
        if not gaps:
            raise _FailedError(f"no steps within {now - run.together:.0f} s of quiet")
        run.usual = statistics.median(gaps)
        batches = sum(line["kind"] == "batch" and run.together <= line["t"] < now for line in self._notes.lines)
        run.pace = batches / WORKERS / (now - run.together)
        run.sizes.append((now, WORKERS))

    def _common_steps(self, otherwise: str) -> None:
        since = time.monotonic()
        if not self._until(lambda: all(len(self._notes.steps(slot, since)) >= CALM for slot in self._present), START):
            raise _FailedError(f"{otherwise} within {START:.0f} s")

    def _patience_for(self, kind: str, first: frozenset[str]) -> float:
        if kind == "join":  # nobody waits for who starts
            return self._patience + RETURN
        slow: Mapping[str, float] = self._running.kind.slow
        return max(slow.get(kind, 0.0), self._patience) if kind in first else self._patience

    def _fault(self, strike: Strike, patience: float) -> None:
        fault = self._strike(strike)
        if fault is not None:
            self._watch(fault, patience)
            self._settle(fault)

    def _kills(self, plan: Round, window: float) -> None:
        """At moments that are the same for all systems, however far each has come; so kills may meet a recovery."""
        began = time.monotonic()
        last = None
        for strike, after in itertools.zip_longest(plan.kills, plan.kills[1:]):
            self._pause(began + strike.at - time.monotonic())
            fault = self._strike(strike)
            if fault is None:
                continue
            last = fault
            self._watch(last, self._patience if after is None else began + after.at - time.monotonic())
        self._pause(began + window - time.monotonic())
        if last is not None:
            self._settle(last)

    def _strike(self, strike: Strike) -> Fault | None:
        running, kind = self._running, strike.kind
        if (kind == "join" and not running.kind.joins) or (kind == "master" and not running.kind.master):
            return None
        self._notes.refresh()
        victim = pid = -1
        began = time.monotonic()
        if kind in SIGNALS:
            first = int(strike.fraction * WORKERS)
            slots = [(first + number) % WORKERS for number in range(WORKERS)]
            victim = next((slot for slot in slots if alive(self._notes.pid(slot))), -1)
            if victim < 0:
                return None
            pid = self._notes.pid(victim)
            _send(pid, SIGNALS[kind])
            if kind == "leave":
                running.leaves(victim, pid)
        elif kind == "join":
            victim = max(self._present) + 1
            running.add(victim)
        else:
            running.kill_master()
        effect = None if kind in {"join", "leave"} else began
        # Who is still coming back from a kill before is no survivor of this one.
        survivors = frozenset(slot for slot in self._present - {victim} if self._notes.steps(slot, began - self._recent))
        fault = Fault(kind, victim, pid, began, survivors, effect)
        self.run.faults.append(fault)
        return fault

    def _watch(self, fault: Fault, patience: float) -> None:
        """Until all survivors have gone on, or patience is over."""
        fault.over = self._until(lambda: self._gone_on(fault), patience)
        fault.ended = time.monotonic()

    def _gone_on(self, fault: Fault) -> bool:
        if fault.effect is None and fault.kind == "leave" and not alive(fault.pid):
            fault.effect = time.monotonic()
        if fault.effect is None and fault.kind == "join" and (steps := self._notes.steps(fault.victim)):
            fault.effect = steps[0]["t"]
        return fault.effect is not None and all(self._steady(slot, fault.effect) for slot in fault.present)

    def _steady(self, slot: int, since: float) -> bool:
        steps = self._notes.steps(slot, since)
        return len(steps) >= CALM and steps[-1]["t"] >= max(since + MOMENT, time.monotonic() - self._recent)

    @property
    def _recent(self) -> float:
        """Seconds without a step after which a worker counts as one that makes none."""
        return 3 * self.run.usual + 0.3

    def _settle(self, fault: Fault) -> None:
        """Until all make steps, the victim's successor among them; or start the whole system again."""
        if fault.kind in {"stop", "wedge", "leave"}:
            _send(fault.pid, signal.SIGKILL)
        if fault.victim >= 0:
            self._present.add(fault.victim)

        def back() -> bool:
            steps = self._notes.steps(fault.victim, fault.began) if fault.victim >= 0 else []
            returned = fault.victim < 0 or any(step["pid"] != fault.pid for step in steps)
            return returned and all(self._steady(slot, fault.ended) for slot in self._present)

        if not self._stuck(fault) and self._until(back, RETURN):
            size = len(self._present)
        else:
            self.run.restarts += 1
            self._present = set(range(WORKERS))
            self._running.restart()
            self._common_steps("it did not come back after it was started again")
            size = WORKERS
        if size != self.run.sizes[-1][1]:
            self.run.sizes.append((time.monotonic(), size))

    def _stuck(self, fault: Fault) -> bool:
        """Whether all stand still for good, as far as anybody can see: patience is over, in which the master has come back,
        nobody has ended, so that nobody is on the way, and nobody has written a line in its second half.
        """
        if fault.over or fault.victim >= 0:
            return False
        half = (fault.began + fault.ended) / 2
        return all(alive(self._notes.pid(slot)) and self._notes.heard(slot) < half for slot in self._present)

    def _pause(self, seconds: float) -> None:
        self._until(lambda: False, seconds)

    def _until(self, done: Callable[[], bool], seconds: float) -> bool:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._running.tend()
            self._notes.refresh()
            if done():
                return True
            time.sleep(0.05)  # between two looks at what the workers wrote
        return False


def _gaps(notes: Notes, slot: int, since: float) -> list[float]:
    times = [step["t"] for step in notes.steps(slot, since)]
    return [after - before for before, after in itertools.pairwise(times)]


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has ended by itself
        os.kill(pid, number)
