"""Parts of workers that are given notice: what they do when it comes is in their orders."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from consensus import View
from ftlib import FTLib
from tests.processes.stage.actor import Actor
from tests.processes.stage.parts import part


class Numbers(Dataset[torch.Tensor]):
    """Plenty of samples."""

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((4,), float(index))


@part
def leaver(actor: Actor) -> None:
    """Trains until its notice.

    ``rest``: seconds of work before each call. ``loaders``: processes that read its data. ``looks``: at ``should_leave``, and
    saves there. ``save``: a directory to which it saves after each step. ``thread``: does all that in another thread than the
    main one. ``handler``: ``earlier`` or ``later``, of its own. ``lingers``: seconds in its callback of view changes, from the
    second on. ``state``: elements of it. ``group``: a process group of its own.
    """
    given = actor.given
    if given.get("group"):
        os.setpgid(0, 0)
    found: list[FTLib] = []

    def handle(number: int, frame: object) -> None:
        actor.write(event="handled")
        found[0].drain("the program's own handler")

    if given.get("handler") == "earlier":
        signal.signal(signal.SIGTERM, handle)
    actor.write(event="starting")
    with actor.init() as ft:
        found.append(ft)
        if given.get("handler") == "later":
            signal.signal(signal.SIGTERM, handle)
        if given.get("thread"):
            thread = threading.Thread(target=_train, args=(actor, ft))
            thread.start()
            thread.join()
        else:
            _train(actor, ft)
    actor.write(event="after the loop")


def _train(actor: Actor, ft: FTLib) -> None:
    given = actor.given
    model = nn.Linear(given.get("state", 100), 10)
    optimizer = torch.optim.Adam(model.parameters())
    ft.register_state(model=model, optimizer=optimizer)
    views: list[View] = []

    def changed(view: View) -> None:
        views.append(view)
        if len(views) > 1 and "lingers" in given:
            actor.write(event="lingers")
            time.sleep(given["lingers"])  # where the notice is to come

    ft.on_view_change(changed)
    for batch in _batches(given):
        actor.write(event="works", step=ft.step)
        _work(given.get("rest", 0.002))
        actor.write(event="calls", step=ft.step)
        model(torch.zeros(model.in_features)).sum().backward()
        status = ft.allreduce_average(model)
        if status:
            optimizer.step()
        actor.told(ft, status, float(batch.numel()))
        actor.write(event="counts", redone=ft._plane.counters.redone)
        if given.get("save"):
            ft.save(given["save"])
        if given.get("looks") and ft.should_leave:
            ft.save(given["looks"])
            actor.write(event="own point", step=ft.step)
            break


def _work(seconds: float) -> None:
    """A forward pass that holds the interpreter, as far as signals are concerned."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        time.sleep(min(left, 0.01))


def _batches(given: dict[str, Any]) -> Iterator[torch.Tensor]:
    if "loaders" in given:
        yield from DataLoader(Numbers(), batch_size=8, num_workers=given["loaders"], persistent_workers=True)
    while True:
        yield torch.zeros(8, 4)
