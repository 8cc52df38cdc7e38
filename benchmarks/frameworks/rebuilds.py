"""A group built, used once and ended, a thousand times, with each framework of the CPU: does anything grow?

    python -m benchmarks rebuilds
    python -m benchmarks rebuilds --frameworks rehearsal --rebuilds 200

Two ranks, both in this process. Groups end by turns in good order and by an abort. Where there is an accelerator, it is
waited for, and used; its communicators are freed once the next group is there. Bar: after the first tenth no more threads,
descriptors, ports, processes and entries of ``/dev/shm``, and little more memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

import torch

from benchmarks.job import footprint
from benchmarks.report import Report, parser
from ftlib.frameworks import Framework, Group, GroupSpec, framework_by_name
from ftlib.frameworks.base import Operation, OperationKind

FRAMEWORKS = ("gloo", "isolated:gloo", "rehearsal")
ACCELERATED = ("rehearsal",)
ELEMENTS = 250_000
GROWTH = 0.02
"""MB that a rebuild may leave in memory, in all processes together: what an allocator keeps, and no buffer of a group.

Before each look this process's allocator gives back what it can: it keeps a hundred MB of the buffers of ended threads.
"""
LIMIT = 20.0
"""Seconds for anything."""
REST = 6.0
"""Seconds until those that were closed are gone, what is freed has been freed, and threads with nothing to do have ended."""


def rebuilt(report: Report, name: str, count: int) -> None:
    """Rows for what might grow in ``count`` rebuilds with a framework."""
    torch.set_num_threads(1)
    frameworks = [framework_by_name(name) for _ in range(2)]
    first = max(2, count // 10)
    found: dict[int, dict[str, float]] = {}
    began = time.monotonic()
    with ThreadPoolExecutor(2) as pool:
        try:
            stores = [framework.start("127.0.0.1") for framework in frameworks]
            for epoch in range(1, count + 1):
                specs = [GroupSpec(f"v{epoch}", epoch, rank, 2, stores[epoch % 2], LIMIT) for rank in range(2)]
                groups = list(pool.map(lambda both: both[0].rebuild(both[1]), zip(frameworks, specs, strict=True)))
                for framework in frameworks:
                    framework.settled(epoch)
                use(frameworks, groups, name)
                if epoch % 2:
                    groups[0].abort()
                for group in groups:
                    group.close()
                del groups
                if epoch % 10 == 0:
                    report.say(f"{name}: {epoch} of {count} rebuilds")
                if epoch in (first, count // 2, count):
                    for framework in frameworks:
                        framework.settled(epoch + 1)
                    time.sleep(REST)
                    give_back()
                    found[epoch] = {**asdict(footprint(os.getpid())), "/dev/shm": len(list(Path("/dev/shm").iterdir()))}
        finally:
            for framework in frameworks:
                framework.close()
    before, half, after = found[first], found[count // 2], found[count]
    for key in before:
        text = f"{before[key]:.0f}, {half[key]:.0f}, {after[key]:.0f}"
        allowed = GROWTH * (count - first) if key == "rss" else 0
        what = f"{name}: {'memory, MB' if key == 'rss' else key} after {first}, {count // 2}, {count} rebuilds"
        report.row(what, text, bar=f"+{allowed:g}", good=after[key] <= before[key] + allowed)
    leaks = [framework.metrics().get("accelerator_leaks", 0) for framework in frameworks]
    report.row(
        f"{name}: seconds; communicators leaked", f"{time.monotonic() - began:.0f}; {leaks}", bar="0", good=not any(leaks)
    )


def give_back() -> None:
    """Free what nobody uses, as far as glibc is asked for it."""
    gc.collect()
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def use(frameworks: list[Framework], groups: list[Group], name: str) -> None:
    """One operation, and one by the accelerators, if there are any."""
    tensors = [framework.allocate(ELEMENTS, torch.float32).fill_(1.0) for framework in frameworks]
    works = [group.allreduce(tensor) for group, tensor in zip(groups, tensors, strict=True)]
    assert all(work.wait(LIMIT) for work in works)
    if name in ACCELERATED:
        deadline = time.monotonic() + LIMIT
        while not all(group.accelerated for group in groups):
            assert time.monotonic() < deadline, f"no accelerator within {LIMIT:g} s"
            time.sleep(0.001)  # it starts on threads of this process
        rows = zip(groups, tensors, strict=True)
        works = [group.submit_bulk([Operation(OperationKind.ALLREDUCE, tensor, "SUM")]) for group, tensor in rows]
        assert all(work.wait(LIMIT) for work in works)
    expected = 4.0 if name in ACCELERATED else 2.0
    assert all(float(tensor[-1]) == expected for tensor in tensors)


def main() -> int:
    options = parser(__doc__, agent=False, rebuilds=1000)
    options.add_argument("--frameworks", nargs="+", choices=FRAMEWORKS, default=list(FRAMEWORKS))
    args = options.parse_args()
    report = Report("Groups built and ended", 0.1 * args.rebuilds * len(args.frameworks))
    for name in args.frameworks:
        rebuilt(report, name, args.rebuilds)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
