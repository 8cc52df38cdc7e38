"""What one worker of a process test does: a training loop whose results tell who took part, one JSON line per finished call.

Each worker's gradient says which slot it has, so that the average tells exactly whose gradients are in it (``who``), for every
tensor on its own; the parameters move by it, so that their hash tells the whole history. Runs as a child of
``zygote``, or by itself under ``ftlib run`` with the task in ``PROCESS_TEST_TASK``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import faulthandler
import hashlib
import importlib
import json
import logging
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import torch

from consensus import format_address
from ftlib import ElasticSampler, FTLib
from ftlib.common.devices import device_at
from ftlib.data.elastic import Elastic
from ftlib.frameworks.accelerators.rehearsal.accelerator import PLACE
from tests.frameworks.crew import made
from tests.harness import moments
from tests.harness.namespace import enter
from tests.harness.one_gpu import pose_as_a_host

SLOTS = 20
"""``2 ** slot`` and sums of them are exact in float32. A tensor needs twice as many elements to tell who is in it."""

PAUSE = 0.1
"""For ``Task.pause``, unless a test needs many steps. One costs each worker three milliseconds of a processor: without pauses
they would keep it from those that start, and from other tests."""


@dataclass
class Task:
    """One worker's orders, as JSON."""

    name: str
    log: str
    """Its lines; one write each, so that a killed worker's are whole."""
    slot: int = 0
    settings: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    """Variables for this worker alone."""
    sizes: list[int] = field(default_factory=lambda: [1_000])
    """Elements (float32) of each parameter."""
    device: str = "cpu"
    """Of the parameters. On a GPU the worker poses as a host of its own, since the others have the same one (``one_gpu``)."""
    pause: float = 0.0
    """Up to so many seconds of sleep before each call, drawn anew each time."""
    fill: bool = True
    """Set gradients before each call; without it the loop has nothing but averages, and ``who`` means nothing."""
    digest: bool = True
    samples: int = 0
    """Draw batches from an ``ElasticSampler`` of so many, and tell what became of each data epoch (0: no sampler)."""
    steps: int = 0
    """End by itself after so many (0: never)."""
    idle: float = 0.0
    """Count control messages: rest for so many seconds after 50 steps, then train (see ``Census``)."""
    kill_at: str = ""
    """A moment (see ``moments``) at which the worker sends itself SIGKILL; after ``later``: only from its tenth step on."""
    silently: bool = False
    """Then its host (see ``namespace``) goes with it."""
    trace: bool = False
    """Note when the phases of a recovery were passed (see ``trace``)."""
    habit: list[Any] = field(default_factory=list)
    """``["module:name", *arguments]``: what that makes of (FTLib, Lines, *arguments) is called before every average."""
    program: str = ""
    """``"module:function"`` called with (Task, Lines) instead of the loop below; its module's ``prepare`` before any fork."""
    given: dict[str, Any] = field(default_factory=dict)
    """That program's own orders."""
    debug: bool = False
    namespace: str = ""
    """The network namespace to live in, if any."""
    socket_fds: list[int] = field(default_factory=list)


def prepare() -> None:
    """Import what a worker needs, before any fork; start no thread."""
    import aiohttp.web
    import msgpack

    import consensus.runtime.agent.agent
    import ftlib.frameworks.gloo

    del aiohttp, msgpack, consensus, ftlib
    torch.set_num_threads(1)


class Lines:
    """The log."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, **values: Any) -> None:
        """One line."""
        os.write(self._file, json.dumps({"t": time.monotonic(), **values}).encode() + b"\n")


@contextlib.contextmanager
def joined(task: Task, lines: Lines, **more: Any) -> Iterator[FTLib]:
    """A member with the task's settings; the log says who it is."""
    sockets = {"socket_fds": task.socket_fds} if task.socket_fds else {}
    settings = {**task.settings, **sockets, **more}
    if "." in settings.get("framework", ""):  # a class of the tests'
        settings["framework"] = made(settings["framework"])
    with FTLib.init(**settings) as ft:
        member = ft._consensus.member
        lines.write(event="init", member=member.id, address=format_address(member.address), pid=os.getpid())
        yield ft


