"""The parts of isolated accelerators, one at a time, without a process."""

from __future__ import annotations

import dataclasses
import os
import select
import socket
import subprocess
import threading
from collections.abc import Iterable, Iterator

import pytest
import torch

from ftlib.common.devices import Rehearsed, placed_by
from ftlib.errors import GroupError
from ftlib.frameworks import GroupSpec
from ftlib.frameworks.accelerators.base import NotYetError
from ftlib.frameworks.accelerators.framework import HybridFramework
from ftlib.frameworks.accelerators.isolated import accelerator as module
from ftlib.frameworks.accelerators.isolated.accelerator import IsolatedAccelerator
from ftlib.frameworks.accelerators.isolated.communicator import IsolatedCommunicator, IsolatedTicket
from ftlib.frameworks.accelerators.isolated.memory import HostMemory
from ftlib.frameworks.accelerators.isolated.process import CommunicatorProcess
from ftlib.frameworks.accelerators.isolated.records import Decided, Piece, unpack
from ftlib.frameworks.accelerators.isolated.records import Launch as LaunchRecord
from ftlib.frameworks.accelerators.rehearsal.accelerator import PLACE, RehearsedAccelerator
from ftlib.frameworks.accelerators.rehearsal.faults import Faults
from ftlib.frameworks.base import Operation, OperationKind
from ftlib.frameworks.isolated import child_process
from ftlib.frameworks.isolated.records import LIMIT, Ended, Ping
from tests.harness.basics import TIMEOUT, eventually

SPEC = GroupSpec("v", 1, 0, 2, {}, 1.0)
MADE_BY = "ftlib.frameworks.accelerators.rehearsal:rehearsed"


class Mark:
    def __init__(self) -> None:
        self.reached = False

    def query(self) -> bool:
        return self.reached


def test_a_ticket_ends_with_what_comes_after_its_operations() -> None:
    mark, errors = Mark(), list[str]()
    made: list[int] = []

    def finish() -> list[Mark]:
        made.append(1)
        return [mark]

    ticket = IsolatedTicket(2, finish, errors.append, lambda: "")  # type: ignore[arg-type]
    ticket.end("")
    assert not ticket.query() and not made, "only one of its two parts has ended"
    ticket.end("")
    assert not ticket.query() and made == [1]
    mark.reached = True
    assert ticket.query() and made == [1] and ticket.error() == ""
    assert errors == ["", ""]


@pytest.mark.parametrize(("error", "trouble"), [("gone", ""), ("", "it has failed")])
def test_nothing_comes_after_operations_that_have_failed(error: str, trouble: str) -> None:
    def finish() -> list[Mark]:
        raise AssertionError

    ticket = IsolatedTicket(1, finish, lambda _: None, lambda: trouble)  # type: ignore[arg-type]
    ticket.end(error)
    assert ticket.query()
    assert ticket.error() == error + trouble


def test_tensors_on_another_device_than_that_of_the_children(caplog: pytest.LogCaptureFixture) -> None:
    """They are never handed to a child: everything goes by Gloo, one warning says why and what to do."""
    accelerator = IsolatedAccelerator("rehearsal", MADE_BY, HostMemory(), lambda: "rehearsal:1")
    assert accelerator.place(torch.ones(1)) == PLACE
    accelerator._device = "rehearsal:1"
    for _ in range(2):
        assert accelerator.place(torch.ones(1)) == PLACE
    assert accelerator.place(torch.ones(1, dtype=torch.int64)) == ""
    assert len(caplog.records) == 1 and "call torch.cuda.set_device before FTLib.init" in caplog.text
    with pytest.raises(GroupError, match="tensors on rehearsal:0, but the accelerator was started on rehearsal:1"):
        accelerator.facts(GroupSpec("v", 1, 0, 2, {}, 1.0))


class Decision:
    """A ``Builder``."""

    def __init__(self) -> None:
        self.made = threading.Event()

    def decide(self, trouble: str) -> None:
        self.why = trouble
        self.made.set()

    def fail(self, error: str) -> None:
        raise AssertionError(error)


