"""Process groups of torch that can be aborted, and whose ranks may change (see docs/torchft.md)."""

from __future__ import annotations

from .backends import (
    ProcessGroupBaby,
    ProcessGroupBabyGloo,
    ProcessGroupBabyNCCL,
    ProcessGroupBabyXCCL,
    ProcessGroupGloo,
    ProcessGroupNCCL,
    ProcessGroupXCCL,
)
from .base import ProcessGroup
from .meeting import ReconfigureOptions, create_store_client, reconfigure_with_store
from .meeting import rendezvous as _rendezvous
from .stand_ins import (
    ErrorSwallowingProcessGroupWrapper,
    FakeProcessGroupWrapper,
    ManagedProcessGroup,
    ProcessGroupDummy,
    _ErrorSwallowingWork,
)
from .wrapper import ProcessGroupWrapper

__all__ = [
    "ErrorSwallowingProcessGroupWrapper",
    "FakeProcessGroupWrapper",
    "ManagedProcessGroup",
    "ProcessGroup",
    "ProcessGroupBaby",
    "ProcessGroupBabyGloo",
    "ProcessGroupBabyNCCL",
    "ProcessGroupBabyXCCL",
    "ProcessGroupDummy",
    "ProcessGroupGloo",
    "ProcessGroupNCCL",
    "ProcessGroupWrapper",
    "ProcessGroupXCCL",
    "ReconfigureOptions",
    "_ErrorSwallowingWork",
    "_rendezvous",
    "create_store_client",
    "reconfigure_with_store",
]
