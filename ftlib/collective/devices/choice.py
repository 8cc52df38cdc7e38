"""Which way tensors on GPUs take between two members, and why. Both ends come to the same answer, from what both have said."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from ...links.meeting import whereabouts

Facts = Mapping[str, Any]
"""Of one process, empty while it has not used a GPU. ``where``: its kernel and network; ``gpus``: the UUIDs of those it sees;
``current``: that of the one it uses; ``nccl``: the version, "" for none.
"""


@dataclass(frozen=True, slots=True)
class Choice:
    """``way``: "staging" (through host memory), "ipc" or "nccl"."""

    way: str
    why: str


def facts() -> Facts:
    """Of this process, as far as it has used a GPU: asking would take one otherwise."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return {}
    gpus = [str(torch.cuda.get_device_properties(number).uuid) for number in range(torch.cuda.device_count())]
    version = ".".join(map(str, torch.cuda.nccl.version())) if dist.is_nccl_available() else ""  # type: ignore[no-untyped-call]
    return {"where": whereabouts(), "gpus": gpus, "current": gpus[torch.cuda.current_device()], "nccl": version}


def known(said: Any) -> Facts:
    """What a peer has said; a TypeError or KeyError if it makes no sense."""
    if not said:
        return {}
    words = {key: str(said[key]) for key in ("where", "current", "nccl")}
    return {**words, "gpus": [str(each) for each in said["gpus"]]}


def choose(here: Facts, there: Facts) -> Choice:
    """The way, symmetric in both."""
    if not here or not there:
        return Choice("staging", "one of the two had not used a GPU when their stream began")
    if here["where"] and here["where"] == there["where"]:
        if here["current"] in there["gpus"] and there["current"] in here["gpus"]:
            return Choice("ipc", "both are on one host, and each sees the other's GPU")
        return Choice("staging", "both are on one host, and one does not see the other's GPU: see CUDA_VISIBLE_DEVICES")
    if not here["nccl"] or here["nccl"] != there["nccl"]:
        return Choice("staging", f"NCCL here is {here['nccl'] or 'missing'}, and there {there['nccl'] or 'missing'}")
    return Choice("nccl", f"both have NCCL {here['nccl']}")
