"""A worker that trains with ``DistributedDataParallel``: whose pass is in which average, and whether any was lost or repeated.

A ``program`` of ``worker.Task``. Its orders, ``Task.given``, are ``Orders``; ``Task.sizes`` are the elements of its layers,
each of which is a bucket. Forward and backward of a layer take a fixed time in which the processor rests, as if an accelerator
computed. The gradient of a weight is the worker's own; its ends are drawn from the slot and the number of the pass alone, so
that these parameters can be computed from the lines (see ``replayed``). Each layer has marks, too, whose average says whose
passes are in it.

Lines: ``began`` (of forward), ``backward`` (its begin), ``computed`` (the last gradients are there), ``end`` (of backward),
``done`` (the optimizer has stepped); ``passes`` (numbers by slots), ``own`` (this worker's), ``probe`` (two parameters of each
layer). What a worker is at is in a file as well (see ``At``), which outlives it.
"""

from __future__ import annotations

import contextlib
import enum
import mmap
import os
import signal
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import xxhash
from torch import nn

import ftlib
from tests.harness.cluster import Worker
from tests.harness.worker import SLOTS, Census, Lines, Task, joined, place
from tests.processes.programs.learner import asked

RATE = 2.0**-10


class Phase(enum.IntEnum):
    """Of a step."""

    STARTING = 0
    FORWARD = 1
    BACKWARD = 2
    """Of a layer: some are left."""
    FINISHING = 3
    """All gradients are there; waiting for the others."""
    STEPPING = 4
    """The optimizer's step, and what is written about it."""


@dataclass(frozen=True)
class At:
    """What a worker is at."""

    phase: Phase
    layers: int
    """So many have computed their gradients in this backward."""


@dataclass(frozen=True)
class Fault:
    """What befalls a worker, in backward."""

    what: str = ""
    """``kill``, ``stop`` (SIGSTOP), ``hang`` (in a hook, for ever), ``raise``; nothing."""
    after: int = 0
    """Once so many layers have their gradients."""
    number: int = 10
    """In this pass."""
    rest: float = 0.0
    """Seconds later: what was handed over has been sent then."""


@dataclass(frozen=True)
class Orders:
    """One worker's."""

    forward: float = 0.001
    """Seconds of a layer."""
    backward: float = 0.002
    views: bool = True
    optimizer: bool = True
    """``ftlib.Optimizer``; else the program looks at the status."""
    bucket_mb: float = 0.0
    """0: as large as a layer."""
    drag: float = 0.0
    """Seconds that every step of the optimizer takes longer."""
    hold: bool = False
    """Once all is built, wait for SIGUSR2 before ``FTLib.init``."""
    faults: dict[str, dict[str, Any]] = field(default_factory=dict)
    """A ``Fault`` for each slot that has one."""


def prepare() -> None:
    """Import what a first step imports; start no thread."""
    parameter = nn.Parameter(torch.zeros(1))
    parameter.sum().backward()
    torch.optim.SGD([parameter]).step()


class Told:
    """A few bytes in a file, which outlive the process."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(bytes(2))
        with path.open("r+b") as file:
            self._bytes = mmap.mmap(file.fileno(), 2)

    def tell(self, phase: Phase, layers: int = 0) -> None:
        """From now on it is at that."""
        self._bytes[0], self._bytes[1] = phase, layers


def at(worker: Worker) -> At:
    """What that worker is at, or was when it ended."""
    with contextlib.suppress(FileNotFoundError, ValueError):
        phase, layers = _path(worker.task).read_bytes()
        return At(Phase(phase), layers)
    return At(Phase.STARTING, 0)


def coefficient(first: bool, slot: int, number: int) -> float:
    """The gradient of the first or the last element of a layer's weight: a small whole number, that of the first not 0."""
    return 1.0 + (slot * 3 + number) % 5 if first else float((slot * 7 + number * 3) % 11 - 5)


class Computing(torch.autograd.Function):
    """A layer's forward and backward."""

    @staticmethod
    def forward(context: Any, tensor: torch.Tensor, weight: torch.Tensor, marks: torch.Tensor, layer: Any) -> torch.Tensor:
        context.layer = layer
        layer.trainer.rest(layer.trainer.orders.forward)
        return tensor + weight[0] * 0.0

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        layer = context.layer
        trainer = layer.trainer
        trainer.computing(layer)
        slot, number = trainer.task.slot, trainer.number
        marks = torch.zeros(2 * SLOTS)
        marks[slot], marks[SLOTS + slot] = 1.0, float(number)
        weights = layer.usual.clone()
        weights[0], weights[-1] = coefficient(True, slot, number), coefficient(False, slot, number)
        return gradient, weights, marks, None


