"""Averages beside what a program would write by hand with torch.distributed, pair by pair; for ``gloo`` and for ``nccl``.

Both sides reduce the same tensors on the device, in turns, and the order within a pair alternates. By hand: gather the tensors
in one row, ``all_reduce`` it, divide it, and copy the parts back; with Gloo the row is pinned memory of the CPU. A side's time
ends when the device has done everything, at the slowest rank.
"""

from __future__ import annotations

import json
import socket
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.gpu.ranks import LIMIT, RANKS, beside, options
from benchmarks.gpu.stand import Bench, Stand
from benchmarks.job import Job
from benchmarks.report import spread
from ftlib import FTLib

CASES = {"25 MB in 60 tensors": (25 * 10**6, 60), "4 KB": (4 << 10, 1)}
RATIOS = {"gloo": 1.10, "nccl": 1.15}
SMALL_MS, HOST_US = 0.5, 300.0
GLOO_ROWS = {"gloo, 2 ranks, 25 MB in 60 tensors, beside the same by hand: ratio": f"<= {RATIOS['gloo']:g}"}
NCCL_ROWS = {
    "nccl, 2 ranks, 25 MB in 60 tensors, beside the same by hand: ratio": f"<= {RATIOS['nccl']:g}",
    "... processor time of the calling thread beyond theirs": f"<= +{HOST_US:g} us",
    "... 4 KB: paired difference": f"<= +{SMALL_MS:g} ms",
}
WARM = 5


def by_gloo(bench: Bench) -> None:
    """Rows."""
    _rows(bench, "gloo", "gloo", "gloo", ["25 MB in 60 tensors"])


def by_nccl(bench: Bench) -> None:
    """Rows."""
    _rows(bench, "nccl", bench.stand.accelerated, bench.stand.backend, list(CASES))


def _rows(bench: Bench, name: str, framework: str, backend: str, cases: list[str]) -> None:
    stand, report = bench.stand, bench.report
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = str(held.getsockname()[1])
    seconds = max(1.0, (bench.left - 15.0) / len(cases))  # without those in which the ranks start
    words = ["--stand", stand.name, "--framework", framework, "--backend", backend, "--port", port]
    with Job(["-m", "benchmarks", "gpu.average", *words, "--seconds", f"{seconds}", "--cases", *cases], RANKS) as job:
        job.ended(bench.left + LIMIT)
        lines = job.all_lines()
    assert len(lines) == len(cases), lines
    for line in lines:
        theirs, ours = ([pair[side] for pair in line["times"]] for side in (0, 1))
        if line["why"]:
            report.row(f"{framework}, {line['case']}", f"not measured: {line['why']}", bar="to be measured", good=False)
            continue
        what = f"{framework}, {RANKS} ranks, {line['case']}, {len(ours)} pairs: by hand, ours"
        report.row(what, f"{spread(theirs)}, {spread(ours)}")
        if line["case"] == "4 KB":
            middle = statistics.median((own - raw) * 1e3 for raw, own in line["times"])
            good = middle <= SMALL_MS if stand.real else None
            report.row("... paired difference, ms", f"{middle:+.2f}", bar=f"<= +{SMALL_MS:g}", good=good)
            continue
        middle = statistics.median(own / raw for raw, own in line["times"])
        good = middle <= RATIOS[name] if stand.real else None
        report.row("... ratio", f"{middle:.2f}", bar=f"<= {RATIOS[name]:g}", good=good)
        if name == "nccl":
            extra = statistics.median((own - raw) * 1e6 for raw, own in line["host"])
            good = extra <= HOST_US if stand.real else None
            text = "... processor time of the calling thread beyond theirs, us"
            report.row(text, f"{extra:+.0f}", bar=f"<= +{HOST_US:g}", good=good)