def test_a_child_is_not_given_up_while_it_builds_and_nobody_waits() -> None:
    """A device that others keep busy may hold it up for seconds, and what it built counts. Once it is asked, it must answer."""
    mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with subprocess.Popen(["sleep", "600"]) as silent:
        try:
            child = CommunicatorProcess(mine, silent.pid, os.pidfd_open(silent.pid))
            decision = Decision()
            child.build(SPEC, [{}, {}], decision)
            assert not child.gone.wait(2.0)
            its.send(Decided("").pack())
            assert decision.made.wait(TIMEOUT) and not decision.why
            with pytest.raises(NotYetError, match="has not answered"):
                child.facts(SPEC, 0.1)
            assert child.gone.wait(TIMEOUT)
        finally:
            silent.kill()
            its.close()


class Launch:
    """A ``Launched``."""

    def __init__(self) -> None:
        self.ended = threading.Event()

    def end(self, error: str) -> None:
        assert not error
        self.ended.set()


def test_a_child_is_heard_while_there_is_no_room_for_what_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it may wait for room itself, for what it has to say, and read no further. Nor do many launches end it."""
    monkeypatch.setattr(child_process, "_PATIENCE", TIMEOUT)
    monkeypatch.setattr(CommunicatorProcess, "SILENT", 10_000)
    mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    its.settimeout(TIMEOUT)
    memory = HostMemory()
    row = memory.row(PLACE, 10, torch.float32)
    span = memory.find(row)
    assert span is not None
    piece = Piece(OperationKind.ALLREDUCE, "SUM", row.dtype, 0, span.number, span.offset, row.numel())
    launches, said = [Launch() for _ in range(1500)], list[str]()

    def told(count: int) -> Iterator[int]:
        """The numbers of so many launches."""
        while count:
            record = unpack(its.recv(LIMIT))
            if isinstance(record, LaunchRecord):
                count -= 1
                yield record.number

    def answer(numbers: Iterable[int]) -> None:
        for number in numbers:
            its.send(Ended(number).pack())

    with subprocess.Popen(["sleep", "600"]) as silent, its:
        try:
            child = CommunicatorProcess(mine, silent.pid, os.pidfd_open(silent.pid))

            def launch() -> None:
                said.extend(child.launch([(piece, span)], [row], each) for each in launches)

            launching = threading.Thread(target=launch)
            launching.start()
            eventually(lambda: not select.select([], [mine], [], 0.0)[1], "it is told more than there is room for")
            answer(told(1))
            assert launches[0].ended.wait(TIMEOUT)
            assert launching.is_alive()
            answer(list(told(1024)))  # so many are under way; the others have to wait
            answer(told(475))
            launching.join(TIMEOUT)
            assert said == [""] * 1500
            assert all(each.ended.wait(TIMEOUT) for each in launches)
        finally:
            silent.kill()


def test_a_launch_for_which_there_is_never_room_fails() -> None:
    """Its thread never came to the wait for an operation, whose time-out would have ended the others."""
    mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    memory = HostMemory()
    row = memory.row(PLACE, 10, torch.float32)
    span = memory.find(row)
    assert span is not None
    piece = Piece(OperationKind.ALLREDUCE, "SUM", row.dtype, 0, span.number, span.offset, row.numel())
    ended: list[str] = []

    class Failing:
        """A ``Launched``."""

        def end(self, error: str) -> None:
            ended.append(error)

    def answer_pings() -> None:
        while True:
            data, fds, _, _ = socket.recv_fds(its, LIMIT, 1)
            for fd in fds:
                os.close(fd)
            if not data:
                return
            if isinstance(unpack(data), Ping):
                its.send(data)

    answering = threading.Thread(target=answer_pings)
    answering.start()
    with subprocess.Popen(["sleep", "600"]) as process, its:
        try:
            child = CommunicatorProcess(mine, process.pid, os.pidfd_open(process.pid))
            child.build(dataclasses.replace(SPEC, timeout=0.3), [{}, {}], Decision())
            said = [child.launch([(piece, span)], [row], Failing()) for _ in range(1025)]
            assert said[:-1] == [""] * 1024
            assert said[-1] == "1024 launches are under way, as many as may be, and none has ended within 0.3 s"
            assert child.gone.wait(TIMEOUT)
            eventually(lambda: len(ended) == 1024, "the end of all that were launched")
        finally:
            process.kill()
            its.shutdown(socket.SHUT_RDWR)
            answering.join(TIMEOUT)


@pytest.mark.parametrize("failing", ["device", "memory"])
def test_what_cannot_be_had_is_said_before_a_process_is_started(failing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class NoMemory(HostMemory):
        def start(self, place: str) -> None:
            raise RuntimeError("no libcudart")

    def no_device() -> str:
        raise GroupError("torch sees no CUDA device")

    monkeypatch.setattr(module, "Nursery", None)
    accelerator = (
        IsolatedAccelerator("nccl", MADE_BY, HostMemory(), no_device)
        if failing == "device"
        else IsolatedAccelerator("nccl", MADE_BY, NoMemory())
    )
    with pytest.raises(RuntimeError if failing == "memory" else GroupError, match=r"no libcudart|no CUDA device"):
        accelerator.start("127.0.0.1")
    accelerator.close()


class Late(RehearsedAccelerator):
    """It has never been there in time, but will be."""

    def await_facts(self, seconds: float) -> bool:
        return True


def test_another_view_for_a_late_accelerator_is_not_asked_for_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Should its facts hang each time, views would have no end."""
    rests: list[float] = []
    framework = HybridFramework(Late(Faults()))
    monkeypatch.setattr(framework._closing, "wait", rests.append)
    for epoch in range(1, 6):
        framework._await_facts(epoch)
        assert framework._late == epoch
    assert [round(rest) for rest in rests] == [0, 1, 2, 4, 8]
    monkeypatch.setattr(framework._closing, "wait", lambda _rest: True)
    framework._await_facts(6)
    assert framework._late == 5, "it is closed meanwhile"


