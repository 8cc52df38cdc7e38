"""A process of a replica that has several: a ``program`` of ``worker.Task``. Plain tensors, of other sizes in each shard.

Its orders: ``who``, the replica's number, of which each average tells; ``die``: a moment of ``MOMENTS`` at which the process
kills itself, once three replicas train; ``hangs``: the shard whose program stands still, once two do (the event ``hangs``).
Lines as those of ``learner``, and ``shard``, ``replica``. The end by ``ReplicaLost`` is the event ``lost``, with exit code 3.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import itertools
import math
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.utils.data import DataLoader

from ftlib import ConfigError, DiLoCo, DistributedDataParallel, ElasticSampler, FTLib, Optimizer, ReplicaLost
from ftlib.checkpoints.checkpoint import Taken
from ftlib.checkpoints.depot import DirectoryDepot
from ftlib.checkpoints.names import Part
from ftlib.core.engine.shard_agreement import ShardAgreement
from ftlib.core.plane.plane import Plane
from ftlib.data.elastic import LedgerRow
from tests.harness.worker import Lines, Task, joined, place
from tests.processes.jobs.replicas import REPLICAS

WIDTH = 64
SAMPLES = 240
EVERY = 10
"""Steps from one checkpoint to the next."""
ROOM = 3
"""Checkpoints for which a full disk has room."""
INNER = 4
"""Inner steps of ``diloco`` in a round."""
SPOILT = 6
MOMENTUM = 0.5
RATE = 0.5
"""Of its outer optimizer."""
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
    directory = task.given.get("checkpoints", "")
    if disk := task.given.get("disk"):
        _spoil(disk, ft)
    lines.write(event="resumed", at=ft.step, hash=hash(tuple(body.detach().tolist())))
    dying = _Dying(task)
    while True:
        time.sleep(chance.random() * task.pause)
        if task.given.get("hangs") == shard and ft.size > 1 and ft.step > 10:
            lines.write(event="hangs")
            threading.Event().wait()
        tells.grad = torch.zeros(REPLICAS)
        tells.grad[who] = 1.0
        body.grad = body.detach() * 0.01 + (who + 1)
        applied = bool(ft.allreduce_average(model))
        assert tells.grad is not None
        mask = sum(1 << int(number) for number in tells.grad.nonzero())
        if applied:
            optimizer.step()
        optimizer.zero_grad()
        if directory and ft.step % EVERY == 0:
            ft.save(directory)
        digest = hash(tuple(body.detach().tolist()))
        told: dict[str, Any] = {"who": mask, "hash": digest, "shard": shard, "replica": who, "applied": applied}
        lines.write(**told, **place(ft))
        dying.step(mask, ft)


def samples(task: Task, lines: Lines) -> int:
    """As ``train``, over samples, of which the process of shard 1 has workers that load ahead; a line for each step. ``used``:
    what its replica used up according to the ledger, ``who``: the replicas that used up anything, ``foreign``: what of its own
    it has never got from its loader. ``given``: ``delay``, then by ``DiLoCo``.

    Of each epoch that it saw from the beginning it says which samples were used up other than once (the event ``epoch``).
    """
    return _until_lost(task, lines, _train_samples)


def _train_samples(ft: FTLib, task: Task, lines: Lines) -> None:
    replica, delay = ft.settings.replica, task.given.get("delay")
    model = torch.nn.Linear(1, 1)
    inner = torch.optim.SGD(model.parameters(), lr=1e-3)
    sampler = ElasticSampler(range(SAMPLES), batch_size=3, seed=1)
    loader = DataLoader(range(SAMPLES), batch_sampler=sampler, num_workers=ft.settings.shard)  # type: ignore[arg-type]
    local = None
    if delay is not None:
        outer = functools.partial(torch.optim.SGD, lr=RATE)
        local = DiLoCo(ft, model, inner=inner, outer=outer, sync_every=INNER, delay=delay, weight="samples")
    ft.register_state(model=model if local is None else local, sampler=sampler)
    handed: set[tuple[int, int]] = set()
    chance, told = random.Random(os.getpid()), 0
    with contextlib.nullcontext() if local is None else local:
        for epoch in sampler.epochs(1000):
            for batch in loader:
                time.sleep(chance.random() * task.pause)
                handed.update((sampler.epoch, index) for index in batch.tolist())
                model(torch.ones(1, 1)).sum().backward()
                if local is not None or ft.allreduce_average(model):
                    inner.step()
                if ft.step > told:
                    told = ft.step
                    rows = [row for row in _rows(sampler) if row.step == told]
                    own = [(row.epoch, index) for row in rows if row.member == replica for index in row.indices]
                    who = sum(1 << number for number in {int(row.member.removeprefix("replica-")) for row in rows})
                    foreign = [each for each in own if each not in handed]
                    found = {"who": who, "used": sorted(index for _, index in own), "foreign": foreign}
                    lines.write(**found, replica=task.given["who"], **place(ft))
            if sampler.epoch == epoch:  # else it came in the middle of it
                times = Counter(index for row in sampler.ledger(epoch) for index in row.indices)
                lines.write(event="epoch", number=epoch, wrong=[index for index in range(SAMPLES) if times[index] != 1])


def _rows(sampler: ElasticSampler) -> list[LedgerRow]:
    """Those of the current epoch, and of the one before if it is known."""
    rows = list(sampler.ledger())
    with contextlib.suppress(ConfigError):
        rows += sampler.ledger(max((row.epoch for row in rows), default=0) - 1)
    return rows


def fsdp(task: Task, lines: Lines) -> int:
    """As ``train``, with a model that FSDP shards over the replica. ``given``: ``wrapped``, by ``DistributedDataParallel``."""
    with joined(task, lines) as ft:
        try:
            _train_fsdp(ft, task, lines)
        except ReplicaLost as reason:
            lines.write(event="lost", text=str(reason))
            return 3
    return 0


def _train_fsdp(ft: FTLib, task: Task, lines: Lines) -> None:
    shard, who = ft.settings.shard, task.given["who"]
    mesh = ft.device_mesh("cpu", (ft.settings.shards,), ("shard",))
    lines.write(event="mesh")
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, 2 * REPLICAS, bias=False)
    )
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    tells = torch.nn.Parameter(torch.zeros(REPLICAS))
    ft.register_state(model=model, optimizer=optimizer)
    parameters = [*model.parameters(), tells]
    while True:
        model(torch.randn(8, WIDTH)).pow(2).mean().backward()
        tells.grad = torch.zeros(REPLICAS)
        tells.grad[who] = 1.0
        applied = bool(ft.allreduce_average(parameters))
        assert tells.grad is not None
        mask = sum(1 << int(number) for number in tells.grad.nonzero())
        if applied:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        optimizer.zero_grad()
        digest = hash(tuple(model[0].weight.to_local().flatten().tolist()))
        told: dict[str, Any] = {"who": mask, "hash": digest, "shard": shard, "replica": who, "applied": applied}
        lines.write(**told, **place(ft))


class Telling(torch.nn.Module):
    """A sharded model, and a plain parameter with gradient 1 at this replica's place: the average tells who took part."""

    def __init__(self, sharded: torch.nn.Module, who: int) -> None:
        super().__init__()
        self.sharded = sharded
        self.tells = torch.nn.Parameter(torch.zeros(REPLICAS))
        self._who = who

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """The loss."""
        loss: torch.Tensor = self.sharded(batch).pow(2).mean() + self.tells[self._who]
        return loss


