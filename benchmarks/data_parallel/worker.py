"""One worker of a run: ``python -m benchmarks.data_parallel.worker RANK SIZE CASE [NAMESPACE]``; lines of JSON on stdout.

Where there are several loops, their steps come in random order, drawn anew in each round and alike at all workers. A barrier of
a group of its own is before each step, so that all begin at the same time and no side finds its threads awake.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import sys
import time
from collections.abc import Iterator
from typing import Any

import psutil
import torch
import torch.distributed as dist

from benchmarks.data_parallel.loops import FEWEST, LIMIT, Case, Loop, build, needs_ftlib
from tests.harness.namespace import enter


def main() -> None:
    rank, size = int(sys.argv[1]), int(sys.argv[2])
    case = Case(**json.loads(sys.argv[3]))
    if len(sys.argv) > 4:
        enter(sys.argv[4])
    torch.set_num_threads(1)
    with _member(case) as ft, _member_beside(case, rank) as beside:
        if case.loops != ["ours"]:
            host, _, port = case.store.rpartition(":")
            store = dist.TCPStore(host, int(port), size, rank == 0)
            dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=LIMIT)
        before = _resident()
        loops = {name: build(name, case, beside if name == "blocking" else ft, rank) for name in case.loops}
        for member, names in ((ft, ("ours", "managed")), (beside, ("blocking",))):
            own = [loops[name] for name in names if name in loops]
            if own:
                member.register_state(model=[loop.model for loop in own], optimizer=[loop.optimizer for loop in own])
        measured = _measure(case, loops)
        _tell(rank=rank, **measured, before=before, after=_resident(), agent=_children())
        if dist.is_initialized():
            dist.barrier()
            dist.destroy_process_group()


@contextlib.contextmanager
def _member(case: Case) -> Iterator[Any]:
    """A member for our wrapper."""
    if not needs_ftlib(case):  # then it is not even imported: it would count as memory
        yield None
        return
    from ftlib import FTLib

    with FTLib.init(config={}) as ft:
        yield ft


@contextlib.contextmanager
def _member_beside(case: Case, rank: int) -> Iterator[Any]:
    """A member of a second job, for averages after backward: an open call begins early only after another one like it."""
    if "blocking" not in case.loops:
        yield None
        return
    from ftlib import FTLib

    first = os.environ["FTLIB_INTRODUCERS"].partition(",")[0].rpartition(":")[0]
    own = os.environ.get("FTLIB_BIND", f"{first}:0").rpartition(":")[0]
    for name in ("FTLIB_BIND", "FTLIB_SOCKET_FDS"):
        os.environ.pop(name, None)
    bind = f"{own}:{case.beside if rank == 0 else 0}"
    with FTLib.init(config={}, job="benchmark-beside", introducers=[f"{first}:{case.beside}"], bind=bind) as ft:
        yield ft


def _measure(case: Case, loops: dict[str, Loop]) -> dict[str, Any]:
    """Of each step of each loop: seconds, seconds of the processor on this thread, and page faults."""
    start = dist.new_group(backend="gloo") if len(loops) > 1 else None
    chance, names = random.Random(case.seed), list(loops)
    found: dict[str, dict[str, list[float]]] = {kind: {name: [] for name in names} for kind in ("seconds", "busy", "faults")}

    def take_turns() -> None:
        chance.shuffle(names)
        for name in names:
            if start is not None:
                dist.barrier(start)
            faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            busy, began = time.thread_time(), time.perf_counter()
            loops[name].step()
            found["seconds"][name].append(time.perf_counter() - began)
            found["busy"][name].append(time.thread_time() - busy)
            found["faults"][name].append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults)

    for _ in range(case.warm):
        began = time.monotonic()
        take_turns()
    rounds = case.rounds or _rounds(case.seconds, time.monotonic() - began)
    for _ in range(rounds):
        take_turns()
    return {kind: {name: each[case.warm :] for name, each in values.items()} for kind, values in found.items()}


def _rounds(seconds: float, one: float) -> int:
    """How many take so long, where the last ones took ``one`` each; the same at all workers."""
    slowest = torch.tensor([one], dtype=torch.float64)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return max(FEWEST, int(seconds / slowest.item()))


def _resident() -> dict[str, float]:
    """MB that this process has now and had at most."""
    with open("/proc/self/status", encoding="ascii") as status:  # noqa: PTH123
        rows = dict(line.split(":", 1) for line in status)
    return {name: int(rows[name].split()[0]) * 1024 / 1e6 for name in ("VmRSS", "VmHWM")}


def _children() -> float:
    """MB of the processes that it has started: ours has its agent there."""
    return sum(float(child.memory_info().rss) for child in psutil.Process().children(recursive=True)) / 1e6


def _tell(**values: Any) -> None:
    print(json.dumps(values), flush=True)


if __name__ == "__main__":
    main()
