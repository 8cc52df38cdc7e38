"""The processes that groups live in: without descriptors, stopped, told much at once, started again."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from ftlib.errors import GroupError
from ftlib.frameworks import GroupSpec, sockets
from ftlib.frameworks.base import Operation, OperationKind
from ftlib.frameworks.isolated import group_process
from ftlib.frameworks.isolated.framework import IsolatedFramework
from ftlib.frameworks.isolated.group import IsolatedGroup
from ftlib.frameworks.isolated.group_process import GroupProcess, IsolatedWork
from ftlib.frameworks.isolated.nursery import Nursery
from ftlib.frameworks.isolated.records import LIMIT, Build, Ended, Ping, Run, unpack
from ftlib.frameworks.isolated.segments import Segments
from tests.frameworks.crew import Crew, Worker
from tests.frameworks.threadless import no_thread_left
from tests.harness.basics import TIMEOUT, eventually, lives

pytestmark = [pytest.mark.process, pytest.mark.skipif(not sockets.supported(), reason="needs /proc")]

ROLE = "ftlib.frameworks.isolated.group_child:prepare"
SOON = 20.0
"""Seconds that are long, and yet short of any deadline here."""


@pytest.fixture(scope="module")
def crew() -> Iterator[Crew]:
    crew = Crew("isolated:gloo")
    yield crew
    crew.close()


def open_descriptors() -> set[int]:
    """Of this process, and the one of the look itself."""
    return {int(each.name) for each in Path("/proc/self/fd").iterdir()}


@contextlib.contextmanager
def no_descriptor_left() -> Iterator[None]:
    """In a process of its own: whoever opens anything fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.ExitStack() as stack:
        highest = max(open_descriptors())
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 8, hard))
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        with contextlib.suppress(OSError):
            while True:
                stack.callback(os.close, os.open(os.devnull, os.O_RDONLY))
        yield


# --- what workers are told ---------------------------------------------------------------------------------------------


def rebuild_without_descriptors(worker: Worker, spec: GroupSpec, later: GroupSpec) -> tuple[str, float]:
    """What is said where neither a spare process nor another one can be had, and after how long; later there is one."""
    framework = worker.framework
    assert isinstance(framework, IsolatedFramework)
    spare = framework._spares.take()
    with no_descriptor_left():
        begin = time.monotonic()
        with pytest.raises(GroupError) as caught:
            framework.rebuild(spec)
        took = time.monotonic() - begin
        framework._spares.fork_ahead()  # whoever needs one finds that out
        assert framework._spares.await_spare(0.0) is None
    spare.kill("the test needs it no more")
    assert framework.rebuild(later).barrier().wait(TIMEOUT)
    return str(caught.value), took


def take_without_a_thread(worker: Worker) -> None:
    """The spare process, each way to take it, where no thread can be had that forks another one later."""
    framework = worker.framework
    assert isinstance(framework, IsolatedFramework)
    spares = framework._spares
    for any_one in (True, False):
        spare = spares.await_spare(TIMEOUT)
        assert spare is not None
        with no_thread_left():
            assert spares.take() is spare if any_one else spares.take_this(spare)
        assert spare.usable
        spare.kill("the test needs it no more")


def build_what_cannot_be_told(worker: Worker, spec: GroupSpec) -> tuple[str, bool]:
    """What is said of a view that no record can hold, and whether the process that was taken for it ends."""
    framework = worker.framework
    assert isinstance(framework, IsolatedFramework)
    spare = framework._spares.await_spare(TIMEOUT)
    assert spare is not None
    with pytest.raises(GroupError) as caught:
        framework.rebuild(spec)
    return str(caught.value), spare.gone.wait(SOON)


def begin_at_once(worker: Worker, count: int) -> tuple[set[float], bool]:
    """Begin so many operations before any is waited for: what they have come to, and whether the process has outlived them."""
    group = worker.group
    assert isinstance(group, IsolatedGroup)
    rows = [worker.framework.allocate(4, torch.float32).fill_(1.0) for _ in range(count)]
    for work in [group.allreduce(row) for row in rows]:
        assert work.wait(TIMEOUT)
    return {float(value) for row in rows for value in row}, group._child.usable


