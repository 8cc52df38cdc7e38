"""Fault-tolerant data-parallel training without a master: the public names of the package.

    from ftlib import FTLib

    ft = FTLib.init()
    ft.register_state(model=model, optimizer=optimizer)
    for batch in loader:
        loss_fn(model(batch)).backward()
        if ft.allreduce_average(model):
            optimizer.step()
        optimizer.zero_grad()

Names that need torch are imported on first use, so that the launcher starts quickly.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .errors import (
    AgentFailedError,
    ConfigError,
    Excluded,
    FTLibError,
    GroupError,
    InjectedFault,
    JoinError,
    QuorumLost,
    RebuildTimeout,
    ReplicaLost,
    StateLost,
    StepMismatch,
    WorkerFailedError,
)
from .status import Status

if TYPE_CHECKING:
    from .collective.channel import Channel
    from .collective.collective import Collective
    from .collective.group import CollectiveGroup
    from .collective.works import AsyncChannelWork, AsyncCollWork, AsyncFuncWork, AsyncWork
    from .core.plane.ranks import RankAssignScheme
    from .core.tensors.compression.compression import Compression
    from .core.tensors.compression.power_sgd import PowerSGD
    from .data.distributed_sampler import DistributedSampler
    from .data.elastic_sampler import ElasticSampler
    from .data.streams.stream import ElasticStream
    from .ftlib import FTLib
    from .launch.launcher import Launch, Launcher
    from .launch.result import LaunchResult
    from .links.errors import (
        CollectiveError,
        CollectiveTimeout,
        GroupClosed,
        LinkBroken,
        Mismatch,
        PeerLost,
        Refused,
    )
    from .train.data_parallel import DistributedDataParallel
    from .train.faults import FaultInjector
    from .train.local_sgd import DiLoCo, LocalSGD
    from .train.optimizer import Optimizer

__all__ = [
    "AgentFailedError",
    "AsyncChannelWork",
    "AsyncCollWork",
    "AsyncFuncWork",
    "AsyncWork",
    "Channel",
    "Collective",
    "CollectiveError",
    "CollectiveGroup",
    "CollectiveTimeout",
    "Compression",
    "ConfigError",
    "DiLoCo",
    "DistributedDataParallel",
    "DistributedSampler",
    "ElasticSampler",
    "ElasticStream",
    "Excluded",
    "FTLib",
    "FTLibError",
    "FaultInjector",
    "GroupClosed",
    "GroupError",
    "InjectedFault",
    "JoinError",
    "Launch",
    "LaunchResult",
    "Launcher",
    "LinkBroken",
    "LocalSGD",
    "Mismatch",
    "Optimizer",
    "PeerLost",
    "PowerSGD",
    "QuorumLost",
    "RankAssignScheme",
    "RebuildTimeout",
    "Refused",
    "ReplicaLost",
    "StateLost",
    "Status",
    "StepMismatch",
    "WorkerFailedError",
    "consensus",
]

_LAZY = {
    "AsyncChannelWork": "collective.works",
    "AsyncCollWork": "collective.works",
    "AsyncFuncWork": "collective.works",
    "AsyncWork": "collective.works",
    "Channel": "collective.channel",
    "Collective": "collective.collective",
    "CollectiveError": "links.errors",
    "CollectiveGroup": "collective.group",
    "CollectiveTimeout": "links.errors",
    "Compression": "core.tensors.compression.compression",
    "DiLoCo": "train.local_sgd",
    "DistributedDataParallel": "train.data_parallel",
    "DistributedSampler": "data.distributed_sampler",
    "ElasticSampler": "data.elastic_sampler",
    "ElasticStream": "data.streams.stream",
    "FTLib": "ftlib",
    "FaultInjector": "train.faults",
    "GroupClosed": "links.errors",
    "Launch": "launch.launcher",
    "LaunchResult": "launch.result",
    "Launcher": "launch.launcher",
    "LinkBroken": "links.errors",
    "LocalSGD": "train.local_sgd",
    "Mismatch": "links.errors",
    "Optimizer": "train.optimizer",
    "PeerLost": "links.errors",
    "PowerSGD": "core.tensors.compression.power_sgd",
    "RankAssignScheme": "core.plane.ranks",
    "Refused": "links.errors",
}


def __getattr__(name: str) -> Any:
    """Import a lazy name."""
    if name == "consensus":
        return importlib.import_module(".consensus", __name__)
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_LAZY[name]}", __name__), name)
    globals()[name] = value
    return value
