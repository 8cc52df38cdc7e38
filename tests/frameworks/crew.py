"""Worker processes, each with a framework of its own, that do what a test tells them, one call at a time."""

from __future__ import annotations

import contextlib
import functools
import importlib
import multiprocessing
import os
import signal
import time
import traceback
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from ftlib.common.devices import device_at
from ftlib.core.tensors.device_work import DeviceWork
from ftlib.frameworks import FRAMEWORKS, Framework, Group, GroupSpec, framework_by_name
from tests.harness.one_gpu import pose_as_a_host

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from multiprocessing.connection import Connection

TIMEOUT = 120.0
"""Seconds that one operation may take."""
ANSWER_WITHIN = 180.0
"""Seconds until a worker that does not answer fails the test."""


@dataclass
class Worker:
    """What a told function gets as its first argument."""

    framework: Framework
    place: str = ""
    """The device of its tensors; empty for the CPU."""
    groups: list[Group] = field(default_factory=list)

    @property
    def group(self) -> Group:
        return self.groups[-1]

    def put(self, tensor: torch.Tensor) -> torch.Tensor:
        """It, on the device."""
        return tensor.to(self.place) if self.place else tensor

    def memory(self, tensor: torch.Tensor) -> torch.Tensor:
        """What operations on ``tensor`` work on: itself, or memory of the framework's that is pinned for its device."""
        if not self.place:
            return tensor
        row = self.framework.allocate(tensor.numel(), tensor.dtype)
        device_at(self.place).pin(row)
        return row.view(tensor.shape)

    def move(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Between a tensor and its ``memory``, as calls do it."""
        if self.place:
            device = device_at(self.place)
            device.enqueue(lambda: target.copy_(source, non_blocking=True), target)
            DeviceWork(device.waited()).end()

    def reduce(self, tensor: torch.Tensor, op: str = "SUM") -> None:
        """Allreduce it, on whatever device it is."""
        row = self.memory(tensor)
        self.move(tensor, row)
        assert self.group.allreduce(row, op).wait(TIMEOUT)
        self.move(row, tensor)


def made(name: str) -> Framework:
    """A framework of ftlib's by its name, or one of anybody's by ``module:class``."""
    if name in FRAMEWORKS:
        return framework_by_name(name)
    module, _, kind = name.partition(":")
    framework = getattr(importlib.import_module(module), kind)()
    assert isinstance(framework, Framework)
    return framework


def _serve(pipe: Connection, name: str) -> None:
    torch.set_num_threads(1)
    name, _, place = name.partition("@")
    pose_as_a_host(place)
    framework = made(name)
    worker = Worker(framework, place)
    worker.put(torch.zeros(1))  # a device is in use before anything else is
    pipe.send(framework.start("127.0.0.1"))
    while True:
        try:
            function, arguments = pipe.recv()
        except EOFError:
            break
        try:
            pipe.send((True, function(worker, *arguments)))
        except BaseException:  # noqa: BLE001 - the test shall see it
            pipe.send((False, traceback.format_exc()))


class Hand:
    """The test's end of one worker."""

    def __init__(self, context: Any, framework: str) -> None:
        self._pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, framework), daemon=True)
        self.process.start()
        theirs.close()
        self.pending = 0
        self.store = self._receive()

    def tell(self, function: Callable[..., Any], *arguments: Any) -> None:
        self._pipe.send((function, arguments))
        self.pending += 1

    def answer(self) -> Any:
        fine, value = self._receive()
        self.pending -= 1
        assert fine, value
        return value

    @property
    def closed(self) -> bool:
        return bool(self._pipe.closed)

    def kill(self, number: int = signal.SIGKILL) -> float:
        """Kill, reap; the monotonic time at which the signal was sent."""
        at = time.monotonic()
        os.kill(self.process.pid, number)
        self.process.join(TIMEOUT)
        self.close()
        return at

    def close(self) -> None:
        self._pipe.close()
        self.process.join(TIMEOUT)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.process.close()

    def _receive(self) -> Any:
        assert self._pipe.poll(ANSWER_WITHIN), "a worker does not answer"
        try:
            return self._pipe.recv()
        except EOFError:
            self.process.join(TIMEOUT)
            raise AssertionError(f"a worker died: exit code {self.process.exitcode}") from None


class Crew:
    """Some workers; groups are built among those told so."""

    def __init__(self, framework: str = "gloo") -> None:
        """``framework``: its name (see ``made``), and after an @ the device of all tensors, such as ``cuda:0``."""
        self.framework = framework
        self._context: Any = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["tests.frameworks.orders"])  # else the first order takes one longer than another
        self._epoch = 0
        self.hands: list[Hand] = []

    def hire(self, count: int) -> list[Hand]:
        """Have ``count`` workers, new ones in place of dead ones and of those still busy for a failed test."""
        for hand in self.hands:
            if hand.pending and not hand.closed:
                hand.kill()
        self.hands = [hand for hand in self.hands if not hand.closed]
        while len(self.hands) < count:
            self.hands.append(Hand(self._context, self.framework))
        return self.hands[:count]

    def specs(self, hands: Sequence[Hand], timeout: float = TIMEOUT, host: int = 0) -> list[GroupSpec]:
        """One spec a rank of a view nobody has had yet; the store is that of rank ``host``."""
        self._epoch += 1
        size = len(hands)
        make = functools.partial(GroupSpec, f"view-{self._epoch}", self._epoch)
        return [make(rank, size, hands[host].store, timeout) for rank in range(size)]

    def build(self, hands: Sequence[Hand], timeout: float = TIMEOUT, host: int = 0) -> list[Any]:
        """Build a group of these workers."""
        for hand, spec in zip(hands, self.specs(hands, timeout, host), strict=True):
            hand.tell(rebuild, spec)
        return [hand.answer() for hand in hands]

    def run(self, hands: Sequence[Hand], function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Let all of them do the same; the answers in rank order."""
        for hand in hands:
            hand.tell(function, *arguments)
        return [hand.answer() for hand in hands]

    def close(self) -> None:
        for hand in self.hands:
            with contextlib.suppress(OSError, ValueError):
                hand.close()


def rebuild(worker: Worker, spec: GroupSpec) -> float:
    """Told: build, close the previous group; the seconds it took."""
    begin = time.perf_counter()
    group = worker.framework.rebuild(spec)
    took = time.perf_counter() - begin
    for old in worker.groups:
        old.close()
    worker.groups[:] = [group]
    return took
