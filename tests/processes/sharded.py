"""A process of a replica that has several: a ``program`` of ``worker.Task``. Plain tensors, of other sizes in each shard.

Its orders: ``who``, the replica's number, of which each average tells; ``die``: a moment of ``MOMENTS`` at which the process
kills itself, once three replicas train. Lines as those of ``learner``, and ``shard``, ``replica``. The end by ``ReplicaLost``
is the event ``lost``, with exit code 3.
"""

from __future__ import annotations

import os
import random
import signal
import time
from typing import Any

import torch

from ftlib import FTLib, ReplicaLost
from ftlib.core.engine.shard_agreement import ShardAgreement
from ftlib.core.plane.plane import Plane
from tests.harness.worker import Lines, Task, joined, place

REPLICAS = 12
"""Whose numbers a float32 holds exactly, as a sum of powers."""
MOMENTS = ("hold:before", "hold:after", "finish:before", "finish:after", "enter")


def train(task: Task, lines: Lines) -> int:
    """Train until it is asked to end, or its replica is lost."""
    with joined(task, lines) as ft:
        try:
            _train(ft, task, lines)
        except ReplicaLost as reason:
            lines.write(event="lost", text=str(reason))
            return 3
    return 0


def _train(ft: FTLib, task: Task, lines: Lines) -> None:
    shard, who = ft.settings.shard, task.given["who"] if "who" in task.given else number_of(ft.settings.replica)
    chance = random.Random(os.getpid())
    torch.manual_seed(shard)
    tells = torch.nn.Parameter(torch.zeros(REPLICAS))
    body = torch.nn.Parameter(torch.randn(500 * (shard + 1)))
    model = torch.nn.ParameterList([tells, body])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    ft.register_state(model=model, optimizer=optimizer)
    if task.given.get("die"):
        _dies(ft, task.given["die"])
    while True:
        time.sleep(chance.random() * task.pause)
        tells.grad = torch.zeros(REPLICAS)
        tells.grad[who] = 1.0
        body.grad = body.detach() * 0.01 + (who + 1)
        applied = bool(ft.allreduce_average(model))
        assert tells.grad is not None
        mask = sum(1 << int(number) for number in tells.grad.nonzero())
        if applied:
            optimizer.step()
        optimizer.zero_grad()
        digest = hash(tuple(body.detach().tolist()))
        told: dict[str, Any] = {"who": mask, "hash": digest, "shard": shard, "replica": who, "applied": applied}
        lines.write(**told, **place(ft))


def number_of(replica: str) -> int:
    """The number of a replica that ``ftlib run`` has started, one of two: another one each time."""
    place, life = replica.split("-")
    return int(place) + 2 * (int(life) - 1)


def _dies(ft: FTLib, moment: str) -> None:
    """End this process at ``moment`` of a later call."""
    name, _, when = moment.partition(":")
    kind: type = ShardAgreement if name == "hold" else Plane
    method = getattr(kind, name)

    def watched(self: Any, *given: Any, **more: Any) -> Any:
        if when != "after" and ft.size > 2 and ft.step > 10:
            os.kill(os.getpid(), signal.SIGKILL)
        result = method(self, *given, **more)
        if when == "after" and ft.size > 2 and ft.step > 10:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(kind, name, watched)
