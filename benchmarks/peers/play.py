"""One run of one system through a schedule of faults. The schedule is drawn once a round, and is the same for all systems."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.peers.notes import Notes
from benchmarks.peers.systems import WORKERS, Running

SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "wedge": signal.SIGUSR1, "leave": signal.SIGTERM}
"""Faults of one worker."""
FAULTS = (*SIGNALS, "join", "master")
START = 120.0
"""Seconds until all workers must train together."""
QUIET = 3.0
"""Seconds that nothing happens at first, from which the usual step is known."""
REST = 1.5
AFTERWARDS = 20.0
"""Seconds more, once patience is over, that all have to go on before the next fault comes."""
CALM = 10
"""Steps that all must have made after a fault until the next one."""


@dataclass
class Fault:
    """What happened to whom, and when."""

    kind: str
    victim: int
    began: float
    present: frozenset[int]
    """Slots that were there and are to go on."""
    ended: float = 0.0
    """When all went on as before, or patience was over."""
    over: bool = False
    """Whether all went on."""


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
    faults: list[Fault] = field(default_factory=list)
    notes: Notes | None = None
    failed: str = ""
    """Why it could not be played to its end."""


class Player:
    """Plays one schedule on a system that has been started."""

    def __init__(self, running: Running, patience: float, seed: int) -> None:
        self._running = running
        self._notes = running.notes
        self._patience = patience
        self._chance = random.Random(seed)
        self._present = set(range(WORKERS))
        self.run = Run(running.kind.name, time.monotonic(), notes=running.notes)

    def play(self, schedule: Sequence[str], kills: float, mean: float) -> Run:
        """The faults of the schedule one after the other, then kills at random for that many seconds."""
        run = self.run
        if not self._until(lambda: all(len(self._notes.steps(slot)) >= CALM for slot in self._present), START):
            run.failed = f"no common steps within {START:.0f} s"
            run.ended = time.monotonic()
            return run
        run.together = time.monotonic()
        self._until(lambda: False, QUIET)
        gaps = [gap for slot in self._present for gap in _gaps(self._notes, slot, run.together)]
        run.usual = statistics.median(gaps)
        for kind in schedule:
            self._fault(kind)
        end = time.monotonic() + kills
        while kills and (rest := self._chance.expovariate(1 / mean)) < end - time.monotonic():
            self._until(lambda: False, rest)
            self._fault("kill")
        self._until(lambda: False, REST)
        run.ended = time.monotonic()
        return run

    def _fault(self, kind: str) -> None:
        running, began = self._running, time.monotonic()
        if (kind == "join" and not running.kind.joins) or (kind == "master" and not running.kind.master):
            return
        going = self._going()
        victim = self._chance.choice(self._alive()) if kind in SIGNALS else -1
        pid = self._notes.pid(victim) if victim >= 0 else 0
        if kind in SIGNALS:
            _send(pid, SIGNALS[kind])
        elif kind == "join":
            victim = max(self._present) + 1
            running.add(victim)
        else:
            running.kill_master()
        fault = Fault(kind, victim, began, frozenset(going - {victim}))

        def back() -> bool:
            """The victim's successor (or who joins) makes steps; who leaves need not come back."""
            return victim < 0 or kind == "leave" or any(step["pid"] != pid for step in self._notes.steps(victim, began))

        def go_on() -> bool:
            recent = time.monotonic() - 10 * self.run.usual - 0.2
            steps = [self._notes.steps(slot, began) for slot in fault.present]
            return all(len(each) >= CALM and each[-1]["t"] > recent for each in steps) and back()

        fault.over = self._until(go_on, self._patience)
        fault.ended = time.monotonic()
        self.run.faults.append(fault)
        if not fault.over:
            if kind in {"stop", "wedge"}:
                _send(pid, signal.SIGKILL)  # as an operator would at last
            self._until(go_on, AFTERWARDS)
        if kind == "join" and back():
            self._present.add(victim)
        if kind == "leave" and not self._until(lambda: any(step["pid"] != pid for step in self._notes.steps(victim, began)), 3):
            self._present.discard(victim)
        self._until(lambda: False, REST)

    def _alive(self) -> list[int]:
        """Slots whose process is there, which a kill at random may find between two lives."""
        return [slot for slot in sorted(self._present) if Path(f"/proc/{self._notes.pid(slot)}").exists()] or sorted(
            self._present
        )

    def _going(self) -> set[int]:
        """Slots that make steps now: who is still coming back from the fault before is no survivor of the next one."""
        self._notes.refresh()
        recent = time.monotonic() - 10 * self.run.usual - 0.2
        return {slot for slot in self._present if self._notes.steps(slot, recent)} or set(self._present)

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
