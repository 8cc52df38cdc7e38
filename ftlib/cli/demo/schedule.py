"""The faults, and when they come: a kill, a stop, a newcomer, and a kill of the most senior.

A deed waits until the one before is over and all workers are back, so that each figure is about one deed. It does not wait
forever, since a demo that hangs shows nothing.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time

from .crew import WORKERS, Crew
from .timeline import Deed, Fault, ProcessLife, State, Timeline

_PLOT = ((Fault.KILL, 0.12), (Fault.STOP, 0.32), (Fault.ADD, 0.56), (Fault.SENIOR, 0.76))
"""The faults, each with the part of the training time after which it comes at the earliest."""
LIMIT = 40.0
"""Seconds to wait for a consequence; if it has not come by then, that promise is broken."""
START_LIMIT = 90.0
"""Seconds to wait for the first average of all: four processes that import torch on a busy machine."""
_LAST = 1.0
"""Seconds that all workers train together before the end."""
_STEPS = 250
"""Least number of steps: if two nets have hardly begun to learn, the better one is better by chance."""


class FaultSchedule:
    """Carried out by calling ``tick`` often."""

    def __init__(self, timeline: Timeline, crew: Crew, seconds: float) -> None:
        self._timeline = timeline
        self._crew = crew
        self._seconds = seconds
        self._told: set[int] = set()  # deeds whose end was shown
        self._calm: float | None = None  # since when all workers are there and nothing is pending
        self._restless = time.monotonic()
        self.finished = False
        """Whether the workers were asked to stop."""
        self.stuck = ""
        """What the schedule waited for in vain; empty: nothing."""

    @property
    def next(self) -> str:
        """The next deed, as text for people."""
        if self.finished:
            return "everybody stops after the same step"
        done = len(self._timeline.deeds)
        return f"next: {_PLOT[done][0].value}" if done < len(_PLOT) else "the last seconds"

    def tick(self) -> None:
        """Check the consequences of the last deed; do the next deed if it is due."""
        timeline, now = self._timeline, time.monotonic()
        if self.finished or timeline.first is None:
            if timeline.first is None and now - timeline.start > START_LIMIT:
                self.give_up(f"no average was finished within {START_LIMIT:g} s")
            return
        self._tell()
        pending = self._pending()
        if pending:
            self._calm = None
            if now - self._restless > LIMIT:
                self.give_up(f"{pending} has not come within {LIMIT:g} s")
                self._finish()
            return
        self._calm = self._calm or now
        self._restless = now
        done = len(timeline.deeds)
        if done < len(_PLOT):
            fault, part = _PLOT[done]
            if now > timeline.first + part * self._seconds and now > self._calm + _LAST / 2:
                self._do(fault)
        elif now > timeline.first + self._seconds and now > self._calm + _LAST and self._trained(now):
            self._finish()

    def _trained(self, now: float) -> bool:
        """Whether the workers have trained enough for a comparison, or take too long."""
        newest, calm = self._timeline.newest, self._calm or now
        return now > calm + LIMIT or (newest is not None and newest.step >= _STEPS)

    def give_up(self, reason: str) -> None:
        """Record that the schedule waited in vain; the first reason stays."""
        self.stuck = self.stuck or reason

    def _finish(self) -> None:
        self.finished = True
        self._crew.finish()

    def _pending(self) -> str:
        """Return what has to happen before the next deed; empty: nothing."""
        timeline = self._timeline
        for number, deed in enumerate(timeline.deeds):
            if number not in self._told:
                return f"the first average after {deed.fault.value}"
        wanted = WORKERS + any(deed.fault is Fault.ADD for deed in timeline.deeds)
        there = timeline.training
        if len(there) < wanted:
            return f"the return of all {wanted} workers"
        sizes = {life.steps[-1].size for life in there}
        return "" if sizes == {wanted} else f"a view of all {wanted} workers"

    def _tell(self) -> None:
        timeline = self._timeline
        for number, deed in enumerate(timeline.deeds):
            if number in self._told:
                continue
            seconds = timeline.recovery(deed)
            if seconds is None:
                continue
            self._told.add(number)
            if deed.fault is not Fault.ADD:
                size = len(timeline.survivors(deed))
                text = f"all {size} survivors finished an average without it after {seconds * 1e3:.0f} ms"
                timeline.say(deed.t + seconds, text)

    def _do(self, fault: Fault) -> None:
        timeline = self._timeline
        there = timeline.training
        self._calm, self._restless = None, time.monotonic()
        if fault is Fault.ADD:
            before = time.monotonic()
            pid = self._crew.add([life.address for life in there if life.address])
            timeline.done(Deed(fault, before, pid, WORKERS, -1))
            return
        victim = self._victim(fault, there)
        number = signal.SIGSTOP if fault is Fault.STOP else signal.SIGKILL
        before = time.monotonic()
        with contextlib.suppress(ProcessLookupError):  # it has ended already, which is reported as its own end
            os.kill(victim.pid, number)
        timeline.done(Deed(fault, before, victim.pid, victim.worker, victim.steps[-1].rank))

    @staticmethod
    def _victim(fault: Fault, there: list[ProcessLife]) -> ProcessLife:
        """Choose by rank: the most senior has rank 0; the others are taken from the middle. The added worker is spared."""
        if fault is Fault.SENIOR:
            return there[0]
        assert all(life.state is State.TRAINING for life in there)
        return there[2] if fault is Fault.KILL else there[1]