def exchange_at_once(worker: Worker, count: int) -> tuple[set[float], bool]:
    """Begin so many receives, then as many sends, as the peer does: what was received, and whether the process outlived it."""
    group = worker.group
    assert isinstance(group, IsolatedGroup)
    peer = 1 - group.rank
    rows = [worker.framework.allocate(1, torch.float32).fill_(value) for value in [0.0] * count + [group.rank + 1.0] * count]
    works = [group.recv(row, peer, tag) for tag, row in enumerate(rows[:count])]
    works += [group.send(row, peer, tag) for tag, row in enumerate(rows[count:])]
    assert all(work.wait(TIMEOUT) for work in works)
    return {float(row) for row in rows[:count]}, group._child.usable


class Idle(threading.Thread):
    """The other end of a child's socket: it answers, notes which operations it is to begin, and ends none."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(daemon=True)
        self._sock = sock
        self.begun: list[OperationKind] = []

    def run(self) -> None:
        while True:
            data, fds, _, _ = socket.recv_fds(self._sock, LIMIT, 1)
            for fd in fds:
                os.close(fd)
            if not data:
                return
            match unpack(data):
                case Ping():
                    self._sock.send(data)
                case Build():
                    self._sock.send(Ended(0).pack())
                case Run(_, kind):
                    self.begun.append(kind)


@contextlib.contextmanager
def child_that_ends_nothing(timeout: float) -> Iterator[tuple[GroupProcess, Idle]]:
    """With a group whose operations have that time-out, and as many collectives under way as may be."""
    mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with subprocess.Popen(["sleep", "600"]) as process, its:
        try:
            idle = Idle(its)
            idle.start()
            child = GroupProcess(mine, process.pid, os.pidfd_open(process.pid), Segments())
            built = threading.Event()
            child.build(GroupSpec("v", 1, 0, 2, {}, timeout), "127.0.0.1", lambda _: built.set())
            assert built.wait(TIMEOUT)
            for _ in range(1024):
                child.run(Operation(OperationKind.ALLREDUCE, torch.zeros(1), "SUM"))
            yield child, idle
            child.kill("the test is over")
            assert child.gone.wait(TIMEOUT)
            idle.join(TIMEOUT)
        finally:
            process.kill()


# --- the tests ---------------------------------------------------------------------------------------------------------


def test_a_close_does_not_wait_for_a_process_that_does_not_answer() -> None:
    nursery = Nursery(ROLE)
    sock, _, pidfd = nursery.fork()
    sock.close()
    os.close(pidfd)
    os.kill(nursery.pid, signal.SIGSTOP)
    errors: list[str] = []

    def fork() -> None:
        try:
            nursery.fork()
        except GroupError as error:
            errors.append(str(error))

    forking = threading.Thread(target=fork)
    forking.start()
    eventually(nursery._lock.locked, "it is asked for a child")
    begin = time.monotonic()
    nursery.close()
    forking.join(TIMEOUT)
    assert time.monotonic() - begin < SOON
    assert errors == ["the framework is closed"]
    with pytest.raises(GroupError, match="closed"):
        nursery.fork()


def test_the_working_directory_may_have_been_removed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As in ``python -c``, which looks there for modules."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", ["", *sys.path])
    tmp_path.rmdir()
    nursery = Nursery(ROLE)
    try:
        sock, pid, pidfd = nursery.fork()
        sock.close()
        os.close(pidfd)
        assert pid
    finally:
        nursery.close()


def test_a_group_that_no_process_can_be_had_for_fails_at_once(crew: Crew) -> None:
    """Not after the whole timeout; and there is one as soon as there are descriptors again."""
    hands = crew.hire(2)[:1]
    [spec], [later] = crew.specs(hands), crew.specs(hands)
    [(text, took)] = crew.run(hands, rebuild_without_descriptors, spec, later)
    assert "Too many open files" in text
    assert took < SOON


@pytest.mark.parametrize("count", [600, 1500])
def test_more_operations_at_once_than_the_process_is_told_of_at_once(crew: Crew, count: int) -> None:
    """More than the queue to it has room for; and more than may be under way."""
    hands = crew.hire(2)
    crew.build(hands)
    assert crew.run(hands, begin_at_once, count) == [({2.0}, True)] * 2


def test_more_receives_than_collectives_may_be_under_way_before_the_sends(crew: Crew) -> None:
    """Where a receive waited for an earlier one to end, the sends behind it at both ranks would never begin."""
    hands = crew.hire(2)
    crew.build(hands)
    assert crew.run(hands, exchange_at_once, 1100) == [({2.0}, True), ({1.0}, True)]


def test_the_more_is_under_way_the_longer_an_answer_is_waited_for() -> None:
    """A process with a thousand threads on a busy host was taken for one that hangs."""
    with child_that_ends_nothing(TIMEOUT) as (child, _):
        assert child._looks() == GroupProcess.SILENT + 10
        child.close("it has ended")
        assert child.gone.wait(TIMEOUT)
        assert child._looks() == GroupProcess.SILENT


def test_a_collective_that_waits_for_room_holds_up_no_send() -> None:
    with child_that_ends_nothing(TIMEOUT) as (child, idle):
        works: list[IsolatedWork] = []

        def one_more() -> None:
            works.append(child.run(Operation(OperationKind.ALLREDUCE, torch.zeros(1), "SUM")))

        waiting = threading.Thread(target=one_more)
        waiting.start()
        waiting.join(0.1)
        child.run(Operation(OperationKind.SEND, torch.zeros(1), peer=1))
        eventually(lambda: idle.begun[1024:] == [OperationKind.SEND], "it is to send")
        assert waiting.is_alive()
        child.close("the group was aborted")
        waiting.join(TIMEOUT)
        with pytest.raises(GroupError, match="aborted"):
            works[0].wait(TIMEOUT)


def test_a_collective_for_which_there_is_never_room_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waited for ever, and an abort by time-out never came, as that is for who waits for an operation."""
    monkeypatch.setattr(group_process, "_LATER", 0.0)
    with child_that_ends_nothing(0.3) as (child, _):
        begin = time.monotonic()
        work = child.run(Operation(OperationKind.ALLREDUCE, torch.zeros(1), "SUM"))
        assert time.monotonic() - begin < SOON
        with pytest.raises(GroupError, match=r"1024 collectives are under way, .* none has ended within 0\.3 s"):
            work.wait(TIMEOUT)
        assert child.gone.wait(TIMEOUT)


