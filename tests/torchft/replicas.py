"""Managers in threads of one process, over Gloo."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch import nn

from ftlib.torchft.ddp import DistributedDataParallel
from ftlib.torchft.manager import Manager
from ftlib.torchft.optim import OptimizerWrapper
from tests.harness.basics import free_ports

LONGEST = timedelta(seconds=30)


def settle(monkeypatch: Any, **variables: str) -> None:
    """The variables with which the managers of a test meet."""
    for name in ("TORCHFT_LIGHTHOUSE", "WORLD_SIZE", "RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    told = {
        "FTLIB_INTRODUCERS": f"127.0.0.1:{free_ports(1)[0]}",
        "FTLIB_AGENT": "thread",
        "FTLIB_BUCKET_MB": "0.00002",  # several buckets, some of which can be under way while backward runs
        "FTLIB_JOB": f"torchft-{threading.get_ident()}",
        **variables,
    }
    for name, value in told.items():
        monkeypatch.setenv(name, value)


def manager(founders: int, **arguments: Any) -> Manager:
    made: dict[str, Any] = {"pg": None, "load_state_dict": None, "state_dict": None, "min_replica_size": founders}
    return Manager(**{**made, "timeout": LONGEST, "quorum_timeout": LONGEST, "world_size": 1, **arguments})


class Replica:
    """One replica's program: a linear model, which starts from weights of its own."""

    def __init__(
        self,
        number: int,
        founders: int,
        wrapper: Callable[[Manager, nn.Module], nn.Module] = DistributedDataParallel,
        **arguments: Any,
    ) -> None:
        self.number = number
        self.model = nn.Linear(3, 2)
        nn.init.constant_(self.model.weight, float(number))
        nn.init.constant_(self.model.bias, float(number))
        self.sgd = torch.optim.SGD(self.model.parameters(), lr=0.5, momentum=0.5)
        self.manager = manager(founders, load_state_dict=self.load, state_dict=self.state, **arguments)
        self.wrapped = wrapper(self.manager, self.model)
        self.optimizer = OptimizerWrapper(self.manager, self.sgd)

    def state(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "sgd": self.sgd.state_dict()}

    def load(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.sgd.load_state_dict(state["sgd"])

    def step(self, value: float) -> float:
        """One step on a batch of this value; the gradient of the bias, as averaged."""
        self.optimizer.zero_grad()
        self.wrapped(torch.full((1, 3), value)).sum().backward()
        gradient = float(self.model.weight.grad[0, 0])
        self.optimizer.step()
        return gradient

    def weights(self) -> list[float]:
        return torch.cat([each.detach().flatten() for each in self.model.parameters()]).tolist()
