"""Every name of torchft's that a program may import is there, and the shortest program of all runs with the imports changed.

What the names do is tested in the files beside this one, each of them by a call.
"""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
from torch import nn, optim

import ftlib.torchft
from ftlib.torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

from .replicas import settle

NAMES = {
    "": "DistributedDataParallel DistributedSampler Manager Optimizer ProcessGroupNCCL ProcessGroupXCCL ProcessGroupBabyNCCL "
    "ProcessGroupBabyXCCL ProcessGroupGloo",
    "checkpointing": "CheckpointTransport HTTPTransport",
    "checkpointing.http_transport": "HTTPTransport",
    "checkpointing.pg_transport": "PGTransport",
    "checkpointing.transport": "CheckpointTransport",
    "data": "DistributedSampler",
    "ddp": "DistributedDataParallel PureDistributedDataParallel",
    "futures": "future_timeout future_wait context_timeout stream_timeout",
    "local_sgd": "LocalSGD DiLoCo extract_local_tensor",
    "manager": "Manager WorldSizeMode ExceptionWithTraceback ManagerClient _ManagedWork",
    "optim": "OptimizerWrapper",
    "parameter_server": "ParameterServer",
    "process_group": "ProcessGroup ProcessGroupWrapper ProcessGroupGloo ProcessGroupNCCL ProcessGroupXCCL ProcessGroupBabyGloo "
    "ProcessGroupBabyNCCL ProcessGroupBabyXCCL ProcessGroupDummy ManagedProcessGroup FakeProcessGroupWrapper "
    "ErrorSwallowingProcessGroupWrapper reconfigure_with_store ReconfigureOptions create_store_client",
    "utils": "get_stream_context record_event synchronize",
    "work": "_DummyWork",
}
METHODS = (
    "start_quorum wait_quorum allreduce should_commit report_error errored wrap_future current_step batches_committed "
    "num_participants participating_rank is_participating state_dict load_state_dict _manager_state_dict "
    "register_state_dict_fn set_state_dict_fns allow_state_dict_read disallow_state_dict_read shutdown"
)


@pytest.mark.parametrize("module", NAMES)
def test_every_name_is_there(module: str) -> None:
    found = importlib.import_module(f"ftlib.torchft.{module}".rstrip("."))
    for name in NAMES[module].split():
        assert callable(getattr(found, name)), name
        assert name in found.__all__ or module in ("", "manager", "work"), name


def test_a_name_that_is_not_there_is_an_error() -> None:
    with pytest.raises(AttributeError, match="LighthouseServer"):
        _ = ftlib.torchft.LighthouseServer
    assert all(callable(getattr(Manager, name)) for name in METHODS.split())


def test_the_shortest_program(monkeypatch: pytest.MonkeyPatch) -> None:
    settle(monkeypatch)
    states: list[Any] = []
    manager = Manager(pg=ProcessGroupGloo(), load_state_dict=states.append, state_dict=dict, min_replica_size=1)
    model = DistributedDataParallel(manager, nn.Linear(2, 3))
    optimizer = Optimizer(manager, optim.AdamW(model.parameters()))
    try:
        for step in range(3):
            before = [parameter.clone() for parameter in model.parameters()]
            optimizer.zero_grad()
            model(torch.rand(2, 2)).sum().backward()
            optimizer.step()
            assert manager.current_step() == step + 1
            assert not any(torch.equal(*pair) for pair in zip(before, model.parameters(), strict=True))
    finally:
        manager.shutdown()