def test_an_abort_kills_the_process_where_no_thread_can_be_had() -> None:
    """Nobody can give it a moment to cut its connections. It was to be used no more, and lived on with its operations."""
    with child_that_ends_nothing(TIMEOUT) as (child, _):
        with no_thread_left():
            child.close("the group was aborted")
        assert child.gone.wait(SOON)


def test_a_process_is_not_lost_where_no_thread_can_be_had_to_fork_the_next_one(crew: Crew) -> None:
    hands = crew.hire(2)[:1]
    crew.run(hands, take_without_a_thread)


def test_a_process_that_cannot_be_told_what_to_build_ends(crew: Crew) -> None:
    hands = crew.hire(2)[:1]
    [spec] = crew.specs(hands)
    [(text, ended)] = crew.run(hands, build_what_cannot_be_told, dataclasses.replace(spec, view_id=b"v"))
    assert "not JSON serializable" in text and ended


def test_a_process_that_no_thread_can_listen_to_leaves_no_descriptors(tmp_path: Path) -> None:
    """Forked children of the program lost files that had got the numbers of its descriptors meanwhile."""
    path = tmp_path / "file"
    path.write_text("data")
    mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with subprocess.Popen(["sleep", "600"]) as process, its, contextlib.ExitStack() as stack:
        stack.callback(process.kill)
        pidfd = os.pidfd_open(process.pid)
        before = open_descriptors()
        with no_thread_left(), pytest.raises(RuntimeError, match="can't start new thread") as kept:
            GroupProcess(mine, process.pid, pidfd, Segments())
        assert kept.traceback, "its frames have the process"
        assert open_descriptors() <= before
        mine.close()
        os.close(pidfd)
        files = [os.open(path, os.O_RDONLY) for _ in range(8)]
        for file in files:
            stack.callback(os.close, file)
        child = os.fork()
        if not child:
            os._exit(0 if all(os.pread(file, 4, 0) == b"data" for file in files) else 3)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_framework_that_was_closed_can_be_started_again() -> None:
    framework = IsolatedFramework()
    for epoch in (1, 2):
        facts = framework.start("127.0.0.1")
        group = framework.rebuild(GroupSpec(f"v{epoch}", epoch, 0, 1, facts, TIMEOUT))
        assert group.barrier().wait(TIMEOUT)
        pids = framework.pids
        framework.close()
        eventually(lambda pids=pids: not any(map(lives, pids)), "the end of its processes")  # type: ignore[misc]
