"""What a test tells workers to do with an accelerator: each order takes the worker first."""

from __future__ import annotations

import dataclasses
import functools
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from ftlib.common.devices import device_at
from ftlib.core.tensors.device_copies import look
from ftlib.core.tensors.layout import Bucket
from ftlib.core.tensors.staging import Slot
from ftlib.errors import GroupError
from ftlib.frameworks.accelerators.group import HybridGroup
from ftlib.frameworks.accelerators.isolated import IsolatedRehearsalFramework
from ftlib.frameworks.accelerators.managed import Deadlines, ManagedCommunicator
from ftlib.frameworks.accelerators.nccl.communicator import NcclCommunicator
from ftlib.frameworks.accelerators.rehearsal import Faults, RehearsalFramework
from ftlib.frameworks.accelerators.rehearsal.accelerator import PLACE
from ftlib.frameworks.accelerators.rehearsal.communicator import RehearsedCommunicator
from ftlib.frameworks.accelerators.rehearsal.faults import VARIABLE, Way
from ftlib.frameworks.base import Operation, OperationKind, Work
from tests.frameworks.crew import Crew, Hand, Worker
from tests.frameworks.nccl.fake import FakeNcclFramework
from tests.harness.basics import eventually

TIMEOUT = 60.0
"""Seconds that anything may take."""
BUGS: dict[str, Callable[[], Any]] = {
    "an event alone counts as success": lambda: mock.patch.object(HybridGroup, "failure", return_value=None),
    "an event recorded before the launch": lambda: mock.patch.object(RehearsedCommunicator, "_await_launch"),
    "an event recorded before NCCL's launch": lambda: mock.patch.object(NcclCommunicator, "_await_launch", _do_not_await),
    "freed at the abort": lambda: mock.patch.object(ManagedCommunicator, "stop", _stop_and_free),
}
_stop = ManagedCommunicator.stop
_await_launch = NcclCommunicator._await_launch
_records: list[str] = []
"""Log lines of this process since ``equip``."""
_works: list[Work] = []
"""Of ``enter``."""


def _stop_and_free(communicator: ManagedCommunicator) -> None:
    _stop(communicator)
    communicator.free()


def _do_not_await(communicator: NcclCommunicator, comm: int) -> None:
    if not communicator.ready:  # what it warms up with would be freed while it is in use
        _await_launch(communicator, comm)