def test_a_spare_that_dies_before_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others were told of it, so the next one cannot take its place in that view."""
    accelerator = IsolatedAccelerator("rehearsal", MADE_BY, HostMemory())
    with pytest.raises(NotYetError, match="that the other ranks were told of has ended"):
        accelerator.begin(GroupSpec("v", 1, 0, 2, {}, 1.0), [{}, {}], lambda: None)


class Device(Rehearsed):
    """What is enqueued has been done once ``mark`` is reached."""

    def __init__(self) -> None:
        super().__init__()
        self.mark = Mark()

    def record(self) -> Mark:  # type: ignore[override]
        return self.mark


class Process:
    """A child that only notes what it is told."""

    WORD, pid, working = "the process", 1, False

    def __init__(self) -> None:
        self.gone = threading.Event()
        self.launched: list[IsolatedTicket] = []

    def build(self, spec: GroupSpec, facts: object, builder: IsolatedCommunicator) -> None:
        builder.decide("")

    def launch(self, pieces: object, tensors: object, ticket: IsolatedTicket) -> str:
        self.launched.append(ticket)
        return ""

    def kill(self, why: str) -> None:
        self.gone.set()


@pytest.mark.parametrize("stopped", [False, True])
def test_a_child_is_told_once_the_buffers_are_filled(stopped: bool) -> None:
    """A stop ends the wait for that, and then it is never told."""
    device, process, memory = Device(), Process(), HostMemory()
    ended: list[object] = []

    def launch() -> None:
        try:
            ended.append(communicator.launch([Operation(OperationKind.ALLREDUCE, row, "SUM")]))
        except GroupError as error:
            ended.append(str(error))

    with placed_by(lambda _: "late:0", lambda _: device):
        communicator = IsolatedCommunicator(SPEC, process, memory, lambda _: "late:0", str)  # type: ignore[arg-type]
        communicator.begin([{}, {}], lambda: None)
        row = memory.row("late:0", 10, torch.float32)
        thread = threading.Thread(target=launch)
        thread.start()
        thread.join(0.1)
        assert thread.is_alive() and not process.launched
        if stopped:
            communicator.stop()
        else:
            device.mark.reached = True
        thread.join(TIMEOUT)
    assert not thread.is_alive()
    assert len(process.launched) == (not stopped)
    assert ended == (["the communicator of epoch 1 was stopped"] if stopped else process.launched)
