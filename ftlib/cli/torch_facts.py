"""What torch says of itself, of CUDA and of NCCL, as one line of JSON: ``python -m ftlib.cli.torch_facts``.

``ftlib doctor`` runs this in a process of its own, where a driver may hang or crash. No CUDA context is made: that would take
memory on a GPU, and fail where the GPU is full.
"""

from __future__ import annotations

import json
import warnings
from typing import Any

import torch
import torch.distributed


def torch_facts() -> dict[str, Any]:
    """Versions as text, empty where there is none."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        available = torch.cuda.is_available()
    return {
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda or "",
        "available": available,
        "why": " ".join(" ".join(str(warning.message).split()) for warning in said),
        "nccl": _nccl_version(),
        "reconfigure": torch.distributed.is_available() and hasattr(torch.distributed.ProcessGroup, "reconfigure"),
    }


def _nccl_version() -> str:
    """That of the library which torch has loaded."""
    if not hasattr(torch._C, "_nccl_version"):  # noqa: SLF001 - as torch.cuda.nccl asks: it fails without
        return ""
    from torch.cuda import nccl  # noqa: PLC0415 - only where torch was built with it

    major, minor, patch, *_ = nccl.version()  # type: ignore[no-untyped-call]
    return f"{major}.{minor}.{patch}"


if __name__ == "__main__":
    print(json.dumps(torch_facts()))
