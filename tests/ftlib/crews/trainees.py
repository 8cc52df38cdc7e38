"""Workers that count their steps in their model, in threads of one process; and how to have one of them excluded."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from consensus import ExcludedError
from consensus.protocol.state.inputs import Died
from ftlib import FTLib, Status
from tests.harness.basics import TIMEOUT, eventually
from tests.harness.company import Company, at_once, company, in_thread


class Trainee:
    """One worker's model, a single tensor, and its loop: every gradient is 1, so the model counts the steps."""

    def __init__(self, ft: FTLib) -> None:
        self.ft = ft
        self.weight = torch.zeros(8)
        ft.register_state(state_dict=lambda: {"weight": self.weight}, load_state_dict=self._load)

    def _load(self, state: dict[str, Any]) -> None:
        self.weight.copy_(state["weight"])

    def step(self, gradient: float = 1.0) -> Status:
        """One average, applied."""
        grad = torch.full_like(self.weight, gradient)
        status = self.ft.allreduce_average(grad)
        if status:
            self.weight += grad
        return status


class Class:
    """Founders that train all the time, in threads of their own, but for the last: that one is the test's."""

    def __init__(self, crew: Company) -> None:
        self.crew = crew
        self.trainees = at_once(*[functools.partial(Trainee, ft) for ft in crew.members])
        self.last: Trainee = self.trainees[-1]
        self._over = threading.Event()
        self._threads = [in_thread(functools.partial(until, self._over, trainee)) for trainee in self.trainees[:-1]]

    def end(self) -> None:
        """All leave; the others are left by whoever sees it first."""
        self._over.set()
        at_once(*[ft.close for ft in self.crew.members])
        for thread in self._threads:
            thread.join(TIMEOUT)


@contextmanager
def training(count: int = 3, **settings: Any) -> Iterator[Class]:
    with company(count, **{"rejoin": True, **settings}) as crew:
        made = Class(crew)
        assert made.last.step()
        try:
            yield made
        finally:
            made.end()


def exclude(ft: FTLib) -> None:
    """It steps aside as if its training thread hung, and knows it when this returns."""
    driver = ft._consensus._host.child.agent.driver  # type: ignore[attr-defined]
    error = ExcludedError("told to; start anew")
    driver._loop.call_soon_threadsafe(driver.handle, Died("told to", error))
    eventually(lambda: ft._plane.phase.value == "stopped", "it knows")


def until(over: threading.Event, trainee: Trainee) -> None:
    while not over.is_set() and trainee.step():
        time.sleep(0.002)