class Pair:
    """Both sides, at one rank."""

    def __init__(self, stand: Stand, ft: FTLib, beside: Any, tensors: list[torch.Tensor], *, through_host: bool) -> None:
        """``beside``: a group of torch's. ``through_host``: whether it needs the tensors in the memory of the CPU."""
        self._stand, self._ft, self._beside, self._tensors = stand, ft, beside, tensors
        count = sum(tensor.numel() for tensor in tensors)
        host = through_host and stand.real
        self._through_host = host
        row = torch.empty(count, pin_memory=True) if host else torch.empty(count, device=stand.device)
        self._row = row
        self._parts = list(row.split([tensor.numel() for tensor in tensors]))

    def ours(self) -> float:
        """An average; processor time of this thread until the call has returned."""
        began = time.thread_time()
        assert self._ft.allreduce_average(self._tensors)
        return time.thread_time() - began

    def theirs(self) -> float:
        """The same by hand. Where nothing waits for the device, that is the time to enqueue it."""
        began = time.thread_time()
        torch._foreach_copy_(self._parts, self._tensors, non_blocking=self._through_host)
        if self._through_host:
            self._stand.synchronize()
        dist.all_reduce(self._row, group=self._beside)
        if self._through_host:
            torch._foreach_copy_(self._tensors, self._parts, non_blocking=True)
            torch._foreach_div_(self._tensors, RANKS)
        else:
            self._row.div_(RANKS)
            torch._foreach_copy_(self._tensors, self._parts)
        return time.thread_time() - began


def main() -> int:
    """One rank: a line of JSON for each case."""
    parser = options(__doc__)
    parser.add_argument("--cases", nargs="+", choices=CASES, required=True)
    args = parser.parse_args()
    with beside(args) as (stand, ft, group):
        why = "" if args.framework == "gloo" else accelerated(ft, stand)
        for case in args.cases:
            nbytes, pieces = CASES[case]
            tensors = [part.clone().to(stand.device) for part in torch.ones(nbytes // 4).tensor_split(pieces)]
            pair = Pair(stand, ft, group, tensors, through_host=args.backend == "gloo")
            times, host = ([], []) if why else _measured(stand, pair, args.seconds)
            if ft.rank == 0:
                print(json.dumps({"case": case, "why": why, "times": times, "host": host}), flush=True)
    return 0


def accelerated(ft: FTLib, stand: Stand) -> str:
    """Average until calls go by accelerators, alike at all ranks; why they do not, or nothing."""
    until = time.monotonic() + LIMIT
    while time.monotonic() < until:
        tensor = torch.ones(1000, device=stand.device)
        assert ft.allreduce_average(tensor)
        by = ft.metrics()["calls_by_transport"]
        done = torch.tensor([float(by.get(stand.accelerated, 0) > 0 or time.monotonic() > until - 1.0)])
        dist.all_reduce(done, dist.ReduceOp.MIN)
        if done.item():
            return "" if by.get(stand.accelerated, 0) else f"calls do not go by {stand.accelerated}: see the log of a worker"
        time.sleep(0.01)  # it starts beside this
    return "no accelerator in time"


def _measured(stand: Stand, pair: Pair, seconds: float) -> tuple[list[list[float]], list[list[float]]]:
    """Pairs (theirs, ours) in seconds, until the time is over: until everything is done, at the slowest rank; the host's."""

    def timed(side: Callable[[], float]) -> tuple[float, float]:
        stand.synchronize()
        dist.barrier()
        began = time.perf_counter()
        host = side()
        stand.synchronize()
        return time.perf_counter() - began, host

    for _ in range(WARM):
        timed(pair.theirs)
        timed(pair.ours)
    until = time.monotonic() + seconds
    times: list[list[float]] = []
    hosts: list[list[float]] = []
    over = torch.zeros(1)
    while not over.item():
        if len(times) % 2:
            ours, theirs = timed(pair.ours), timed(pair.theirs)
        else:
            theirs, ours = timed(pair.theirs), timed(pair.ours)
        times.append([theirs[0], ours[0]])
        hosts.append([theirs[1], ours[1]])
        over.fill_(float(time.monotonic() > until))
        dist.all_reduce(over, dist.ReduceOp.MAX)
    for found in (times, hosts):
        slowest = torch.tensor(found, dtype=torch.float64)
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        found[:] = slowest.tolist()
    return times, hosts


if __name__ == "__main__":
    sys.exit(main())
