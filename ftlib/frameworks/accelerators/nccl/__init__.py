"""NCCL beside Gloo: ``framework="nccl"``. Not yet run with more than one GPU."""

from __future__ import annotations

from ..framework import HybridFramework
from ..managed import Deadlines
from .accelerator import NcclAccelerator
from .library import native_reconfigure

__all__ = ["NcclFramework", "native_reconfigure"]


class NcclFramework(HybridFramework):
    """Gloo, with NCCL for large buckets on GPUs. Without a GPU, or without NCCL, everything goes by Gloo."""

    def __init__(self, deadlines: Deadlines | None = None) -> None:
        super().__init__(NcclAccelerator(), deadlines)