class Layer(nn.Module):
    """One bucket."""

    def __init__(self, trainer: Trainer, size: int, founder: bool) -> None:
        super().__init__()
        self.trainer = trainer
        # Who loads nothing differs from the others, but for the founders, from whose state all else follows.
        self.weight = nn.Parameter(torch.zeros(size) if founder else torch.randn(size))
        self.marks = nn.Parameter(torch.zeros(2 * SLOTS) if founder else torch.randn(2 * SLOTS))
        self.usual = (torch.arange(size) * 5 + trainer.task.slot * 7).remainder(11).float() - 5.0
        """This worker's gradient, but for its ends, which are drawn for each pass."""

    def forward(self, tensor: torch.Tensor) -> torch.Tensor:
        return Computing.apply(tensor, self.weight, self.marks, self)  # type: ignore[no-any-return,no-untyped-call]


class Trainer:
    """One process."""

    def __init__(self, task: Task, lines: Lines) -> None:
        self.task = task
        self.lines = lines
        self.orders = Orders(**task.given)
        self.fault = Fault(**self.orders.faults.get(str(task.slot), {}))
        self.told = Told(_path(task))
        self.number = 0
        """Of this pass; each is one forward and one backward."""
        self.computed = 0
        """Layers that have their gradients."""
        self.left = 0
        """Parameters of the first layer, whose gradients come last, that have none yet."""
        self.when: dict[str, float] = {}
        founder = "initial_size" in task.settings
        self.layers = [Layer(self, size, founder) for size in task.sizes]
        self.model = nn.Sequential(*self.layers)
        self.optimizer: Any = torch.optim.SGD(self.model.parameters(), lr=RATE)
        if self.orders.drag:
            self.optimizer.register_step_pre_hook(lambda *_: time.sleep(self.orders.drag))

    def attach(self, ft: ftlib.FTLib) -> None:
        """Wrap and register, as a program does."""
        room = self.orders.bucket_mb or (max(self.task.sizes) + 2 * SLOTS) * 4 / 2**20
        self.wrapped = ftlib.DistributedDataParallel(
            ft, self.model, bucket_mb=room, first_bucket_mb=room, gradient_as_bucket_view=self.orders.views
        )
        if self.orders.optimizer:
            self.optimizer = ftlib.Optimizer(ft, self.optimizer)
        ft.register_state(model=self.wrapped, optimizer=self.optimizer)
        for parameter in self.layers[0].parameters():  # the last ones whose gradients are there; after the wrapper's hooks
            parameter.register_post_accumulate_grad_hook(lambda _: self._accumulated())

    def step(self) -> bool:
        """One; whether it was applied."""
        self.number += 1
        self.computed, self.left = 0, 2
        self.when = {"began": time.monotonic()}
        self.told.tell(Phase.FORWARD)
        self.optimizer.zero_grad()
        loss = self.wrapped(torch.ones(1)).sum()
        self.when["backward"] = time.monotonic()
        self.told.tell(Phase.BACKWARD)
        loss.backward()
        self.when["end"] = time.monotonic()
        self.told.tell(Phase.STEPPING)
        if self.orders.optimizer:
            applied = bool(self.optimizer.step())
        else:
            applied = bool(self.wrapped.status)
            if applied:
                self.optimizer.step()
        self.when["done"] = time.monotonic()
        return applied

    def rest(self, seconds: float) -> None:
        """Computing."""
        if seconds:
            time.sleep(seconds)

    def computing(self, layer: Layer) -> None:
        """The backward of ``layer``: those after it have computed."""
        self.computed = len(self.layers) - 1 - self.layers.index(layer)
        self.told.tell(Phase.BACKWARD, self.computed)
        self._befall()
        self.rest(self.orders.backward)

    def _accumulated(self) -> None:
        self.left -= 1
        if self.left:
            return
        self.computed = len(self.layers)
        self.when["computed"] = time.monotonic()
        self.told.tell(Phase.FINISHING, self.computed)
        self._befall()

    def _befall(self) -> None:
        fault = self.fault
        if not fault.what or (self.number, self.computed) != (fault.number, fault.after):
            return
        time.sleep(fault.rest)
        self.lines.write(event="befallen", what=fault.what, after=fault.after)
        if fault.what == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif fault.what == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif fault.what == "hang":
            time.sleep(3600.0)
        else:
            raise ArithmeticError("planted in backward")

    def passes(self) -> dict[int, int]:
        """The numbers of the passes that are in the averages of this step, by slots."""
        found = [_read(layer.marks.grad) for layer in self.layers]
        if any(each != found[0] for each in found):
            self.lines.write(event="error", text=f"one step averaged over different members or passes: {found}")
        return found[0]

    def digest(self) -> str:
        """Of all parameters."""
        digest = xxhash.xxh3_64()
        for parameter in self.model.parameters():
            digest.update(parameter.detach().numpy().data)
        return digest.hexdigest()

    def probe(self) -> list[float]:
        """A parameter at either end of each layer."""
        return [float(layer.weight[place]) for layer in self.layers for place in (0, -1)]


