"""One flat parameter, averaged beside Gloo's ``all_reduce`` and ``div_`` on the same gradient, in turns.

python -m benchmarks.data_parallel.flat RANK SIZE CASE     # one worker: see ``stand``
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import time
from argparse import Namespace

import torch
import torch.distributed as dist

from benchmarks.data_parallel.loops import LIMIT, Case
from benchmarks.data_parallel.stand import quartiles, run
from benchmarks.data_parallel.steps import MODES
from benchmarks.report import Report

SIZES = {"25MB": 25 * 10**6, "100MB": 100 * 10**6}
BARS = {"views": 1.10, "copies": 1.20}


def flat(args: Namespace, report: Report) -> None:
    """Both sizes and modes."""
    for workers in args.workers:
        for size in SIZES:
            for mode in args.modes:
                report.say(f"flat, {size}, {workers} workers, {mode}")
                case = Case(size, ["ours", "raw"], views=MODES[mode], seconds=min(args.seconds, 15.0), seed=args.seed)
                found = [run(case, workers, module=__name__) for _ in range(args.runs)]
                values = [value for each in found for value in each.ratios("ours", "raw")]
                mine, raw = (statistics.median(found[0].slowest(name)) * 1e3 for name in case.loops)
                bar = BARS[mode]
                what = f"one flat parameter of {size} / all_reduce and div_, {mode}, {workers} workers"
                text = f"{quartiles(values, ' x', 3)} of {len(values)}; {mine:.1f}, {raw:.1f} ms"
                good = statistics.median(values) <= bar if workers == 2 else None
                report.row(what, text, bar=f"<= {bar:.2f} x" if workers == 2 else "", good=good)


def main() -> None:
    from ftlib import FTLib

    rank, size = int(sys.argv[1]), int(sys.argv[2])
    case = Case(**json.loads(sys.argv[3]))
    torch.set_num_threads(1)
    with FTLib.init() as ft:
        host, _, port = case.store.rpartition(":")
        store = dist.TCPStore(host, int(port), size, rank == 0)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=LIMIT)
        seconds = _measured(ft, case)
        print(json.dumps({"rank": rank, "seconds": seconds}), flush=True)
        dist.barrier()
    dist.destroy_process_group()


def _measured(ft, case):  # type: ignore[no-untyped-def]
    elements, size = SIZES[case.model] // 4, dist.get_world_size()
    parameter = torch.nn.Parameter(torch.zeros(elements))
    gradient, other = torch.ones(elements), torch.ones(elements)
    ft.register_state(state_dict=lambda: {"parameter": parameter}, load_state_dict=lambda _: None)
    start, chance = dist.new_group(backend="gloo"), random.Random(case.seed)
    more = {"views": True} if case.views else {}

    def ours() -> float:
        parameter.grad = gradient  # as backward leaves it: a tensor of its own
        dist.barrier(start)
        began = time.perf_counter()
        assert ft.allreduce_average(parameter, **more)
        return time.perf_counter() - began

    def raw() -> float:
        dist.barrier(start)
        began = time.perf_counter()
        dist.all_reduce(other)
        other.div_(size)
        return time.perf_counter() - began

    for _ in range(case.warm):
        spent = [ours(), raw()]
    pace = torch.tensor([sum(spent)], dtype=torch.float64)
    dist.all_reduce(pace, dist.ReduceOp.MAX)
    ways, found = {"ours": ours, "raw": raw}, {"ours": list[float](), "raw": list[float]()}
    for _ in range(max(20, int(case.seconds / pace.item()))):
        names = list(ways)
        chance.shuffle(names)
        for name in names:
            found[name].append(ways[name]())
    return found


if __name__ == "__main__":
    main()
