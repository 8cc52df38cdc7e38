"""Communicators built, used, stopped while kernels spin, and freed, again and again by two processes: what grows?"""

from __future__ import annotations

import psutil
import torch

from benchmarks.gpu.losses import ALLOWED, growth, holdings
from benchmarks.gpu.stand import Bench
from benchmarks.gpu.stops import LIMIT, accelerated, bulk, crew, settle, spin_and_abort
from benchmarks.report import spread
from tests.frameworks.crew import Crew, Worker

ROWS = {"1,000 communicators built, used, stopped, freed: device memory, threads, descriptors": "no growth"}
RANKS = 2
FIRST = 0.1
"""The share of them after which nothing may grow any more."""
ELEMENTS = 250_000


def measure(bench: Bench) -> None:
    """Rows."""
    args, report = bench.args, bench.report
    starts: list[float] = []
    before: dict[str, float] = {}
    with crew(bench.stand.accelerated, bench.stand.device) as found:
        hands = found.hire(RANKS)
        began = bench.left
        count = 0
        while count < args.communicators and not (count > 1 and bench.over):
            found.build(hands)
            starts += found.run(hands, accelerated)
            if count:
                found.run(hands, settle, count + 1)  # the epoch of the group that was just built
            assert found.run(hands, use) == [float(RANKS)] * RANKS
            found.run(hands, spin_and_abort)
            count += 1
            used = max(count / args.communicators, 1 - bench.left / began)
            if not before and used >= FIRST:
                before = _held(found, bench)
            report.say(f"{count} of {args.communicators} communicators")
        leaks = found.run(hands, leaked)
        growth(bench, f"{count} communicators, after {FIRST:.0%} of them and after all", before, lambda: _held(found, bench))
    enough = "" if count >= args.communicators else f" (no time for all {args.communicators})"
    report.row(f"{count} communicators{enough} of {RANKS} ranks: from a group to one that works", spread(starts))
    report.row("... leaked", str(sum(leaks)), bar="0", good=not any(leaks))


def use(worker: Worker) -> float:
    """One operation; an element of the result."""
    tensor = worker.put(torch.ones(ELEMENTS))
    assert bulk(worker, tensor).wait(LIMIT)
    return float(tensor[-1])


def leaked(worker: Worker) -> int:
    """Communicators that were never freed."""
    count = worker.framework.metrics()["accelerator_leaks"]
    assert isinstance(count, int)
    return count


def look(_: Worker, device: str) -> dict[str, float]:
    """What this process holds."""
    return holdings(psutil.Process(), device)


def _held(found: Crew, bench: Bench) -> dict[str, float]:
    """By the process that holds most; of the device, what is in use."""
    each = found.run(found.hands, look, bench.stand.device)
    return {name: max(one[name] for one in each) for name in ALLOWED}
