"""How NCCL itself ends: revoke and abort while kernels spin; and what an event says that was recorded too early.

By the functions of ``accelerators.nccl.library`` alone, as groups of ftlib's never have a communicator of one rank. The abort
of a group of ftlib's is measured as well; that can be rehearsed.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.gpu.stand import Bench
from benchmarks.report import spread
from ftlib.frameworks.base import Operation, OperationKind
from tests.frameworks.crew import Crew, Hand, Worker
from tests.harness.basics import eventually

__all__ = ["ROWS", "Communicator", "accelerated", "bulk", "crew", "measure"]

ROWS = {
    "NCCL, 1, 2 and 4 ranks: revoke and abort while kernels spin": "",
    "an event recorded before success calls a spinning kernel ended": "",
}
SIZES = (1, 2, 4)
REPETITIONS = 5
ELEMENTS = 1_000_000
SPUN = 0.05
"""Seconds after which kernels that were launched surely spin."""
LIMIT = 30.0
LOOK = 0.0002
FLOAT32, SUM = 7, 0
"""Of nccl.h: ncclFloat32, ncclSum."""


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
    if not bench.stand.real:
        bench.report.row("revoke and abort, events recorded too early", "not measured: no NCCL")
        return
    with crew("gloo", bench.stand.device) as found:
        for size in SIZES:
            raw_ends(bench, found, size)


def group_aborts(bench: Bench, size: int) -> None:
    """Rows for a group of ftlib's: rank 0 launches nothing, all others' kernels spin, and all abort."""
    aborts: list[float] = []
    frees: list[float] = []
    with crew(bench.stand.accelerated, bench.stand.device) as found:
        hands = found.hire(size)
        for number in range(REPETITIONS):
            if number and bench.over:
                break
            found.build(hands)
            found.run(hands, accelerated)
            took = found.run(hands, spin_and_abort)
            aborts += took[1:]
            found.build(hands)
            frees += found.run(hands, settle, 1 << 30)
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
        time.sleep(SPUN)
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


# --- NCCL's own functions ----------------------------------------------------------------------------------------------


class Communicator:
    """One of NCCL's, on a stream of its own. Used by one thread."""

    def __init__(self, identity: bytes, size: int, rank: int) -> None:
        from ftlib.frameworks.accelerators.nccl.library import load
        from ftlib.frameworks.accelerators.nccl.results import Result

        self._library, self._busy = load(), Result.IN_PROGRESS
        torch.cuda.set_device(0)
        self.stream = torch.cuda.Stream()
        self._tensor: torch.Tensor | None = None
        self.rank, self.size = rank, size
        self.comm, _ = self._library.init_rank(identity, size, rank)
        self.until_done()

    def launch(self, tensor: torch.Tensor) -> torch.cuda.Event:
        """Launch an allreduce; an event that was recorded as soon as NCCL's function had returned."""
        self._tensor = tensor  # it must outlive the kernel
        self.stream.wait_stream(torch.cuda.current_stream())  # which fills the tensor
        self._library.all_reduce(tensor.data_ptr(), tensor.numel(), FLOAT32, SUM, self.comm, self.stream.cuda_stream)
        return self.event()

    def event(self) -> torch.cuda.Event:
        """Of the stream's end as it is now."""
        event = torch.cuda.Event()
        event.record(self.stream)
        return event

    def until_done(self) -> None:
        """Wait until NCCL has done what it was asked for last."""
        eventually(lambda: self._library.async_error(self.comm) is not self._busy, "NCCL's answer", LIMIT)

    def revoke(self) -> float:
        """Seconds until it is done, and all that the stream has is ended."""
        began = time.monotonic()
        self._library.revoke(self.comm)
        self.until_done()
        event = self.event()
        while not event.query():
            time.sleep(LOOK)
        return time.monotonic() - began

    def abort(self) -> float:
        """Seconds."""
        began = time.monotonic()
        self._library.abort(self.comm)
        return time.monotonic() - began


_made: list[Communicator] = []
"""Of this process, at most one."""


def identify(_: Worker) -> bytes:
    """An id to meet at."""
    from ftlib.frameworks.accelerators.nccl.library import load

    return load().unique_id()


def connect(worker: Worker, identity: bytes, size: int, rank: int) -> float:
    """Build a communicator and use it once; the seconds that took."""
    began = time.monotonic()
    _made[:] = [Communicator(identity, size, rank)]
    tensor = worker.put(torch.ones(ELEMENTS))
    _made[0].launch(tensor)
    _made[0].until_done()
    _made[0].stream.synchronize()
    assert float(tensor[-1]) == size
    return time.monotonic() - began


def launch_late(worker: Worker) -> tuple[bool, bool]:
    """All but rank 0 launch what then spins.

    Whether an event said that it had ended which was recorded as the launch returned; and one that was recorded after it.
    """
    made = _made[0]
    if made.rank == 0:
        time.sleep(SPUN)
        return False, False
    early = made.launch(worker.put(torch.ones(ELEMENTS)))
    made.until_done()
    right = made.event()
    time.sleep(SPUN)
    return bool(early.query()), bool(right.query())


def end(_: Worker, how: str) -> float:
    """Seconds."""
    made = _made[0]
    took = made.revoke() if how == "revoke" else made.abort()
    if how == "abort":
        _made.clear()
    return took


def raw_ends(bench: Bench, found: Crew, size: int) -> None:
    """Rows for so many ranks."""
    hands: list[Hand] = found.hire(size)
    starts, revokes, aborts, directly = list[float](), list[float](), list[float](), list[float]()
    early = right = launches = 0
    for number in range(REPETITIONS):
        if number and bench.over:
            break
        for steps in (("revoke", "abort"), ("abort",)):
            identity = found.run(hands[:1], identify)[0]
            for rank, hand in enumerate(hands):
                hand.tell(connect, identity, size, rank)
            starts += [hand.answer() for hand in hands]
            if size > 1:
                said = found.run(hands, launch_late)[1:]
                early, right = early + sum(one for one, _ in said), right + sum(other for _, other in said)
                launches += len(said)
            took = {step: found.run(hands, end, step) for step in steps}
            revokes += took.get("revoke", [])
            (aborts if "revoke" in took else directly).extend(took["abort"])
    while_they_spin = " while kernels spin" if size > 1 else ""
    report, name = bench.report, f"NCCL, {size} {'ranks' if size > 1 else 'rank'}"
    report.row(f"{name}: built and used once", spread(starts))
    report.row(f"... revoke{while_they_spin}; abort after that", f"{spread(revokes)}; {spread(aborts)}")
    report.row(f"... abort{while_they_spin}, not revoked", spread(directly))
    if size > 1:
        text = f"{early} of {launches}; after success {right}"
        report.row(
            "... an event recorded before success says that a spinning kernel has ended", text, bar="0 after", good=not right
        )
