"""What an average costs beside Gloo's own ``all_reduce`` and ``div_`` on the same tensors.

    python -m benchmarks average                    # all sizes, 2 and 4 workers
    python -m benchmarks average --workers 2 --sizes 25MB --rounds 60

Each worker is a process. Both ways alternate in one run, and their order within a pair alternates too. Large tensors:
the median of the ratios ours / raw over the pairs, each timed at the slowest worker. 4 KB: the median of the paired
differences. The barrier before each measurement has a group of its own, so that neither side finds its threads awake.
"""

from __future__ import annotations

import argparse
import json
import socket
import statistics
import time
from datetime import timedelta
from typing import Any

from benchmarks.job import Job
from benchmarks.report import chosen, parser

SIZES = {"4KB": 4 << 10, "25MB": 25 * 10**6, "100MB": 100 * 10**6}
LIMITS = {"25MB": 1.10, "100MB": 1.15}
SMALL_LIMIT_MS = 0.3
PIECES = 60


def worker(args: argparse.Namespace) -> None:
    import torch
    import torch.distributed as dist

    from ftlib import FTLib

    torch.set_num_threads(args.threads)
    ft = FTLib.init(bucket_mb=args.bucket_mb, in_flight=args.in_flight)
    rank, size = ft.rank, ft.size
    store = dist.TCPStore("127.0.0.1", args.port, size, rank == 0)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=120))
    for name in args.sizes:
        for pieces in args.pieces:
            rounds = args.small_rounds if name == "4KB" else args.rounds
            times = measure(torch, dist, ft, SIZES[name] // 4, pieces, rounds)
            slowest = torch.tensor(times, dtype=torch.float64)
            dist.all_reduce(slowest, dist.ReduceOp.MAX)
            if rank == 0:
                print(json.dumps({"size": name, "pieces": pieces, "times": slowest.tolist()}), flush=True)
    dist.barrier()
    ft.close()
    dist.destroy_process_group()


def measure(torch, dist, ft, count, pieces, rounds):  # type: ignore[no-untyped-def]
    """Pairs (raw, ours) in seconds."""
    sizes = [count // pieces + (1 if i < count % pieces else 0) for i in range(pieces)]
    flat = torch.ones(count)
    tensors = list(flat.split(sizes)) if pieces > 1 else [flat]
    if pieces > 1:  # apart, as gradients are
        tensors = [tensor.clone() for tensor in tensors]
    size, start = ft.size, dist.new_group(backend="gloo")

    def raw() -> None:
        works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
        for tensor, work in zip(tensors, works, strict=True):
            work.wait()
            tensor.div_(size)

    def ours() -> None:
        assert ft.allreduce_average(tensors)

    def timed(function) -> float:  # type: ignore[no-untyped-def]
        dist.barrier(start)
        began = time.perf_counter()
        function()
        return time.perf_counter() - began

    for _ in range(3):
        timed(raw)
        timed(ours)
    pairs = []
    for number in range(rounds):
        if number % 2:
            mine, theirs = timed(ours), timed(raw)
        else:
            theirs, mine = timed(raw), timed(ours)
        pairs.append([theirs, mine])
    return pairs


def report(workers: int, found: dict[str, Any]) -> bool:
    """Print one case; whether it is within its bar."""
    raw = [pair[0] for pair in found["times"]]
    ratios = sorted(mine / theirs for theirs, mine in found["times"])
    differences = sorted((mine - theirs) * 1e3 for theirs, mine in found["times"])
    median, ratio = statistics.median(differences), statistics.median(ratios)
    what = "one flat tensor" if found["pieces"] == 1 else f"{found['pieces']} tensors"
    start = f"{workers} workers  {found['size']:>5}  {what:<15}  raw {statistics.median(raw) * 1e3:8.2f} ms"
    low, high = ratios[len(ratios) // 20], ratios[-1 - len(ratios) // 20]
    if found["size"] in LIMITS:
        limit = LIMITS[found["size"]]
        good = ratio <= limit
        print(f"{start}  ratio {ratio:.3f} (5-95 %: {low:.3f}-{high:.3f})  bar {limit:.2f}  {'ok' if good else 'MISSED'}")
    else:
        limit = SMALL_LIMIT_MS if workers <= 2 else max(SMALL_LIMIT_MS, 0.1 * statistics.median(raw) * 1e3)
        good = median <= limit
        low, high = differences[len(differences) // 20], differences[-1 - len(differences) // 20]
        print(
            f"{start}  paired difference {median:+.3f} ms (5-95 %: {low:+.3f}-{high:+.3f})  bar {limit:.2f}  "
            f"{'ok' if good else 'MISSED'}"
        )
    return good


def run(workers: int, arguments: list[str], settings: dict[str, str]) -> bool:
    """One job of so many processes."""
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    with Job(["-m", "benchmarks", "average", "--worker", "--port", str(port), *arguments], workers, settings) as job:
        job.ended(1200.0)
        lines = job.all_lines()
    good = [report(workers, line) for line in lines]  # all of them are shown
    return bool(good) and all(good)


def main() -> None:
    options = parser(__doc__, bucket_mb=16.0, in_flight=4)
    options.add_argument("--workers", type=int, nargs="+", default=[2, 4])
    options.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    options.add_argument("--rounds", type=int, default=40, help="pairs for the large sizes")
    options.add_argument("--small-rounds", type=int, default=2000, help="pairs for 4 KB")
    options.add_argument("--pieces", type=int, nargs="+", default=[1, PIECES])
    options.add_argument("--threads", type=int, default=1, help="torch threads a worker")
    options.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options.add_argument("--port", type=int, default=0, help=argparse.SUPPRESS)
    args = options.parse_args()
    if args.worker:
        worker(args)
        return
    arguments = ["--sizes", *args.sizes, "--rounds", str(args.rounds), "--small-rounds", str(args.small_rounds)]
    arguments += [
        "--pieces",
        *map(str, args.pieces),
        "--threads",
        str(args.threads),
        "--bucket-mb",
        str(args.bucket_mb),
        "--in-flight",
        str(args.in_flight),
    ]
    results = [run(workers, arguments, chosen(args.agent)) for workers in args.workers]
    raise SystemExit(0 if all(results) else 1)
