"""Workers that do what they should not: one function a part, run in processes forked from a zygote.

    python -m tests.processes.actors FD

An actor writes JSON lines for ``stage`` to read: ``{"event": "init"}``, one a finished call (``"call"`` and what it gave), and
what its part adds. An exception ends it like any program: its context closes, the traceback is printed, exit code 1; the log
has it as ``{"event": "error", "kind", "text"}``. With ``whole_end`` the interpreter finalizes as it does by itself.
"""

from __future__ import annotations

import atexit
import ctypes
import faulthandler
import gc
import json
import logging
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from ftlib import FTLib, Status
from tests.processes import worker, zygote

__all__ = ["PARTS", "main"]

Part = Callable[["Actor"], None]
PARTS: dict[str, Part] = {}
DTYPES = {"float32": torch.float32, "float64": torch.float64, "int8": torch.int8, "complex64": torch.complex64}


class Actor:
    """One process: its orders, its log."""

    def __init__(self, task: dict[str, Any]) -> None:
        self.settings: dict[str, Any] = dict(task["settings"])
        self.given: dict[str, Any] = task["given"]
        self._file = os.open(task["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        if task["socket_fds"]:
            self.settings["socket_fds"] = task["socket_fds"]

    def write(self, **values: Any) -> None:
        """One line."""
        os.write(self._file, json.dumps({"t": time.monotonic(), **values}).encode() + b"\n")

    def init(self) -> FTLib:
        """Start; says so."""
        ft = FTLib.init(self.given.get("consensus", "gossip"), self.given.get("framework", "gloo"), **self.settings)
        member = ft._consensus.member
        self.write(event="init", address=f"{member.host}:{member.port}", member=member.id)
        return ft

    def told(self, ft: FTLib, status: Status, value: float) -> None:
        """One call has ended."""
        self.write(call=ft._plane.finished, status=status.name, size=ft.size, epoch=ft.epoch, step=ft.step, value=value)

    def average(self, ft: FTLib, tensor: torch.Tensor | None = None, **options: Any) -> Status:
        """What everybody does: average two tensors of ones, 1,000 and 4 elements."""
        first = torch.full((1_000,), float(self.given.get("value", 1))) if tensor is None else tensor
        status = ft.allreduce_average([first, torch.ones(4)], **options)
        self.told(ft, status, float(first.sum() / first.numel()))
        return status

    def together(self, ft: FTLib, calls: int | None = None) -> None:
        """Average with the others, ``given["calls"]`` times by default."""
        for _ in range(self.given.get("calls", 0) if calls is None else calls):
            self.average(ft)


def part(function: Part) -> Part:
    """A part, by its function's name."""
    PARTS[function.__name__] = function
    return function


@part
def train(actor: Actor) -> None:
    """As it should be. ``rest``: seconds between calls. ``total``: ends by itself after so many calls."""
    with actor.init() as ft:
        left = actor.given.get("total", 1 << 40)
        while left:
            actor.average(ft)
            left -= 1
            time.sleep(actor.given.get("rest", 0.002))


@part
def misconfigured(actor: Actor) -> None:
    """Starts with each of the ``wrong`` settings, and at last with right ones."""
    threads, before, files = threading.active_count(), 0, 0
    for again in (False, True):
        for settings in actor.given["wrong"]:
            try:
                FTLib.init(**{**actor.settings, **settings})
                actor.write(event="refused", kind="", text="it was not refused")
            except Exception as error:  # noqa: BLE001 - what it is, the test judges
                if not again:
                    actor.write(event="refused", kind=type(error).__name__, text=str(error))
        before, files = files, len(list(Path("/proc/self/fd").iterdir()))
    if threading.active_count() > threads or files > before:
        actor.write(event="left behind", threads=[str(thread) for thread in threading.enumerate()], files=files - before)
    with actor.init() as ft:
        actor.together(ft, 3)


@part
def other(actor: Actor) -> None:
    """After ``calls`` good calls, another ``kind`` of call or ``shapes`` (elements) and ``dtype``."""
    given = actor.given
    with actor.init() as ft:
        actor.together(ft)
        tensors = [torch.ones(size, dtype=DTYPES[given.get("dtype", "float32")]) for size in given.get("shapes", [1_000, 4])]
        kind = given.get("kind", "average")
        while True:
            if kind == "average":
                status = ft.allreduce_average(tensors)
            elif kind == "barrier":
                status = ft.barrier()
            elif kind == "broadcast":
                status = ft.broadcast(tensors[0], 0)
            else:
                status = ft.allreduce(tensors, kind)
            actor.write(event="went through", status=status.name)


@part
def bad_tensor(actor: Actor) -> None:
    """After ``calls`` good calls, each tensor that cannot be averaged; then goes on, as nothing was sent."""
    with actor.init() as ft:
        actor.together(ft)
        indices = torch.tensor([[0, 1], [1, 0]])
        for name, target in {
            "meta": torch.ones(3, device="meta"),
            "int8": torch.ones(3, dtype=torch.int8),
            "complex": torch.ones(3, dtype=torch.complex64),
            "sparse": torch.sparse_coo_tensor(indices, torch.ones(2), (2, 2)),
            "read-only": np.frombuffer(b"12345678", dtype=np.float32),
            "strings": np.array(["a"]),
            "used up": iter([]),
            "no trainable": nn.Sequential(nn.ReLU()),
            "text": "model",
            "number": 3.0,
            "None": None,
            "names": dict(nn.Linear(2, 2).named_parameters()).items(),
            "named": [("weight", torch.ones(2))],
        }.items():
            try:
                ft.allreduce_average(target)
                actor.write(event="refused", name=name, kind="", text="it was not refused")
            except Exception as error:  # noqa: BLE001 - what it is, the test judges
                actor.write(event="refused", name=name, kind=type(error).__name__, text=str(error))
        for _ in range(5):
            actor.average(ft)


@part
def user_error(actor: Actor) -> None:
    """Fails between two calls, with (``bare``: without) the context manager."""
    ft = actor.init()
    if actor.given.get("bare"):
        actor.together(ft)
        raise KeyError("the user's own mistake")
    with ft:
        actor.together(ft)
        raise KeyError("the user's own mistake")


@part
def other_version(actor: Actor) -> None:
    """Speaks another version of the protocol."""
    for module in list(sys.modules.values()):
        if getattr(module, "__name__", "").startswith("consensus") and hasattr(module, "PROTOCOL_VERSION"):
            module.__dict__["PROTOCOL_VERSION"] = 77
    with actor.init() as ft:
        actor.together(ft, 1)


@part
def model(actor: Actor) -> None:
    """Gradients of a module of ``sizes``, of which those in ``missing`` (by worker) are None; ``register`` its state."""
    with actor.init() as ft:
        layers = nn.ModuleList(nn.Linear(size, 1, bias=False) for size in actor.given["sizes"])
        weights = list(layers.parameters())
        if actor.given.get("register"):
            ft.register_state(layers)
        actor.together(ft)
        while True:
            for index, weight in enumerate(weights):
                weight.grad = None if index in actor.given.get("missing", []) else torch.full_like(weight, 6.0)
            status = ft.allreduce_average(layers)
            values = [float(weight.grad.mean()) for weight in weights if weight.grad is not None]
            actor.write(call=ft._plane.finished, status=status.name, size=ft.size, epoch=ft.epoch, values=values)


@part
def weighted(actor: Actor) -> None:
    """Averages with each of ``weights`` in turn; arrays of numpy."""
    with actor.init() as ft:
        for weight in actor.given["weights"]:
            array = np.full((3, 5), float(actor.given["value"]))
            status = ft.allreduce_average(array, weight=weight)
            actor.told(ft, status, float(array[1, 2]))
        array = np.full(7, float(actor.given["value"]), dtype=np.float32)[::2]
        status = ft.wait_gradients_ready(params=[array])
        actor.told(ft, status, float(array.mean()))


@part
def absent(actor: Actor) -> None:
    """After ``calls`` good calls, never enters another; or only after ``seconds``."""
    with actor.init() as ft:
        actor.together(ft)
        actor.write(event="away")
        time.sleep(actor.given.get("seconds", 60))
        actor.average(ft)


@part
def holder(actor: Actor) -> None:
    """After ``calls`` good calls keeps the interpreter's lock for ``seconds``, as C extensions do, and goes on."""
    with actor.init() as ft:
        actor.together(ft)
        actor.write(event="holds")
        ctypes.PyDLL(None).usleep(int(actor.given["seconds"] * 1e6))
        actor.write(event="released")
        while True:
            actor.average(ft)


@part
def preparing(actor: Actor) -> None:
    """Works with forked processes of a data loader, which outlive their parent."""
    with actor.init() as ft:
        actor.together(ft)
        for _ in range(2):
            if os.fork() == 0:
                time.sleep(20)
                os._exit(0)
        while True:
            actor.average(ft)


@part
def stubborn(actor: Actor) -> None:
    """Goes on after Ctrl-C and after other exceptions out of the middle of a call."""

    def fail(_: int, __: object) -> None:
        raise KeyError("out of a signal handler")

    signal.signal(signal.SIGUSR2, fail)
    with actor.init() as ft:
        while True:
            try:
                actor.average(ft)
                time.sleep(0.002)
            except (KeyboardInterrupt, KeyError) as error:
                actor.write(event="caught", kind=type(error).__name__)


@part
def two_threads(actor: Actor) -> None:
    """Two threads call averages of equal tensors; then one ends its part while the other is in a call."""
    with actor.init() as ft:

        def loop() -> None:
            for _ in range(50):
                actor.average(ft)

        threads = [threading.Thread(target=loop) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        actor.write(event="joined", alive=any(thread.is_alive() for thread in threads))


@part
def calls_back(actor: Actor) -> None:
    """A callback, a state function and a signal handler that call into ``ft``."""
    with actor.init() as ft:
        seen: list[str] = []

        def attempt(_: object = None, __: object = None) -> None:
            try:
                ft.barrier()
                seen.append("went through")
            except Exception as error:  # noqa: BLE001 - what it is, the test judges
                seen.append(f"{type(error).__name__}: {error}")

        def callback(view: Any) -> None:
            seen.append(
                f"view {view.epoch} {ft.rank} {ft.size} {ft.initialized()} {ft.skip_allreduce()} {ft.metrics()['size'] == 2}"
            )
            attempt()

        ft.on_view_change(callback)
        signal.signal(signal.SIGALRM, attempt)
        actor.together(ft, 3)
        if actor.given.get("late"):
            time.sleep(0.4)  # meanwhile the other one waits in its call, and its timer goes off there
        else:
            signal.setitimer(signal.ITIMER_REAL, 0.1)
        actor.together(ft, 3)
        actor.write(event="seen", seen=seen)


@part
def callback_fails(actor: Actor) -> None:
    """A callback that raises."""
    with actor.init() as ft:
        actor.together(ft)

        def callback(view: Any) -> None:
            raise KeyError("the user's own mistake")

        ft.on_view_change(callback)
        assert ft.view is not None
        ft._plane.changes.append(ft.view)  # as if the view had changed
        actor.together(ft, 1)


@part
def closed_within(actor: Actor) -> None:
    """Another thread closes while this one waits in a call for somebody who never enters it."""
    with actor.init() as ft:
        actor.together(ft)
        closer = threading.Timer(0.3, ft.close)
        closer.start()
        began = time.monotonic()
        status = actor.average(ft)
        actor.write(event="ended", status=status.name, seconds=time.monotonic() - began)
        closer.join(5)
        again = actor.average(ft)
        actor.write(event="again", status=again.name)


@part
def fails_thrice(actor: Actor) -> None:
    """Writes down the statuses of calls that may FAIL, until one succeeds."""
    with actor.init() as ft:
        actor.together(ft)
        actor.write(event="ready")
        while not actor.average(ft):
            pass
        actor.together(ft, 1 << 30)


def prepare() -> None:
    """Import what every part needs, before any fork."""
    worker.prepare()


def main(task: dict[str, Any]) -> int:
    """Play the part."""
    output = os.open(task["log"] + ".out", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(output, 1)
    os.dup2(output, 2)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    faulthandler.enable(all_threads=True)
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    logging.basicConfig(level=task["given"].get("level", logging.INFO), format="%(threadName)s %(name)s: %(message)s")
    torch.set_num_threads(1)
    actor = Actor(task)
    try:
        PARTS[task["part"]](actor)
    except SystemExit as end:
        actor.write(event="exit", code=end.code)
        raise
    except BaseException as error:  # noqa: BLE001 - the same
        actor.write(event="error", kind=type(error).__name__, text=str(error))
        traceback.print_exc()
        return 130 if isinstance(error, KeyboardInterrupt) else 1
    actor.write(event="done")
    return 0


def _main() -> int:
    zygote.die_with_parent(os.getppid())
    control = socket.socket(fileno=int(sys.argv[1]))
    prepare()
    control.send(b'{"pid": 0}')
    gc.freeze()
    task = zygote.serve(control)
    if task is None:
        return 0
    code = 1
    try:
        code = main(task)
    except SystemExit as end:
        code = int(end.code or 0)
    if task["given"].get("whole_end"):
        return code
    atexit._run_exitfuncs()
    os._exit(code)  # the rest of the interpreter's end visits every object: seconds of copying pages shared with the zygote


if __name__ == "__main__":
    sys.exit(_main())
