"""The interface of torchft on top of ftlib: managers, wrappers, process groups.

    from ftlib.torchft import DistributedDataParallel, Manager, Optimizer

There is no lighthouse and no manager server: a ``Manager`` is one worker of an ftlib job (``docs/torchft.md``). Nothing is
pickled. Names are imported on first use.
"""

from __future__ import annotations

import importlib
from typing import Any

_LAZY = {
    "DistributedDataParallel": ("ddp", "DistributedDataParallel"),
    "DistributedSampler": ("data", "DistributedSampler"),
    "Manager": ("manager", "Manager"),
    "Optimizer": ("optim", "OptimizerWrapper"),
    "ProcessGroupBabyNCCL": ("process_group", "ProcessGroupBabyNCCL"),
    "ProcessGroupBabyXCCL": ("process_group", "ProcessGroupBabyXCCL"),
    "ProcessGroupGloo": ("process_group", "ProcessGroupGloo"),
    "ProcessGroupNCCL": ("process_group", "ProcessGroupNCCL"),
    "ProcessGroupXCCL": ("process_group", "ProcessGroupXCCL"),
}
"""Names at the top: the module, and the name in it."""

__all__ = [
    "DistributedDataParallel",
    "DistributedSampler",
    "Manager",
    "Optimizer",
    "ProcessGroupBabyNCCL",
    "ProcessGroupBabyXCCL",
    "ProcessGroupGloo",
    "ProcessGroupNCCL",
    "ProcessGroupXCCL",
]


def __getattr__(name: str) -> Any:
    """Import a lazy name."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _LAZY[name]
    value = getattr(importlib.import_module(f".{module}", __name__), attribute)
    globals()[name] = value
    return value
