"""Pupils that come late when they are told to, and a class of them whose members have backup workers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from ftlib import FTLib, FTLibError, Status
from ftlib.core.backup.pattern import WINDOW
from tests.ftlib.recovery.pupils import Pupil, School, steps
from tests.harness.basics import TIMEOUT, eventually
from tests.harness.company import Company, company, in_thread

DEADLINE = 0.3
"""Seconds. Busy machines may be late without being told to: nothing here depends on who is not."""


class Latecomer(Pupil):
    """It stays in its forward pass while its gate is closed. Each kind of call after the average, by name, in ``also``."""

    def __init__(self, ft: FTLib, seed: int, *, also: str = "", **more: Any) -> None:
        super().__init__(ft, seed, **more)
        self.gate = threading.Event()
        self.gate.set()
        self.outside = threading.Event()
        """Whether it waits at its gate."""
        self.newest: dict[str, float] = {}
        """What the other calls came to last."""
        self.special = -1
        """After that step it makes another call, which belongs to no step."""
        self._also = also

    def compute(self) -> None:
        super().compute()
        if not self.gate.is_set():
            self.outside.set()
            assert self.gate.wait(TIMEOUT)
            self.outside.clear()

    def step(self) -> Any:
        status = super().step()
        if status:
            self._others()
        return status

    def _others(self) -> None:
        names = [*self._also, *("E" if self.ft.step == self.special else "")]
        for name in names:
            if name == "B":
                assert self.ft.barrier() or self.ended
                continue
            value = torch.tensor([float(self.ft.step), 0.0] if name == "E" else [float(self.ft.step)])
            if self.ft.allreduce(value, "MAX"):
                assert value[0] == self.ft.step, f"{name} is of another step"

    @property
    def ended(self) -> bool:
        return self.ft._call_lock.departed

    def train(self, over: threading.Event) -> None:
        try:
            while not over.is_set() and (self.step() or not self.ended):
                pass
        except FTLibError as error:
            self.error = error
        except SystemExit:
            pass  # it was told to leave

    @property
    def backlog(self) -> int:
        """Calls that its backup worker finished and it has not taken over."""
        return self.ft._plane.lag.calls

    def stay_away(self) -> None:
        """Return once it is late, and others went on without it."""
        self.gate.clear()
        eventually(lambda: self.outside.is_set() and self.backlog > 3, "the others go on without it")

    def come(self) -> None:
        """Return once it is level with the others, and a few steps further."""
        before = len(self.hashes)
        self.gate.set()
        eventually(lambda: (not self.backlog and len(self.hashes) > before + 3) or self.error, "it is back")
        assert self.error is None


class Late(School):
    """Latecomers with a backup worker each."""

    def __init__(self, crew: Company, make: Any = Latecomer, **made: Any) -> None:
        super().__init__(crew, make, **made)
        steps(self.pupils[0], WINDOW + 2)

    def halt(self) -> None:
        """Return once all compute the same step, and go no further."""
        eventually(self._halted, "all compute the same step")

    def _halted(self) -> bool:
        """One attempt to halt. If some gates close a step later than others, backup workers stand in: then another is needed.

        So it is when one of them is in a call and waits for the others: in the first call of a view, no backup worker stands in
        for whoever has the state that somebody may have to ask for.
        """
        for pupil in self.pupils:
            pupil.gate.clear()
        until = time.monotonic() + 10 * DEADLINE
        while not (outside := all(pupil.outside.is_set() for pupil in self.pupils)) and time.monotonic() < until:
            time.sleep(0.002)  # between two looks
        if outside and len({pupil.ft.step for pupil in self.pupils}) == 1:
            return True
        for pupil in self.pupils:
            pupil.gate.set()
        for pupil in self.pupils:
            pupil.come()
        return False

    def end(self) -> None:
        """All stop."""
        self.over.set()
        for pupil in self.pupils:
            pupil.gate.set()
        super().end()


@contextmanager
def late(
    count: int = 3, *, make: Any = Latecomer, made: dict[str, Any] | None = None, backend: str = "memory", **settings: Any
) -> Iterator[Late]:
    """``make``: who comes late, with what is ``made``."""
    with company(count, backend, **{"straggler_deadline": DEADLINE, **settings}) as crew:
        found = Late(crew, make, **(made or {}))
        try:
            yield found
        finally:
            found.end()


def in_step(count: int, *pupils: Pupil) -> None:
    """Wait until all of them have made so many steps together: on a busy machine anybody may be late for some."""

    def made() -> bool:
        assert not [pupil.error for pupil in pupils if pupil.error]
        return len(set.intersection(*(set(pupil.hashes) for pupil in pupils))) >= count

    eventually(made, f"{count} steps of all")


def punctual(ft: FTLib) -> None:
    """However long the test takes, nobody stands in for this one."""
    backup_worker = ft._lives.life.backup_worker
    assert backup_worker is not None
    backup_worker._ready = lambda: False  # type: ignore[method-assign]


def tardy(ft: FTLib) -> None:
    """Not ``punctual`` any more."""
    del ft._lives.life.backup_worker._ready  # type: ignore[union-attr]


def awaiting(late: FTLib, other: FTLib) -> None:
    """Return once the late one's backup worker is in the call that the other has yet to enter, not in the one before."""
    one, two = late._plane, other._plane
    eventually(lambda: one.finished == two.finished and one.running is not None, "the backup worker is in the next call")


def arrive(ft: FTLib, call: Callable[[], Status]) -> tuple[threading.Thread, list[Status]]:
    """It calls while its backup worker is in a call that the others have yet to enter: that will be its own."""
    told: list[Status] = []
    thread = in_thread(lambda: told.append(call()))
    eventually(lambda: ft._call_lock.awaited, "it waits for its backup worker")
    return thread, told


def events(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [getattr(record, "ftlib_event", "") for record in caplog.records]
