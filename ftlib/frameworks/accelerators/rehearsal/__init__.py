"""A rehearsal of NCCL: ``framework="rehearsal"`` takes CPU tensors for a GPU's, behaves like NCCL, and has chosen faults."""

from __future__ import annotations

from ..framework import HybridFramework
from ..managed import Deadlines
from .accelerator import RehearsedAccelerator
from .faults import Faults

__all__ = ["Faults", "RehearsalFramework", "rehearsed"]


def rehearsed() -> RehearsedAccelerator:
    """One with the faults of the environment variable ``FTLIB_REHEARSAL``."""
    return RehearsedAccelerator(Faults.from_environment())


class RehearsalFramework(HybridFramework):
    """Gloo, with an accelerator that is none."""

    def __init__(self, faults: Faults | None = None, deadlines: Deadlines | None = None) -> None:
        """``faults``: by default those of the environment variable ``FTLIB_REHEARSAL``."""
        super().__init__(RehearsedAccelerator(Faults.from_environment() if faults is None else faults), deadlines)
