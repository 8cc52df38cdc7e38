"""What one worker of a process test does: a training loop whose results tell who took part, one JSON line per finished call.

Each worker's gradient is ``2 ** slot`` in every element (slots differ), so that the average tells exactly whose gradients are in it
(``who``), for every tensor on its own; the parameters move by it, so that their hash tells the whole history. Runs as a child of
``zygote``, or by itself under ``ftlib run`` with the task in ``PROCESS_TEST_TASK``.
"""

from __future__ import annotations

import dataclasses
import faulthandler
import hashlib
import json
import logging
import os
import random
import signal
import sys
import time
import traceback
from dataclasses import dataclass, field
from typing import Any

import torch

from ftlib import FTLib
from tests.processes import moments, trace

SLOTS = 20
"""``2 ** slot`` and sums of them are exact in float32."""


@dataclass
class Task:
    """One worker's orders, as JSON."""

    name: str
    log: str
    """Its lines; one write each, so that a killed worker's are whole."""
    slot: int = 0
    settings: dict[str, Any] = field(default_factory=dict)
    sizes: list[int] = field(default_factory=lambda: [1_000])
    """Elements (float32) of each parameter."""
    pause: float = 0.0
    """Up to so many seconds of sleep before each call, drawn anew each time."""
    fill: bool = True
    """Set gradients before each call; without it the loop has nothing but averages, and ``who`` means nothing."""
    digest: bool = True
    steps: int = 0
    """End by itself after so many (0: never)."""
    idle: float = 0.0
    """Instead of training: rest so long after the first step, then go on."""
    kill_at: str = ""
    """A moment (see ``moments``) at which the worker sends itself SIGKILL."""
    trace: bool = False
    """Note when the phases of a recovery were passed (see ``trace``)."""
    debug: bool = False
    socket_fds: list[int] = field(default_factory=list)


def prepare() -> None:
    """Import what a worker needs, before any fork; start no thread."""
    import aiohttp.web
    import msgpack

    import consensus.runtime.agent
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


def main(values: dict[str, Any]) -> int:
    """Run the task; 0 after a drain."""
    task = Task(**values)
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
    lines = Lines(task.log)
    try:
        return _train(task, lines)
    except SystemExit as end:
        lines.write(event="drained", code=end.code)
        raise
    except BaseException as error:
        lines.write(event="error", text=f"{type(error).__name__}: {error}")
        traceback.print_exc()
        return 1


def _stamp(record: logging.LogRecord) -> bool:
    record.mono = time.monotonic()
    return True


def _train(task: Task, lines: Lines) -> int:
    chance = random.Random(task.slot * 7919 + os.getpid())
    settings = dict(task.settings)
    if task.socket_fds:
        settings["socket_fds"] = task.socket_fds
    if task.kill_at:
        moments.arm(task.kill_at)
    tracer = trace.Tracer() if task.trace else None
    params = [torch.zeros(size) for size in task.sizes]
    grads = [torch.full((size,), float(2**task.slot)) for size in task.sizes]

    def load(state: dict[str, Any]) -> None:
        for param, value in zip(params, state["params"], strict=True):
            param.copy_(value)

    with FTLib.init(**settings) as ft:
        member = ft._consensus.member
        lines.write(event="init", member=member.id, address="%s:%d" % member.address, pid=os.getpid())
        ft.register_state(state_dict=lambda: {"params": params}, load_state_dict=load)
        steps = 0
        while not task.steps or steps < task.steps:
            if task.pause:
                time.sleep(chance.random() * task.pause)
            if task.fill:
                for grad in grads:
                    grad.fill_(float(2**task.slot))
            status = ft.allreduce_average(grads)
            end = time.monotonic()
            if not status:
                lines.write(event="status", status=status.name)
                return 3
            if task.fill:
                torch._foreach_add_(params, grads, alpha=-1e-3)
            steps += 1
            told: dict[str, Any] = {
                "end": end,
                "call": ft._plane.finished,
                "step": ft.step,
                "epoch": ft.epoch,
                "size": ft.size,
                "rank": ft.rank,
                "adopted": ft._plane.counters.adopted,
            }
            if task.fill:
                told["who"] = _who(grads, lines)
            if task.digest:
                told["hash"] = _digest(params)
            if tracer is not None and tracer.marks:
                told["marks"] = tracer.take()
            lines.write(**told)
            if task.idle and steps == 50:
                _count(ft, lines, "before")
                time.sleep(task.idle)
                _count(ft, lines, "idle")
        if task.idle:
            _count(ft, lines, "busy")
        lines.write(event="done")
    return 0


def _count(ft: FTLib, lines: Lines, label: str) -> None:
    lines.write(event="messages", label=label, sent=ft._consensus.status()["messages"]["sent"])


def _who(grads: list[torch.Tensor], lines: Lines) -> int:
    """Bits of the slots whose gradients are in the average; every tensor must say the same at both ends."""
    found = {_mask(float(grad[place])) for grad in grads if grad.numel() for place in (0, -1)}
    if len(found) != 1:
        lines.write(event="error", text=f"one call averaged over different members: {sorted(found)}")
    return min(found)


def _mask(average: float) -> int:
    for count in range(1, SLOTS):
        mask = round(average * count)
        if mask.bit_count() == count and abs(average * count - mask) < 1e-3 * max(1, mask):
            return mask
    return -1


def _digest(params: list[torch.Tensor]) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for param in params:
        digest.update(param.numpy().data)
    return digest.hexdigest()


def _alone() -> int:
    values = json.loads(os.environ["PROCESS_TEST_TASK"])
    known = {item.name for item in dataclasses.fields(Task)}
    slot = int(os.environ.get("FTLIB_WORKER_INDEX", "0"))
    name = f"{slot}-{os.getpid()}"
    values = {key: value for key, value in values.items() if key in known}
    log = os.path.join(values.pop("directory", os.environ["PROCESS_TEST_DIRECTORY"]), f"{name}.jsonl")
    return main({**values, "name": name, "log": log, "slot": slot})


if __name__ == "__main__":
    sys.exit(_alone())
