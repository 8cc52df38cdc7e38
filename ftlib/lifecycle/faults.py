"""Faults that are ordered for calls of this worker: by its program for a step (``FaultInjector``), from outside for the next
call (``chaos``). They happen as the worker comes to that call.

A fault happens on the thread that calls, before the call is entered: a worker that hangs there hangs outside of calls, as one
whose program computes for ever, and peers find it by the same evidence. A job without ``chaos`` has no such object.
"""

from __future__ import annotations

import threading
from enum import Enum

from consensus import CarefulLogger

from ..core.engine.call_lock import CallLock
from ..core.plane.phase import Phase
from ..core.plane.plane import Plane
from ..errors import ConfigError, InjectedFault

logger = CarefulLogger("ftlib")

SLOWED = 0.25
"""Seconds that a slowed worker rests before each call."""
_LOOK = 0.05
"""Seconds between two looks whether the program has left, while its thread is made to hang."""


class Fault(Enum):
    """What may happen."""

    FAIL = "fail"
    """``InjectedFault`` is raised in the program."""
    FAIL_ALLREDUCE = "fail_allreduce"
    """This worker's process group breaks: the operations of the call fail, here and at the others."""
    WEDGE = "wedge"
    """The thread hangs, while the agent lives."""


class Faults:
    """The faults ordered for one worker. Thread-safe."""

    def __init__(self, call_lock: CallLock) -> None:
        self._call_lock = call_lock
        self._lock = threading.Lock()
        self._ordered: dict[int, tuple[Fault, float]] = {}
        """By step: what happens, and for WEDGE after how many seconds it ends at the latest."""
        self._hangs = 0.0
        """For how many seconds the next call hangs at most; 0: it does not."""
        self._slow_until = 0.0
        """When this worker is slow no more, by the clock of the threads."""

    def order(self, step: int, fault: Fault, seconds: float = 0.0) -> None:
        """``fault`` happens in the first call that is made while ``step`` steps have been granted. ConfigError if another one
        would.
        """
        if type(step) is not int or step < 0:
            raise ConfigError(f"a fault at step {step!r}: give a whole number of at least 0, as ft.step counts")
        with self._lock:
            if step in self._ordered:
                raise ConfigError(f"step {step} has a fault already ({self._ordered[step][0].value}): give another step")
            self._ordered[step] = (fault, seconds)

    def hang_next(self, seconds: float) -> None:
        """The next call hangs as in WEDGE, for so many seconds at most."""
        with self._lock:
            self._hangs = seconds

    def slow_down(self, until: float) -> None:
        """Each call is late by ``SLOWED`` seconds, until then (by the clock of the threads)."""
        with self._lock:
            self._slow_until = until

    def due(self, plane: Plane) -> bool:
        """True if the next call is one with a fault."""
        if self._hangs or self._slow_until:
            return True
        return bool(self._ordered) and self._step(plane) in self._ordered

    def happen(self, plane: Plane, call: str) -> None:
        """The program makes the call named ``call``: whatever is ordered for it happens."""
        if self._hangs or self._slow_until:
            self._happen_now(plane)
        if not self._ordered:
            return
        step = self._step(plane)
        with self._lock:
            for past in [each for each in self._ordered if each < step]:
                fault, _ = self._ordered.pop(past)
                logger.warning(
                    "the fault %s ordered for step %d did not happen: no call was made here in that step",
                    fault.value,
                    past,
                    extra=plane.about("fault_missed"),
                )
            if step not in self._ordered:
                return
            fault, seconds = self._ordered[step]
            session = None
            if fault is Fault.FAIL_ALLREDUCE:
                with plane.changed:
                    session = plane.session if plane.phase is Phase.ACTIVE else None
                if session is None or session.group is None:
                    return  # nothing could break now: it waits for another call of this step
            del self._ordered[step]
        logger.warning("injected at step %d, in %s: %s", step, call, fault.value, extra=plane.about("fault_injected"))
        if session is not None and session.group is not None:
            session.group.abort()
        elif fault is Fault.WEDGE:
            self.hang(plane, seconds)
        elif fault is Fault.FAIL:
            raise InjectedFault(f"ordered for step {step}: FaultInjector.fail_at")

    def _happen_now(self, plane: Plane) -> None:
        """Do what was ordered from outside."""
        with self._lock:
            hangs, self._hangs = self._hangs, 0.0
            slow = plane.threads.now() < self._slow_until
            if not slow:
                self._slow_until = 0.0
        if hangs:
            self.hang(plane, hangs)
        elif slow:
            self._call_lock.rest(SLOWED)

    def hang(self, plane: Plane, seconds: float) -> None:
        """Do not return before the others have gone on without this worker, or it has left, or ``seconds`` are over."""
        until = plane.threads.now() + seconds
        while plane.threads.now() < until and not self._call_lock.departed:
            with plane.changed:
                if plane.phase is Phase.STOPPED:
                    return
                plane.changed.wait(_LOOK)

    def _step(self, plane: Plane) -> int:
        """Steps granted so far; -1 before a joiner's first call, which tells it their number."""
        with plane.changed:
            known = plane.phase is not Phase.WAITING and not plane.newcomer
            return plane.step - plane.lag.steps if known else -1