def learn(task: Task, lines: Lines) -> int:
    """Train until asked to end."""
    wake = {signal.SIGUSR2}
    signal.pthread_sigmask(signal.SIG_BLOCK, wake)
    trainer = Trainer(task, lines)
    lines.write(event="ready", pid=os.getpid())
    if trainer.orders.hold:
        signal.sigwait(wake)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, wake)
    lines.write(event="starting")
    with joined(task, lines) as ft:
        trainer.attach(ft)
        lines.write(event="calling")
        census = Census(ft, lines, task.idle) if task.idle else None
        while not task.steps or ft.step < task.steps:
            try:
                applied = trainer.step()
            except ArithmeticError as error:  # as planted; the program goes on with the next batch
                lines.write(event="raised", text=str(error), number=trainer.number)
                continue
            if not applied:
                lines.write(event="status", status=trainer.wrapped.status.name)
                return 3
            passes = trainer.passes()
            told: dict[str, Any] = {**trainer.when, "who": sum(1 << slot for slot in passes), **place(ft)}
            told |= {"passes": passes, "own": trainer.number, "probe": trainer.probe()}
            if task.digest or ft.step == _wanted(task):
                told["hash"] = trainer.digest()
                told["state_bytes"] = ft.metrics()["state_bytes"]
            lines.write(**told)
            if census is not None:
                census.step(ft.step)
        lines.write(event="done")
    return 0


def repeated(workers: Iterable[Worker]) -> list[str]:
    """Passes that a worker made again, or for nothing: each of its steps is to be one pass more, and to have that one in it."""
    found = []
    for worker in workers:
        raised = {event["number"] for event in worker.events if event.get("event") == "raised"}
        own = str(worker.task.slot)
        for index, line in enumerate(worker.calls):
            name = f"{worker.task.name}, step {line['step']}"
            if own in line["passes"] and line["passes"][own] != line["own"]:
                found.append(f"{name}: pass {line['passes'][own]} is in it, not {line['own']}")
            if index and line["lifetime"] == (before := worker.calls[index - 1])["lifetime"]:
                spent = set(range(before["own"] + 1, line["own"])) - raised
                if spent:
                    found.append(f"{name}: passes {sorted(spent)} were for nothing")
    return found


def replayed(workers: Iterable[Worker], sizes: Sequence[int]) -> list[str]:
    """Parameters that are not those of a replay, without faults, of the passes that each step had in it."""
    lines = {line["step"]: line for worker in workers for line in worker.calls}
    expected = [0.0] * 2 * len(sizes)
    for step in sorted(lines):
        if step > 1 and step - 1 not in lines:
            return [f"nobody has seen step {step - 1}"]
        passes = {int(slot): number for slot, number in lines[step]["passes"].items()}
        for index in range(len(expected)):
            gradients = [coefficient(index % 2 == 0, slot, number) for slot, number in passes.items()]
            expected[index] -= RATE * sum(gradients) / len(gradients)
        told = lines[step]["probe"]
        if any(abs(one - other) > RATE / 50 for one, other in zip(expected, told, strict=True)):
            return [f"step {step}: the parameters are {told[:4]}, a replay has {expected[:4]}"]
    return []


def _read(marks: torch.Tensor | None) -> dict[int, int]:
    assert marks is not None
    values = marks.tolist()
    slots = [slot for slot in range(SLOTS) if values[slot]]
    return {slot: round(values[SLOTS + slot] * len(slots)) for slot in slots}


def _path(task: Task) -> Path:
    return Path(task.log).with_suffix(".at")


def _wanted(task: Task) -> int:
    """The step whose hash is asked for."""
    with contextlib.suppress(FileNotFoundError, ValueError):
        return int(asked(Path(task.log).parent).read_text())
    return -1