class Scaling(Telling):
    """And one weight for each feature, equal at all processes of the replica, of whose gradient each has a part of the sum."""

    def __init__(self, sharded: torch.nn.Sequential, who: int) -> None:
        super().__init__(sharded, who)
        self._mesh = sharded[0].weight.device_mesh
        self.scale = torch.nn.Parameter(DTensor.from_local(torch.ones(WIDTH), self._mesh, [Replicate()]))

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """The loss."""
        scaled = DTensor.from_local(batch, self._mesh, [Shard(0)]) * self.scale
        return super().forward(scaled.to_local())

    def differs(self) -> bool:
        """True if the processes of the replica have different ones."""
        assert isinstance(self.scale, DTensor)
        own = DTensor.from_local(self.scale.to_local().detach()[None], self._mesh, [Shard(0)])
        rows = own.full_tensor()
        return not torch.equal(rows[0], rows[1])


def _model(ft: FTLib) -> torch.nn.Sequential:
    """Two layers, by FSDP over this replica."""
    mesh = ft.device_mesh("cpu", (ft.settings.shards,), ("shard",))
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, 2 * REPLICAS, bias=False)
    )
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def wrapped(task: Task, lines: Lines) -> int:
    """As ``fsdp``, by ``DistributedDataParallel`` and ``Optimizer``."""
    return _until_lost(task, lines, _train_wrapped)


def _train_wrapped(ft: FTLib, task: Task, lines: Lines) -> None:
    shard, who = ft.settings.shard, task.given["who"]
    telling = Scaling(_model(ft), who)
    torch.manual_seed(shard)  # other batches at each process
    model = DistributedDataParallel(ft, telling)
    optimizer = Optimizer(ft, torch.optim.SGD([*telling.sharded.parameters(), telling.scale], lr=1e-3))
    ft.register_state(model=model, optimizer=optimizer)
    while True:
        optimizer.zero_grad()
        telling.tells.grad = None
        model(torch.randn(8, WIDTH)).backward()
        assert telling.tells.grad is not None
        mask = sum(1 << int(number) for number in telling.tells.grad.nonzero())
        applied = bool(optimizer.step())
        parts = telling.sharded[0].weight.to_local(), telling.scale.to_local()  # type: ignore[index,operator]
        digest = hash(tuple(number for part in parts for number in part.flatten().tolist()))
        if telling.differs():
            raise AssertionError("the processes of a replica have different weights")
        told: dict[str, Any] = {"who": mask, "hash": digest, "shard": shard, "replica": who, "applied": applied}
        lines.write(**told, **place(ft))


