"""Averages with in-process Gloo and another framework side by side; for ``isolated`` and ``accelerator``.

2 workers, each a member of two jobs, one a framework. Both jobs average the same tensors in turns, and the order within a
pair alternates. Time: at the slowest worker. 25 MB, in one tensor and in 60: the median of the ratios. 4 KB: the median of
the paired differences.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import statistics
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.job import Job
from benchmarks.report import Report, spread
from ftlib import FTLib
from ftlib.frameworks.accelerators.rehearsal.faults import VARIABLE

PLAIN = "gloo"
SIZES = {"4KB": 4 << 10, "25MB": 25 * 10**6}
PIECES = {"4KB": (1,), "25MB": (1, 60)}
RATIO = 1.10
SMALL_MS = 0.5
LIMIT = 900.0
"""Seconds for all of them."""


def paired(
    report: Report, framework: str, sizes: Sequence[str], rounds: int, small_rounds: int, settings: Mapping[str, Any]
) -> None:
    """Rows for all sizes, with ``framework`` beside plain Gloo. ``settings``: see ``Job``."""
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2)]
        ports = [str(each.getsockname()[1]) for each in held]
    words = ["--framework", framework, "--port", ports[0], "--store", ports[1], "--sizes", *sizes]
    words += ["--rounds", str(rounds), "--small-rounds", str(small_rounds)]
    with Job(["-m", "benchmarks", "pairs", *words], 2, settings) as job:
        job.ended(LIMIT)
        lines = job.all_lines()
    for line in lines:
        plain, other = ([pair[side] for pair in line["times"]] for side in (0, 1))
        what = f"{line['size']} in {line['pieces']} tensors" if line["pieces"] > 1 else f"{line['size']}, one tensor"
        report.row(f"average, {what}: {PLAIN}, {framework}", f"{spread(plain)}, {spread(other)}")
        if line["size"] == "4KB":
            differences = sorted((own - raw) * 1e3 for raw, own in line["times"])
            middle, text, limit = statistics.median(differences), "paired difference, ms", SMALL_MS
        else:
            differences = sorted(own / raw for raw, own in line["times"])
            middle, text, limit = statistics.median(differences), "ratio", RATIO
        ends = differences[len(differences) // 20], differences[-1 - len(differences) // 20]
        report.row(
            f"... {text} (5-95 %)", f"{middle:.2f} [{ends[0]:.2f} - {ends[1]:.2f}]", bar=f"<= {limit:g}", good=middle <= limit
        )


def main() -> int:
    """One of two: a line of JSON for each case."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--framework", required=True)
    options.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    for name in ("port", "store", "rounds", "small-rounds"):
        options.add_argument(f"--{name}", type=int, required=True)
    args = options.parse_args()
    torch.set_num_threads(1)
    with contextlib.ExitStack() as stack:
        plain = stack.enter_context(FTLib.init(framework=PLAIN))
        rank = plain.rank
        own = f"127.0.0.1:{args.port if rank == 0 else 0}"
        settings: dict[str, Any] = {"introducers": [f"127.0.0.1:{args.port}"], "initial_size": 2, "bind": own}
        for name in list(os.environ):
            if name.startswith("FTLIB_") and name not in ("FTLIB_SECRET", VARIABLE):
                del os.environ[name]
        other = stack.enter_context(FTLib.init(framework=args.framework, job="benchmark-beside", **settings))
        store = dist.TCPStore("127.0.0.1", args.store, 2, rank == 0)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=120))
        for size in args.sizes:
            for pieces in PIECES[size]:
                rounds = args.small_rounds if size == "4KB" else args.rounds
                times = torch.tensor(_measured(plain, other, SIZES[size] // 4, pieces, rounds), dtype=torch.float64)
                dist.all_reduce(times, dist.ReduceOp.MAX)
                if rank == 0:
                    print(json.dumps({"size": size, "pieces": pieces, "times": times.tolist()}), flush=True)
        dist.barrier()
    dist.destroy_process_group()
    return 0


def _measured(plain: FTLib, other: FTLib, count: int, pieces: int, rounds: int) -> list[list[float]]:
    """Pairs (plain, other) in seconds."""
    tensors = [part.clone() for part in torch.ones(count).tensor_split(pieces)]

    def timed(ft: FTLib) -> float:
        dist.barrier()  # of a group of its own, so that neither side finds its threads awake
        began = time.perf_counter()
        assert ft.allreduce_average(tensors)
        return time.perf_counter() - began

    for _ in range(5):
        timed(plain)
        timed(other)
    pairs = []
    for number in range(rounds):
        if number % 2:
            second = timed(other)
            pairs.append([timed(plain), second])
        else:
            pairs.append([timed(plain), timed(other)])
    return pairs