class _Notes(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        _records.append(f"{record.levelname} {record.getMessage()}")


def equip(worker: Worker, faults: Faults, deadlines: Deadlines, bug: str) -> Mapping[str, str]:
    """Use a new framework with such faults, and with a bug if one is named; its facts."""
    for group in worker.groups:
        group.close()
    worker.groups.clear()
    worker.framework.close()
    _records.clear()
    logging.getLogger("ftlib").handlers[:] = [_Notes()]
    mock.patch.stopall()
    if bug:
        BUGS[bug]().start()
    if isinstance(worker.framework, IsolatedRehearsalFramework):
        os.environ[VARIABLE] = written(faults)
        worker.framework = IsolatedRehearsalFramework(deadlines)
    else:
        kind = FakeNcclFramework if isinstance(worker.framework, FakeNcclFramework) else RehearsalFramework
        worker.framework = kind(faults, deadlines)
    return worker.framework.start("127.0.0.1")


def written(faults: Faults) -> str:
    """As in the environment."""
    values = {each.name: getattr(faults, each.name) for each in dataclasses.fields(faults)}
    texts = {
        name: value.value if isinstance(value, Way) else int(value)
        for name, value in values.items()
        if not isinstance(value, float)
    }
    return ", ".join(f"{name}={value}" for name, value in {**values, **texts}.items())


def hire(crew: Crew, count: int, faults: Faults | None = None, deadlines: Deadlines | None = None, bug: str = "") -> list[Hand]:
    """Workers with these faults."""
    hands = crew.hire(count)
    for hand in hands:
        hand.tell(equip, faults or Faults(), deadlines or Deadlines(), bug)
    for hand in hands:
        hand.store = hand.answer()
    return hands


def hybrid(worker: Worker) -> HybridGroup:
    group = worker.group
    assert isinstance(group, HybridGroup)
    return group


def accelerated(worker: Worker) -> float:
    """Wait for the accelerator; the seconds that took."""
    began = time.monotonic()
    group = hybrid(worker)
    eventually(lambda: group.accelerated or group.trouble, "an accelerator, or the reason for none", TIMEOUT)
    assert group.accelerated, group.trouble
    took = time.monotonic() - began
    # It may be used at once; that its start is counted is another thread's, a moment later.
    eventually(lambda: figures(worker)["accelerator_start_seconds"]["count"], "its start is counted", TIMEOUT)
    return took


def troubled(worker: Worker) -> tuple[str, list[str]]:
    """Wait for the reason why there is no accelerator; that, and what was logged."""
    group = hybrid(worker)
    eventually(lambda: group.trouble and _records, "a reason, and a warning", TIMEOUT)
    assert not group.accelerated
    return group.trouble, list(_records)


def go_on(worker: Worker, seconds: float) -> int:
    """Reduce by Gloo until all have done so for that long; how often."""
    until, count = time.monotonic() + seconds, 0
    while True:
        ended = torch.tensor([float(time.monotonic() > until)])
        assert worker.group.allreduce(ended, "MIN").wait(TIMEOUT)
        count += 1
        if ended.item():
            return count


def _bulk(worker: Worker, tensors: list[torch.Tensor]) -> Work:
    return worker.group.submit_bulk([Operation(OperationKind.ALLREDUCE, tensor, "SUM") for tensor in tensors])


def _own(worker: Worker, elements: int = 200_000) -> torch.Tensor:
    torch.manual_seed(worker.group.rank)
    return torch.rand(elements)


def reduce_both_ways(worker: Worker, rounds: int) -> list[list[bytes]]:
    """The same by the accelerator and by Gloo, some tensors at a time; the last bytes of the results."""
    last = []
    for _ in range(rounds):
        fast, slow = [[_own(worker, size) for size in (10, 1000, 300_000)] for _ in range(2)]
        work = _bulk(worker, fast)
        others = [worker.group.allreduce(tensor) for tensor in slow]  # meanwhile
        assert work.wait(TIMEOUT)
        assert work.done()
        assert all(other.wait(TIMEOUT) for other in others)
        for one, other in zip(fast, slow, strict=True):
            torch.testing.assert_close(one, other)
        last = [tensor.numpy().tobytes()[-64:] for tensor in fast]
    return [last]


def reduce_later(worker: Worker) -> tuple[float, bool, str]:
    """Seconds that ``submit_bulk`` took, whether it was done then, and what is wrong with the result."""
    tensor = torch.ones(1000)
    began = time.monotonic()
    work = _bulk(worker, [tensor])
    took, done = time.monotonic() - began, work.done()
    assert work.wait(TIMEOUT)
    return took, done, "" if bool((tensor == worker.group.size).all()) else f"{tensor[0].item()} is not the sum"


def reduce_until_it_breaks(worker: Worker, elements: int) -> tuple[float, str, tuple[int, ...], bool, str]:
    """When it broke; the error and whom it blames; whether all had ended once ``abort`` returned; a result taken for good."""
    group = worker.group
    while True:
        tensor = torch.ones(elements)
        work = _bulk(worker, [tensor])
        try:
            eventually(functools.partial(work.wait, 0.05), "the end of the operation", TIMEOUT)
        except GroupError as error:
            at = time.monotonic()
            group.abort()
            if isinstance(worker.framework, IsolatedRehearsalFramework):  # a busy machine may take a while to end a process
                eventually(work.done, "the end of the child", TIMEOUT)
            return at, str(error), error.peers, work.done(), ""
        if not bool((tensor == group.size).all()):
            return time.monotonic(), "", (), work.done(), f"{tensor.unique().tolist()} was taken for a result"


def reduce_until_aborted(worker: Worker, elements: int, delay: float) -> tuple[bool, str]:
    """The same; rank 0 aborts after a while, on another thread."""
    timer = threading.Timer(delay, worker.group.abort)
    if worker.group.rank == 0:
        timer.start()
    *_, done, wrong = reduce_until_it_breaks(worker, elements)
    return done, wrong


def wait_through_an_abort(worker: Worker) -> tuple[str, float, float, bool]:
    """Rank 0 waits for what the others never enter, and aborts on another thread.

    What the wait gave, seconds that the abort took, what is in the buffer, and whether the operation is done.
    """
    group = worker.group
    if group.rank:
        return "", 0.0, 0.0, True
    tensor = torch.zeros(1000)
    work = _bulk(worker, [tensor])
    assert work.wait(0.2) is False
    took: list[float] = []

    def abort() -> None:
        began = time.monotonic()
        group.abort()
        took.append(time.monotonic() - began)

    thread = threading.Timer(0.1, abort)
    thread.start()
    try:
        outcome = str(work.wait(TIMEOUT))
    except GroupError as error:
        outcome = str(error)
    thread.join(TIMEOUT)
    return outcome, took[0], tensor[0].item(), work.done()


def enter(worker: Worker) -> None:
    """Begin an operation that not all enter."""
    _works[:] = [_bulk(worker, [torch.ones(10)])]
    assert _works[0].wait(0.1) is False


def outcome(worker: Worker) -> tuple[str, str]:
    """What came of it, while nobody aborts the group here; and the device's trouble a moment later."""
    try:
        ended = str(_works[0].wait(0.5))
    except GroupError as error:
        ended = str(error)
    time.sleep(0.5)
    return ended, hybrid(worker).trouble


def abort(worker: Worker) -> float:
    began = time.monotonic()
    worker.group.abort()
    return time.monotonic() - began


def settle(worker: Worker, epoch: int) -> dict[str, Any]:
    """The view of that epoch is active; the figures once nothing is being freed any more."""
    framework = worker.framework
    framework.settled(epoch)
    eventually(lambda: all(each.gone or not each.stopped for each in framework._communicators), "the end", TIMEOUT)  # type: ignore[attr-defined]
    return dict(framework.metrics())


def figures(worker: Worker) -> dict[str, Any]:
    return dict(worker.framework.metrics())


def logged(worker: Worker) -> list[str]:
    return list(_records)


def hear_of_the_worst(worker: Worker, when: str) -> tuple[str, float, float]:
    """Abort with an operation under way that does not end; the reason to stop, after how long, and how long the abort took."""
    reasons: list[tuple[str, float]] = []
    began = time.monotonic()

    def hear(reason: str) -> None:
        reasons.append((reason, time.monotonic() - began))

    if when == "before":
        worker.framework.on_fatal(hear)
    work = _bulk(worker, [torch.ones(1000)])
    assert work.wait(0.1) is False
    began = time.monotonic()
    took = abort(worker)
    assert not work.done()
    with pytest.raises(GroupError, match="abandoned"):
        work.wait(TIMEOUT)
    if when == "after":
        eventually(lambda: any("cannot go on" in line for line in _records), "the log line", TIMEOUT)
        worker.framework.on_fatal(hear)
    eventually(lambda: reasons, "the reason", TIMEOUT)
    return (*reasons[0], took)


def held(worker: Worker) -> tuple[int, int]:
    """Descriptors and threads of this process, once they have stopped to become fewer."""
    fewest, since = (1 << 30, 1 << 30), time.monotonic()
    while time.monotonic() < since + 0.3:
        now = len(list(Path("/proc/self/fd").iterdir())), threading.active_count()
        if now[0] < fewest[0] or now[1] < fewest[1]:
            fewest, since = (min(fewest[0], now[0]), min(fewest[1], now[1])), time.monotonic()
        time.sleep(0.01)
    return fewest


def fall_to(worker: Worker, descriptors: int, threads: int) -> None:
    """Wait until this process holds no more than that: what was freed last goes in the background."""

    def few() -> bool:
        now = held(worker)
        return now[0] <= descriptors and now[1] <= threads

    eventually(few, f"at most {descriptors} descriptors and {threads} threads", TIMEOUT)


def future_of_bulk(worker: Worker) -> float:
    tensor = torch.ones(100)
    _bulk(worker, [tensor]).future().wait()
    return tensor[0].item()


def await_start(worker: Worker, seconds: float) -> tuple[bool, float, bool]:
    """Wait for the accelerator; whether there was anything to wait for, how long it took, and whether it works then."""
    began = time.monotonic()
    start = worker.group.accelerator_start(seconds)
    if start is not None:
        assert start.wait(TIMEOUT)
        assert start.done()
    return start is not None, time.monotonic() - began, worker.group.accelerated


def await_start_through_an_abort(worker: Worker) -> float:
    """Seconds from an abort to the end of a wait for the accelerator."""
    start = worker.group.accelerator_start(TIMEOUT)
    assert start is not None
    assert not start.wait(0.05)
    began = time.monotonic()
    worker.group.abort()
    assert start.wait(TIMEOUT)
    return time.monotonic() - began


def look_after_bulk(worker: Worker, value: float) -> tuple[int, float]:
    """Have the largest absolute value of a result told by the device itself: how many waits that takes, and the value."""
    slot = Slot(Bucket(torch.float32, 1000, "SUM", (), PLACE), 0)
    slot.stage(torch.full((1000,), value))
    assert slot.row is not None
    before = device_at(PLACE).waits
    operation = Operation(OperationKind.ALLREDUCE, slot.row, "SUM")
    work = worker.group.submit_bulk([operation], functools.partial(look, PLACE, [slot]))
    assert work.wait(TIMEOUT)
    assert slot.finite == math.isfinite(value * worker.group.size)
    return device_at(PLACE).waits - before, slot.norm.item()
