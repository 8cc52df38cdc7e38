"""Workers that train on a device as programs do: ``program``s of ``Task``."""

from __future__ import annotations

import dataclasses
import functools
import pickle
from pathlib import Path

import torch

from ftlib import DistributedDataParallel, FTLib, Status
from tests.harness.worker import Lines, Task, joined
from tests.processes.programs import learner
from tests.processes.programs.learner import prepare  # noqa: F401 - the worker's process calls prepare
from tests.train.cases import CASES

SAVED = 5
"""Steps between two checkpoints."""


def gradients(task: Task, lines: Lines) -> int:
    """What the cases of ``tests.train`` give, by their names, to the file ``task.given["found"]`` with the rank at its end.
    ``task.given["views"]``: gradients are views of the averages.

    The device is torch's default one, as many programs have it, for all that is made in this thread.
    """
    with joined(task, lines) as ft:
        torch.set_default_device(task.device)
        if task.given["views"]:
            ft.register_state(state_dict=dict, load_state_dict=lambda _: None)
        found = {}
        for name, case in CASES.items():
            lines.write(event="case", name=name)
            tensors = case(functools.partial(DistributedDataParallel, ft), ft.rank)
            found[name] = [None if tensor is None else tensor.cpu() for tensor in tensors]
        Path(f"{task.given['found']}{ft.rank}").write_bytes(pickle.dumps(found))
        ft.barrier()
    return 0


class Saving(learner.Learner):
    """It saves every few steps. The event ``begins`` has the step, and the digest of the state, that it begins with."""

    def __init__(self, task: Task, lines: Lines) -> None:
        super().__init__(dataclasses.replace(task, given={}), lines)
        self.directory = task.given["checkpoints"]
        self.default_device = task.given.get("default_device")

    def register(self, ft: FTLib) -> None:
        if self.default_device is not None:
            torch.set_default_device(self.default_device)
        super().register(ft)
        self.lines.write(event="begins", at=ft.step, digest=self.digest())

    def average(self, ft: FTLib) -> Status:
        if ft.step and ft.step % SAVED == 0:
            ft.save(self.directory)
        return super().average(ft)


def save(task: Task, lines: Lines) -> int:
    """Train, and save in the directory ``task.given["checkpoints"]``; ``default_device``: torch's, once all is built."""
    return learner.learn(task, lines, Saving)
