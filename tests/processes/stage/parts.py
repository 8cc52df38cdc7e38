"""What actors do that they should not: one function a part."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from ftlib import FTLib
from tests.harness.basics import TIMEOUT, eventually
from tests.processes.stage.actor import Actor

Part = Callable[[Actor], None]
PARTS: dict[str, Part] = {}
DTYPES = {"float32": torch.float32, "float64": torch.float64, "int8": torch.int8, "complex64": torch.complex64}


def part(function: Part) -> Part:
    """A part, by its function's name."""
    PARTS[function.__name__] = function
    return function


@part
def train(actor: Actor) -> None:
    """As it should be. ``rest``: seconds between calls. ``total``: ends by itself after so many calls. ``hold``: a file; while
    it is there no call is entered."""
    with actor.init() as ft:
        left = actor.given.get("total", 1 << 40)
        while left:
            actor.average(ft)
            left -= 1
            time.sleep(actor.given.get("rest", 0.02))
            if "hold" in actor.given and Path(actor.given["hold"]).exists():
                actor.write(event="holds")
                eventually(lambda: not Path(actor.given["hold"]).exists(), "it may go on")


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
    """After ``calls`` good calls, and three averages of ``first``, another ``kind`` of call, or ``shapes``, ``dtype``."""
    given = actor.given
    with actor.init() as ft:
        actor.together(ft)
        if "first" in given:
            for _ in range(3):
                ft.allreduce_average([torch.ones(size) for size in given["first"]])
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
                actor.write(event="calls")
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
            thread.join(TIMEOUT)
        actor.write(event="joined", alive=any(thread.is_alive() for thread in threads))


@part
def calls_back(actor: Actor) -> None:
    """A callback and a signal handler that call into ``ft``; ``late``: in the fourth call only after SIGUSR2."""
    with actor.init() as ft:
        seen: list[str] = []

        def attempt() -> None:
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

        def alarmed(*_: object) -> None:
            attempt()
            actor.write(event="alarmed")

        def alarm() -> None:
            while ft._plane.current is None:  # it is in its call soon
                time.sleep(0.002)
            os.kill(os.getpid(), signal.SIGALRM)

        told: list[int] = []
        ft.on_view_change(callback)
        signal.signal(signal.SIGALRM, alarmed)
        signal.signal(signal.SIGUSR2, lambda number, _: told.append(number))
        actor.together(ft, 3)
        if actor.given.get("late"):
            while not told:  # meanwhile the other one waits in its call, and its alarm goes off there
                time.sleep(0.005)
        else:
            threading.Thread(target=alarm).start()
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
        ft._plane.news.changes.append(ft.view)  # as if the view had changed
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
        closer.join(TIMEOUT)
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