def diloco(task: Task, lines: Lines) -> int:
    """``DiLoCo`` over a model that FSDP shards; a line for each sync. ``given``: ``delay``, in inner steps, ``die``, and
    ``spoils``: the shard whose part of the outer step overflows in sync ``SPOILT``."""
    return _until_lost(task, lines, _train_diloco)


def _train_diloco(ft: FTLib, task: Task, lines: Lines) -> None:
    shard, who = ft.settings.shard, task.given["who"]
    telling = Telling(_model(ft), who)
    inner = torch.optim.SGD(telling.parameters(), lr=1e-3, momentum=0.9)
    outers: list[torch.optim.Optimizer] = []

    def outer(weights: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
        outers.append(torch.optim.SGD(weights, lr=RATE, momentum=MOMENTUM))
        return outers[0]

    local = DiLoCo(ft, telling, inner=inner, outer=outer, sync_every=INNER, delay=task.given.get("delay", 0))
    ft.register_state(model=local)
    own = dict(local.global_model.named_parameters())
    [tells] = [parameter for name, parameter in own.items() if name.endswith("tells")]
    dying = _Dying(task)

    def moves() -> torch.Tensor:
        found = outers[0].state[tells].get("momentum_buffer")
        return torch.zeros(REPLICAS) if found is None else found.detach().clone()

    with local:
        syncs, before = local.syncs, moves()
        while True:
            inner.zero_grad()
            telling(torch.randn(8, WIDTH)).backward()
            outers[0].param_groups[0]["lr"] = math.inf if syncs + 1 == SPOILT and task.given.get("spoils") == shard else RATE
            inner.step()
            if local.syncs == syncs:
                continue
            after = moves()  # the newest pseudo-gradient, and of those before a share: MOMENTUM
            mask = sum(1 << int(number) for number in ((after - MOMENTUM * before).abs() > 1e-4).nonzero())
            shared = [*own.values(), *(value["momentum_buffer"] for value in outers[0].state.values())]
            digest = hash(tuple(number for each in shared for number in each.flatten().tolist()))
            applied = local.syncs == syncs + 1 and bool(local.status)
            lines.write(who=mask, hash=digest, shard=shard, replica=who, applied=applied, **place(ft))
            syncs, before = local.syncs, after
            dying.step(mask, ft)


def _until_lost(task: Task, lines: Lines, train: Callable[[FTLib, Task, Lines], None]) -> int:
    with joined(task, lines) as ft:
        try:
            train(ft, task, lines)
        except ReplicaLost as reason:
            lines.write(event="lost", text=str(reason))
            return 3
    return 0


def number_of(replica: str) -> int:
    """The number of a replica that ``ftlib run`` has started, one of two: never the other's, and its own after six lives."""
    place, life = replica.split("-")
    return (int(place) + 2 * (int(life) - 1)) % REPLICAS


def _spoil(disk: str, ft: FTLib) -> None:
    """``slow``: from now on a checkpoint takes longer to write than it is to the next one; but for the first one of shard 1.
    ``full``: shard 1 can write no more than ``ROOM`` of them.
    """
    write, written = DirectoryDepot.write, itertools.count()

    def badly(itself: DirectoryDepot, taken: Taken, part: Part) -> int:
        number = next(written)
        if disk == "full" and ft.settings.shard == 1 and number >= ROOM:
            raise OSError(errno.ENOSPC, "spoilt")
        while disk == "slow" and (number or ft.settings.shard == 0) and ft.step < part.name.step + EVERY + EVERY // 2:
            time.sleep(0.01)
        return write(itself, taken, part)

    DirectoryDepot.write = badly  # type: ignore[method-assign]


class _Dying:
    """Ends this process at the moment of a call that ``task`` names, if it names one."""

    def __init__(self, task: Task) -> None:
        self._moment: str | None = task.given.get("die")

    def step(self, who: int, ft: FTLib) -> None:
        """A step was made by these replicas. The next call is the last one if they are three: so others have the state."""
        if self._moment is None or who.bit_count() < 3 or ft.step <= 10:
            return
        name, _, when = self._moment.partition(":")
        self._moment = None
        kind: type = ShardAgreement if name == "hold" else Plane
        method = getattr(kind, name)

        def last(itself: Any, *given: Any, **more: Any) -> Any:
            if when == "after":
                method(itself, *given, **more)
            os.kill(os.getpid(), signal.SIGKILL)

        setattr(kind, name, last)
