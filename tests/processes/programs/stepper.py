"""A learner whose whole step is a unit (``FTLib.execute``): averages begun early, a collective of its own, an optimizer's step.

A ``program`` of ``worker.Task``; ``Task.given``: ``{"at": "between@30", "do": "kill"}``, what to do once at a place.
Lines as those of ``learner``.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from typing import Any

import torch

from ftlib import FTLib
from tests.harness import moments
from tests.harness.worker import Lines, Task, joined, place
from tests.processes.programs.learner import Learner, prepare  # noqa: F401 - the worker's process calls prepare

PLACES = ("begin", "averaging", "between", "collective", "end")
WAIT = 60.0
"""Seconds that the program's own collective may take."""


class Oops(Exception):
    """The program's own."""


class Stepper(Learner):
    """One process."""

    def __init__(self, task: Task, lines: Lines) -> None:
        super().__init__(dataclasses.replace(task, given={}), lines)
        place, _, number = str(task.given.get("at", "@0")).partition("@")
        self._place, self._number, self._do = place, int(number), task.given.get("do", "kill")
        self.steps = 0
        """That were committed since it joined."""

    def unit(self, ft: FTLib) -> int:
        """The step; bits of who took part."""
        self._at("begin", ft)
        self.compute(self.task.slot)
        pending = [ft.allreduce_average(parameter, wait=False) for parameter in self.model.body.parameters()]
        self._at("averaging", ft)
        assert ft.allreduce_average([self.model.first, self.model.last])
        self._at("between", ft)
        mask = torch.tensor([1 << self.task.slot], dtype=torch.int64)
        if ft.group is not None:
            work = ft.group.allreduce(mask)
            self._at("collective", ft)
            try:
                assert work.wait(WAIT)
            except Exception as error:
                raise RuntimeError("as a program wraps it") from error
        assert all(handle.wait() for handle in pending)
        self.apply()
        self._at("end", ft)
        assert int(mask) == self.who(), "its own collective and the averages are of the same members"
        return int(mask)

    def _at(self, place: str, ft: FTLib) -> None:
        if place != self._place or ft.step < self._number or not self.steps:
            return
        self._place = ""
        if self._do == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self._do == "term":
            os.kill(os.getpid(), signal.SIGTERM)
        else:
            raise Oops


def step(task: Task, lines: Lines) -> int:
    """Train until asked to end."""
    stepper = Stepper(task, lines)
    if task.kill_at:
        moments.arm(task.kill_at)
    with joined(task, lines) as ft:
        stepper.register(ft)
        before = stepper.digest()
        while True:
            time.sleep(task.pause)
            began = time.monotonic()
            try:
                who = ft.execute(stepper.unit, ft)
            except Oops:
                lines.write(event="oops", rolled_back=stepper.digest() == before)
                continue
            before = stepper.digest()
            stepper.steps += 1
            told: dict[str, Any] = {"began": began, "end": time.monotonic(), "who": who, "hash": before}
            lines.write(**told, **place(ft), rolled_back=ft._plane.counters.rolled_back)
