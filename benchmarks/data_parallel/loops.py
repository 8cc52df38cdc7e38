"""One step of training, by each of the systems that are compared. All have a copy of the same model, and SGD."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from benchmarks.data_parallel.models import MODELS

LIMIT = timedelta(seconds=120)
FEWEST = 10


@dataclass(frozen=True)
class Case:
    """What all workers of one run do, as JSON."""

    model: str
    loops: list[str]
    """Names in ``LOOPS``, with a number behind where one is there twice. A single one is not synchronized between steps."""
    views: bool = True
    rounds: int = 0
    """Steps of each loop that are measured; 0: as many as take ``seconds``, at least ``FEWEST``."""
    seconds: float = 20.0
    warm: int = 5
    """Steps of each loop before: buckets are laid out anew after the first."""
    bucket_mb: float | None = None
    """None: what both have by default, 25 MB and the first of 1 MB."""
    seed: int = 1
    store: str = ""
    """``host:port`` at which the workers meet for torch's groups."""
    lighthouse: str = ""
    """Address of torchft's."""
    beside: int = 7413
    """A free port on the first worker's host, for the second job of ``blocking``."""


def needs_ftlib(case: Case) -> bool:
    """Whether any of its loops is ours."""
    return any(_kind(name) in ("ours", "managed") for name in case.loops)


class Loop:
    """Forward, backward, optimizer: nothing is averaged."""

    def __init__(self, case: Case, _ft: Any, rank: int) -> None:
        kind = MODELS[case.model]
        torch.manual_seed(case.seed)
        self.model = kind.build()
        torch.manual_seed(case.seed * 100 + rank)
        self.inputs = torch.randn(kind.shape)
        self.optimizer: Any = torch.optim.SGD(self.model.parameters(), lr=1e-4)
        self.wrapped: nn.Module = self.model

    def step(self) -> None:
        """One."""
        self.optimizer.zero_grad(set_to_none=True)
        self.wrapped(self.inputs).square().mean().backward()
        self.optimizer.step()


class Torch(Loop):
    """torch's own DistributedDataParallel."""

    def __init__(self, case: Case, ft: Any, rank: int) -> None:
        super().__init__(case, ft, rank)
        self.wrapped = nn.parallel.DistributedDataParallel(
            self.model, bucket_cap_mb=case.bucket_mb, gradient_as_bucket_view=case.views
        )


class Ours(Loop):
    """ftlib's wrapper; the program looks at its status."""

    def __init__(self, case: Case, ft: Any, rank: int) -> None:
        super().__init__(case, ft, rank)
        sizes = {} if case.bucket_mb is None else {"bucket_mb": case.bucket_mb, "first_bucket_mb": case.bucket_mb}
        make = importlib.import_module("ftlib").DistributedDataParallel
        self.wrapped = make(ft, self.model, gradient_as_bucket_view=case.views, **sizes)

    def step(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        self.wrapped(self.inputs).square().mean().backward()
        assert self.wrapped.status
        self.optimizer.step()


class Managed(Ours):
    """ftlib's wrapper and its optimizer."""

    def __init__(self, case: Case, ft: Any, rank: int) -> None:
        super().__init__(case, ft, rank)
        self.optimizer = importlib.import_module("ftlib").Optimizer(ft, self.optimizer)

    step = Loop.step


class Blocking(Loop):
    """An average after backward."""

    def __init__(self, case: Case, ft: Any, rank: int) -> None:
        super().__init__(case, ft, rank)
        self._ft = ft

    def step(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        self.model(self.inputs).square().mean().backward()
        assert self._ft.allreduce_average(self.model)
        self.optimizer.step()


class Torchft(Loop):
    """torchft's DistributedDataParallel and optimizer, each worker a replica of its own."""

    def __init__(self, case: Case, ft: Any, rank: int) -> None:
        super().__init__(case, ft, rank)
        torchft: Any = importlib.import_module("torchft")
        self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._manager = torchft.Manager(
            pg=torchft.ProcessGroupGloo(timeout=LIMIT),
            state_dict=self.model.state_dict,
            load_state_dict=self.model.load_state_dict,
            min_replica_size=dist.get_world_size(),
            timeout=LIMIT,
            quorum_timeout=LIMIT,
            connect_timeout=LIMIT,
            rank=0,
            world_size=1,
            store_addr="127.0.0.1",
            store_port=self._store.port,
            lighthouse_addr=case.lighthouse,
            replica_id=f"r{rank}",
            hostname="127.0.0.1",
        )
        more = {} if case.bucket_mb is None else {"bucket_cap_mb": case.bucket_mb}
        self.wrapped = torchft.DistributedDataParallel(self._manager, self.model, gradient_as_bucket_view=case.views, **more)
        self.optimizer = torchft.Optimizer(self._manager, self.optimizer)
        self._steps = 0

    def step(self) -> None:
        super().step()
        self._steps += 1
        assert self._manager.current_step() == self._steps, "torchft has not committed a step"


LOOPS: dict[str, Callable[[Case, Any, int], Loop]] = {
    "local": Loop,
    "torch": Torch,
    "ours": Ours,
    "managed": Managed,
    "blocking": Blocking,
    "torchft": Torchft,
}


def build(name: str, case: Case, ft: Any, rank: int) -> Loop:
    """The loop of that name."""
    return LOOPS[_kind(name)](case, ft, rank)


def _kind(name: str) -> str:
    return name.rstrip("0123456789")