def place(ft: FTLib, device: str = PLACE) -> dict[str, int]:
    """Where it is after a call; ``device``: whose waits are counted."""
    counters = ft._plane.counters
    told = {"call": ft._plane.finished, "step": ft.step, "epoch": ft.epoch, "size": ft.size, "rank": ft.rank}
    carried = {"device_waits": device_at(device).waits, "accelerated": counters.accelerated}
    return {**told, **carried, "adopted": counters.adopted, "lifetime": counters.rejoins}


def tell_ledger(sampler: Elastic, lines: Lines) -> None:
    """What was used up in the data epoch whose loop has ended."""
    rows = list(sampler.ledger())
    used = [index for row in rows for index in row.indices]
    text = repr([(row.step, row.member, row.indices) for row in rows])
    digest = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    data = rows[0].epoch if rows else -1
    lines.write(event="epoch", data=data, used=len(used), unique=len(set(used)), digest=digest)


def run(values: dict[str, Any]) -> NoReturn:
    """Run the task in a process that was forked, and end it."""
    code = 1
    try:
        code = main(values)
    except SystemExit as end:
        code = int(end.code or 0)
    finally:
        # Not through the interpreter's end: it visits every object that was imported, and as these pages are shared with the
        # zygote, copying them takes seconds.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main(values: dict[str, Any]) -> int:
    """Run the task; 0 after a drain."""
    task = Task(**values)
    if task.namespace:
        enter(task.namespace)
    output = os.open(task.log + ".out", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(output, 1)
    os.dup2(output, 2)
    faulthandler.enable(all_threads=True)
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    clock = logging.Formatter("%(mono).6f %(threadName)s %(name)s: %(message)s")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(clock)
    handler.addFilter(_stamp)
    logging.basicConfig(level=logging.DEBUG if task.debug else logging.INFO, handlers=[handler])
    logging.getLogger("asyncio").setLevel(logging.INFO)
    torch.set_num_threads(1)
    pose_as_a_host(task.device)
    os.environ.update(task.environment)
    lines = Lines(task.log)
    try:
        return int(_named(task.program)(task, lines)) if task.program else _train(task, lines)
    except SystemExit as end:
        lines.write(event="drained", code=end.code)
        raise
    except BaseException as error:  # noqa: BLE001 - what ends a worker is what the tests ask about
        lines.write(event="error", text=f"{type(error).__name__}: {error}")
        traceback.print_exc()
        return 1


def _batches(sampler: ElasticSampler, lines: Lines) -> Iterator[list[int]]:
    """Those of all data epochs from here on."""
    for _ in sampler.epochs(1 << 30):
        yield from sampler
        tell_ledger(sampler, lines)


def _stamp(record: logging.LogRecord) -> bool:
    record.mono = time.monotonic()
    return True


def _train(task: Task, lines: Lines) -> int:
    chance = random.Random(task.slot * 7919 + os.getpid())
    later = task.kill_at.removeprefix("later ")
    if later == task.kill_at and later:
        moments.arm(later, silently=task.silently)
    more = {"agent": "thread"} if task.trace or moments.of_the_agent(later) else {}
    tracer = moments.Tracer() if task.trace else None
    params = [torch.zeros(size, device=task.device) for size in task.sizes]
    grads = [torch.zeros(size, device=task.device) for size in task.sizes]

    def load(state: dict[str, Any]) -> None:
        for param, value in zip(params, state["params"], strict=True):
            param.copy_(value)

    sampler = ElasticSampler(range(task.samples), batch_size=4, seed=11) if task.samples else None
    batches = None if sampler is None else _batches(sampler, lines)
    with joined(task, lines, **more) as ft:
        ft.register_state(state_dict=lambda: {"params": params}, load_state_dict=load, sampler=sampler)
        steps = 0
        census = Census(ft, lines, task.idle) if task.idle else None
        habit = _named(task.habit[0])(ft, lines, *task.habit[1:]) if task.habit else None
        while not task.steps or steps < task.steps:
            if task.pause:
                time.sleep(chance.random() * task.pause)
            if habit is not None:
                habit()
            if task.fill:
                _fill(grads, task.slot)
            told: dict[str, Any] = {}
            if sampler is not None and batches is not None:
                next(batches)
                told["samples"] = sampler.counts()
            status = ft.allreduce_average(
                grads, weight=None if sampler is None else 1.0
            )  # not by samples: ``who`` needs equal ones
            end = time.monotonic()
            if not status and told.get("samples") == 0:
                continue  # nobody had a sample left
            if not status:
                lines.write(event="status", status=status.name)
                return 3
            if task.fill:
                torch._foreach_add_(params, grads, alpha=-1e-3)
            steps += 1
            if steps == 10 and later != task.kill_at:
                moments.arm(later, silently=task.silently)
            told |= {"end": end, **place(ft, PLACE if task.device == "cpu" else task.device)}
            if task.fill:
                told["who"] = _who(grads, lines)
            if task.digest:
                told["hash"] = _digest(params)
            if tracer is not None and tracer.marks:
                told["marks"] = tracer.take()
            lines.write(**told)
            if census is not None:
                census.step(steps)
        lines.write(event="done")
    return 0


class Census:
    """Counts the control messages sent while resting for ``seconds``, then while training as long and for ``MANY`` steps.

    From step 50 on.
    """

    MANY = 200

    def __init__(self, ft: FTLib, lines: Lines, seconds: float) -> None:
        self._ft, self._lines, self._seconds = ft, lines, seconds
        self._until = 0.0
        self._before: dict[str, int] = {}
        self._first = 0

    def step(self, number: int) -> None:
        """A step has been finished."""
        if number == 50:
            self._take("start", 0)
            time.sleep(self._seconds)
            self._take("idle", 0)
            self._first, self._until = number, time.monotonic() + self._seconds
        elif self._until and time.monotonic() > self._until and number - self._first >= self.MANY:
            self._until = 0.0
            self._take("busy", number - self._first)

    def _take(self, label: str, steps: int) -> None:
        sent = {kind: count["messages"] for kind, count in self._ft._consensus.status()["messages"]["sent"].items()}
        new = {kind: count - self._before.get(kind, 0) for kind, count in sent.items() if count > self._before.get(kind, 0)}
        self._before = sent
        self._lines.write(event="messages", label=label, sent=new, steps=steps)


def _named(name: str) -> Any:
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


def _fill(grads: list[torch.Tensor], slot: int) -> None:
    """One's own gradients: ``2 ** slot``; both ends of large tensors are one-hot instead, so that averages can be read."""
    for grad in grads:
        grad.fill_(float(2**slot))
        if grad.numel() >= 2 * SLOTS:
            grad[:SLOTS] = 0.0
            grad[-SLOTS:] = 0.0
            grad[slot] = 1.0
            grad[slot - SLOTS] = 1.0


def _who(grads: list[torch.Tensor], lines: Lines) -> int:
    """Bits of the slots whose gradients are in the average; every tensor must say the same, at both ends."""
    mask = _mask(grads[0][:SLOTS])
    count = mask.bit_count()
    for grad in grads:
        if grad.numel() >= 2 * SLOTS:
            right = _mask(grad[:SLOTS]) == mask == _mask(grad[-SLOTS:])
        else:
            right = all(abs(float(value) * count - mask) < 0.5 for value in grad)
        if not right:
            lines.write(event="error", text=f"one call averaged over different members: {mask:b} and {grad[:SLOTS].tolist()}")
    return mask


def _mask(ends: torch.Tensor) -> int:
    return sum(1 << place for place, value in enumerate(ends.tolist()) if value)


def _digest(params: list[torch.Tensor]) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for param in params:
        digest.update(param.cpu().numpy().data)
    return digest.hexdigest()


def _alone() -> int:
    values = json.loads(os.environ["PROCESS_TEST_TASK"])
    known = {item.name for item in dataclasses.fields(Task)}
    slot = int(os.environ.get("FTLIB_WORKER_INDEX", "0"))
    name = f"{slot}-{os.getpid()}"
    values = {key: value for key, value in values.items() if key in known}
    log = str(Path(os.environ["PROCESS_TEST_DIRECTORY"]) / f"{name}.jsonl")
    return main({**values, "name": name, "log": log, "slot": slot})


if __name__ == "__main__":
    sys.exit(_alone())
