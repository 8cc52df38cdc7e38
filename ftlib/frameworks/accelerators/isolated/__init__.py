"""Accelerators whose communicators live in a process of their own, which can be killed.

Gloo stays in the training process. ``accelerator`` and ``communicator`` are the training process's side, ``process`` its handle
of a child, ``child`` the other side, ``records`` what they say to each other; ``memory`` and ``arena`` are what they share.
"""

from __future__ import annotations

import torch

from ftlib.errors import GroupError

from ..framework import HybridFramework
from ..managed import Deadlines
from .accelerator import IsolatedAccelerator
from .arena import CudaArena
from .cudart import load
from .memory import HostMemory

__all__ = ["IsolatedNcclFramework", "IsolatedRehearsalFramework"]

_DEADLINES = Deadlines(stuck=10.0)
"""A killed process that worked on a GPU may take a while to end; then it is stuck in the kernel, and so is its GPU."""


class IsolatedHybridFramework(HybridFramework):
    """Gloo in the training process, and an accelerator in a child."""

    def __init__(self, accelerator: IsolatedAccelerator, deadlines: Deadlines | None = None) -> None:
        super().__init__(accelerator, _DEADLINES if deadlines is None else deadlines, f"isolated:{accelerator.name}")
        self._isolated = accelerator

    @property
    def replaced(self) -> int:
        """See ``Framework``."""
        return self._isolated.replaced

    @property
    def pids(self) -> tuple[int, ...]:
        """Of the processes that this one has started and knows of now."""
        return self._isolated.pids


class IsolatedRehearsalFramework(IsolatedHybridFramework):
    """For tests. Faults are those of the environment variable ``FTLIB_REHEARSAL``, counted anew in each child."""

    def __init__(self, deadlines: Deadlines | None = None) -> None:
        made_by = "ftlib.frameworks.accelerators.rehearsal:rehearsed"
        super().__init__(IsolatedAccelerator("rehearsal", made_by, HostMemory()), deadlines)


class IsolatedNcclFramework(IsolatedHybridFramework):
    """NCCL in a child."""

    def __init__(self, deadlines: Deadlines | None = None) -> None:
        made_by = "ftlib.frameworks.accelerators.nccl.accelerator:NcclAccelerator"
        super().__init__(IsolatedAccelerator("nccl", made_by, CudaArena(load), _gpu), deadlines)


def _gpu() -> str:
    """The current GPU of this thread. GroupError if torch sees none."""
    if not torch.cuda.is_available():
        raise GroupError("torch sees no CUDA device")
    return f"cuda:{torch.cuda.current_device()}"
