"""How NCCL itself ends: revoke and abort while kernels spin; and what an event says that was recorded too early.

By NCCL's functions alone (``raw``), as groups of ftlib's never have a communicator of one rank; and by the abort of a group.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.gpu import raw
from benchmarks.gpu.stand import Bench
from benchmarks.report import spread
from ftlib.frameworks.base import Operation, OperationKind
from tests.frameworks.crew import Crew, Hand, Worker
from tests.harness.basics import eventually

ROWS = {
    "NCCL, 1, 2 and 4 ranks: revoke and abort while kernels spin": "",
    "an event recorded before success calls a spinning kernel ended": "",
}
SIZES = (1, 2, 4)
ORDERS = ("revoke", "abort"), ("abort",)
"""The second one may crash ranks that use each other's memory, as these do not. What stands for NCCL refuses it."""
REPETITIONS = 5
ELEMENTS = 1_000_000
SPUN = 0.05
"""Seconds after which kernels that were launched surely spin."""
LIMIT = 30.0
FAKE = "tests.frameworks.nccl.fake:FakeNcclFramework"
"""Has functions of Python's in the place of NCCL's."""


@contextlib.contextmanager
def crew(framework: str, device: str) -> Iterator[Crew]:
    """Workers with a framework each, that do what they are told."""
    found = Crew(framework if device == "cpu" else f"{framework}@{device}")
    try:
        yield found
    finally:
        found.close()


def measure(bench: Bench) -> None:
    """Rows."""
    for size in SIZES[1:]:
        group_aborts(bench, size)
    with crew("gloo" if bench.stand.real else FAKE, bench.stand.device) as found:
        for size in SIZES:
            raw_ends(bench, found, size)


def group_aborts(bench: Bench, size: int) -> None:
    """Rows for a group of ftlib's: rank 0 launches nothing, all others' kernels spin, and all abort."""
    aborts: list[float] = []
    frees: list[float] = []
    with crew(bench.stand.accelerated, bench.stand.device) as found:
        hands = found.hire(size)
        found.build(hands)
        found.run(hands, accelerated)
        for number in range(REPETITIONS):
            if number and bench.over:
                break
            took = found.run(hands, spin_and_abort)
            aborts += took[1:]
            found.build(hands)
            found.run(hands, accelerated)
            frees += found.run(hands, settle, number + 2)  # the epoch of the group that was just built
    bench.report.row(f"{size} ranks of a group: abort while kernels spin, until they have ended", spread(aborts))
    bench.report.row("... its communicator is freed in the next view", spread(frees))


def accelerated(worker: Worker) -> float:
    """Wait for the accelerator; the seconds that took."""
    group, began = worker.group, time.monotonic()
    eventually(lambda: group.accelerated or getattr(group, "trouble", ""), "an accelerator, or the reason for none", LIMIT)
    assert group.accelerated, getattr(group, "trouble", "")
    return time.monotonic() - began


def bulk(worker: Worker, tensor: torch.Tensor) -> Any:
    """Launch an allreduce."""
    return worker.group.submit_bulk([Operation(OperationKind.ALLREDUCE, tensor, "SUM")])


def spin_and_abort(worker: Worker) -> float:
    """Seconds of the abort."""
    if worker.group.rank:
        work = bulk(worker, worker.put(torch.ones(ELEMENTS)))
        time.sleep(SPUN)  # the kernels spin by then
        assert not work.done(), "rank 0 has launched nothing"
    else:
        time.sleep(2 * SPUN)  # the others look at their devices first
    began = time.monotonic()
    worker.group.abort()
    return time.monotonic() - began


def settle(worker: Worker, epoch: int) -> float:
    """The next view is active; seconds until the framework has freed what was stopped."""

    def frees() -> Any:
        return worker.framework.metrics()["accelerator_frees"]

    before, began = frees(), time.monotonic()
    worker.framework.settled(epoch)
    eventually(lambda: frees() > before, "a communicator is freed", LIMIT)
    return time.monotonic() - began


def raw_ends(bench: Bench, found: Crew, size: int) -> None:
    """Rows for so many ranks."""
    hands: list[Hand] = found.hire(size)
    starts, revokes, aborts, directly = list[float](), list[float](), list[float](), list[float]()
    early = right = launches = 0
    for number in range(REPETITIONS):
        if number and bench.over:
            break
        for steps in ORDERS if bench.stand.real else ORDERS[:1]:
            identity = found.run(hands[:1], raw.identify)[0]
            for rank, hand in enumerate(hands):
                hand.tell(raw.connect, identity, size, rank)
            starts += [hand.answer() for hand in hands]
            if size > 1:
                said = found.run(hands, raw.launch_late)[1:]
                early, right = early + sum(one for one, _ in said), right + sum(other for _, other in said)
                launches += len(said)
            took = {step: found.run(hands, raw.end, step) for step in steps}
            revokes += took.get("revoke", [])
            (aborts if "revoke" in took else directly).extend(took["abort"])
    while_they_spin = " while kernels spin" if size > 1 else ""
    report, name = bench.report, f"NCCL, {size} {'ranks' if size > 1 else 'rank'}"
    report.row(f"{name}: built and used once", spread(starts))
    report.row(f"... revoke{while_they_spin}; abort after that", f"{spread(revokes)}; {spread(aborts)}")
    if directly:
        report.row(f"... abort{while_they_spin}, not revoked", spread(directly))
    if size > 1:
        text = f"{early} of {launches}; after success {right}"
        report.row(
            "... an event recorded before success says that a spinning kernel has ended", text, bar="0 after", good=not right
        )
