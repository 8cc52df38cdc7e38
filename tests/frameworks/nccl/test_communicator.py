"""One communicator: what it asks of NCCL and when, whatever NCCL answers."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest
import torch

from ftlib.errors import ConfigError, GroupError
from ftlib.frameworks.accelerators.base import Ticket
from ftlib.frameworks.accelerators.nccl import communicator as module
from ftlib.frameworks.accelerators.nccl.communicator import NcclCommunicator
from ftlib.frameworks.accelerators.nccl.gpus import Gpu
from ftlib.frameworks.accelerators.nccl.results import Result
from ftlib.frameworks.base import GroupSpec, Operation, OperationKind
from tests.frameworks.nccl.scripted import HANDLE, STREAM, LoggingDevice, Scripted, scripted
from tests.harness.basics import TIMEOUT, around, eventually

PROGRESS = int(Result.IN_PROGRESS)
BAD = [1, 2, 3, 4, 5, 6, 8, 99]


class Stage:
    """A communicator of rank 1 of 2, and its surroundings."""

    def __init__(self, nccl: Scripted, device: LoggingDevice, gpu: Gpu) -> None:
        self.nccl, self.device, self.gpu = nccl, device, gpu
        self.elsewhere = ""
        self.decided = threading.Event()

    def begin(self, timeout: float = 20.0) -> NcclCommunicator:
        spec = GroupSpec("view", 7, 1, 2, {}, timeout)
        made = NcclCommunicator(spec, bytes(range(128)), self.nccl.library(), self.gpu, lambda: self.elsewhere, (4096, 8192))
        made.begin(self.decided.set)
        return made

    def ready(self, timeout: float = 20.0) -> NcclCommunicator:
        made = self.begin(timeout)
        assert self.decided.wait(TIMEOUT)
        assert made.ready, made.trouble
        self.nccl.log.clear()
        return made

    def since(self, name: str) -> list[str]:
        names = self.nccl.names
        return names[names.index(name) :]


@pytest.fixture
def stage() -> Iterator[Stage]:
    with scripted() as parts:
        yield Stage(*parts)


def reduction(elements: int = 10) -> Operation:
    return Operation(OperationKind.ALLREDUCE, torch.ones(elements), "SUM")


# --- start -------------------------------------------------------------------------------------------------------------


def test_a_start_builds_and_warms_up_with_few_and_many_bytes(stage: Stage) -> None:
    stage.nccl.states.extend([PROGRESS] * 3)
    stage.nccl.codes["ncclCommInitRankConfig"] = PROGRESS
    made = stage.begin()
    assert stage.decided.wait(TIMEOUT)
    assert made.ready and not made.trouble and made.idle
    once = ["follow", "ncclGroupStart", "ncclAllReduce", "ncclGroupEnd", "record"]
    assert stage.nccl.names == ["ncclCommInitRankConfig", *once, *once]
    assert stage.nccl.log[0] == ("ncclCommInitRankConfig", 2, bytes(range(128)), 1)
    assert [entry[3] for entry in stage.nccl.log if entry[0] == "ncclAllReduce"] == [1024, 2048]


@pytest.mark.parametrize("code", BAD)
@pytest.mark.parametrize("function", ["ncclCommInitRankConfig", "ncclCommGetAsyncError", "ncclGroupStart", "ncclAllReduce"])
def test_a_start_that_fails_says_why(stage: Stage, function: str, code: int) -> None:
    stage.nccl.codes[function] = code
    made = stage.begin()
    assert stage.decided.wait(TIMEOUT)
    assert not made.ready
    assert function in made.trouble and "what NCCL said last" in made.trouble
    with pytest.raises(GroupError):
        made.launch([reduction()])
    made.stop()
    made.free()
    names = stage.nccl.names
    if function in ("ncclCommInitRankConfig", "ncclCommGetAsyncError"):
        assert "ncclCommRevoke" not in names, "it was never built"
    else:
        assert names.index("ncclCommRevoke") < names.index("ncclCommAbort")
    assert names.count("ncclCommAbort") == (function != "ncclCommInitRankConfig")


@pytest.mark.parametrize("state", BAD)
def test_a_start_that_fails_later_says_why(stage: Stage, state: int) -> None:
    stage.nccl.states.extend([PROGRESS, PROGRESS, state])
    made = stage.begin()
    assert stage.decided.wait(TIMEOUT)
    assert "the start of the communicator failed" in made.trouble


def test_a_start_in_progress_for_ever_has_a_deadline(stage: Stage) -> None:
    stage.nccl.state = PROGRESS
    made = stage.begin(timeout=0.2)
    assert stage.decided.wait(TIMEOUT)
    assert made.trouble == "the start of the communicator was still in progress after 0.2 s"


def test_a_first_operation_without_end_has_a_deadline(stage: Stage) -> None:
    stage.device.done = False
    made = stage.begin(timeout=0.2)
    assert stage.decided.wait(TIMEOUT)
    assert made.trouble == "the first operation of 4096 bytes did not end within 0.2 s"
    assert not made.idle


def test_a_stop_ends_a_start(stage: Stage) -> None:
    """At once; and NCCL's own threads, which may still build, end with the free."""
    stage.nccl.state = PROGRESS
    made = stage.begin()
    eventually(lambda: stage.nccl.log, "the first call")
    began = time.monotonic()
    made.stop()
    assert stage.decided.wait(TIMEOUT)
    assert time.monotonic() - began < 15.0
    assert made.idle and not made.ready and not made.trouble
    assert stage.nccl.names == ["ncclCommInitRankConfig"]
    made.free()
    assert stage.nccl.log[1:] == [("ncclCommAbort", HANDLE)]


def stops_before_it_is_heard(stage: Stage, monkeypatch: pytest.MonkeyPatch, state: int) -> NcclCommunicator:
    """One that was in progress when its start asked last, and is in ``state`` as the stop has its turn."""
    stage.nccl.state = PROGRESS
    made = stage.begin()
    eventually(lambda: stage.nccl.log, "the first call")

    @around(monkeypatch, made, "_turn")
    def _turn(usual: Callable[[str], AbstractContextManager[None]], what: str) -> AbstractContextManager[None]:
        if what == "stop the communicator":
            assert stage.decided.wait(TIMEOUT), "the start hears of the stop first"
            stage.nccl.state = state
        return usual(what)

    made.stop()
    return made


def test_what_is_built_before_its_start_hears_so_is_revoked(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    made = stops_before_it_is_heard(stage, monkeypatch, Result.SUCCESS)
    made.free()
    assert stage.nccl.names == ["ncclCommInitRankConfig", "ncclCommRevoke", "ncclCommAbort"]
    assert not made.trouble


def test_what_is_built_after_the_stop_is_revoked_before_it_is_freed(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    made = stops_before_it_is_heard(stage, monkeypatch, PROGRESS)
    assert stage.nccl.names == ["ncclCommInitRankConfig"]
    stage.nccl.state = Result.SUCCESS
    made.free()
    assert stage.nccl.names == ["ncclCommInitRankConfig", "ncclCommRevoke", "ncclCommAbort"]


def test_a_stop_during_the_first_operation_revokes(stage: Stage) -> None:
    stage.device.done = False
    made = stage.begin()
    eventually(lambda: "record" in stage.nccl.names, "the first operation")
    stopper = threading.Thread(target=made.stop)
    stopper.start()
    eventually(lambda: "ncclCommRevoke" in stage.nccl.names, "the revoke")
    assert stopper.is_alive() and not made.idle
    stage.device.done = True
    stopper.join(TIMEOUT)
    assert made.idle and stage.decided.wait(TIMEOUT) and not made.trouble


def test_a_first_call_that_hangs_in_nccl_is_not_waited_for(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_TURN", 0.1)
    back = stage.nccl.hang["ncclCommInitRankConfig"] = threading.Event()
    made = stage.begin()
    eventually(lambda: stage.nccl.log, "the call")
    with pytest.raises(GroupError, match="has not come back from NCCL"):
        made.stop()
    back.set()
    assert stage.decided.wait(TIMEOUT)
    assert not made.ready
    assert stage.nccl.names == ["ncclCommInitRankConfig"]


# --- launch ------------------------------------------------------------------------------------------------------------


def test_a_launch_is_one_group_after_the_callers_stream(stage: Stage) -> None:
    made = stage.ready()
    rows = [torch.ones(3), torch.ones(5, dtype=torch.float64), torch.ones(4, dtype=torch.bfloat16)]
    operations = [Operation(OperationKind.ALLREDUCE, rows[0], "SUM"), Operation(OperationKind.ALLREDUCE, rows[1], "MIN")]
    operations.append(Operation(OperationKind.BROADCAST, rows[2], peer=1))
    current: list[bool] = []
    ticket = made.launch(operations, lambda: current.append(stage.device.current))
    first, second, third = (row.data_ptr() for row in rows)
    assert stage.nccl.log[0][0] == "follow"
    assert stage.nccl.log[1:] == [
        ("ncclGroupStart",),
        ("ncclAllReduce", first, first, 3, 7, 0, HANDLE, STREAM),
        ("ncclAllReduce", second, second, 5, 8, 3, HANDLE, STREAM),
        ("ncclBroadcast", third, third, 8, 1, 1, HANDLE, STREAM),
        ("ncclGroupEnd",),
        ("record",),
    ]
    assert current == [True], "what comes after is enqueued on the same stream"
    assert ticket.query() and not ticket.error() and made.idle


def test_the_event_comes_after_nccl_has_launched(stage: Stage) -> None:
    made = stage.ready()
    stage.nccl.codes["ncclGroupEnd"] = PROGRESS
    stage.nccl.state = PROGRESS
    tickets: list[object] = []
    thread = threading.Thread(target=lambda: tickets.append(made.launch([reduction()])))
    thread.start()
    eventually(lambda: "ncclGroupEnd" in stage.nccl.names, "the launch")
    time.sleep(0.1)
    assert "record" not in stage.nccl.names and not tickets and not made.idle
    stage.nccl.state = Result.SUCCESS
    thread.join(TIMEOUT)
    assert stage.nccl.names[-1] == "record" and tickets


@pytest.mark.parametrize("code", BAD)
@pytest.mark.parametrize(
    "function", ["ncclGroupStart", "ncclAllReduce", "ncclBroadcast", "ncclGroupEnd", "ncclCommGetAsyncError"]
)
def test_a_launch_that_fails_marks_nothing(stage: Stage, function: str, code: int) -> None:
    made = stage.ready()
    stage.nccl.codes[function] = code
    operations = [reduction(), Operation(OperationKind.BROADCAST, torch.ones(4), peer=0)]
    ticket = made.launch(operations)
    assert re.search(f"{function}: .*what NCCL said last", ticket.error())
    assert not ticket.query()
    names = stage.nccl.names
    assert "record" not in names
    assert names.count("ncclGroupEnd") == (function != "ncclGroupStart"), "a group that was begun is ended"
    assert made.trouble and not made.idle, "something may be running"
    stage.nccl.codes.clear()
    made.stop()
    assert made.idle and ticket.query() and stage.since("ncclCommRevoke") == ["ncclCommRevoke", "record"]
    assert not made.trouble and not ticket.error(), "a stop is no error"


@pytest.mark.parametrize("state", BAD)
def test_a_launch_that_fails_later_marks_nothing(stage: Stage, state: int) -> None:
    made = stage.ready()
    stage.nccl.states.extend([PROGRESS, PROGRESS])
    stage.nccl.state = state
    ticket = made.launch([reduction()])
    assert "record" not in stage.nccl.names and not ticket.query()
    assert "a launch failed" in ticket.error() == made.trouble


def test_a_launch_in_progress_for_ever_has_a_deadline(stage: Stage) -> None:
    made = stage.ready(timeout=0.2)
    stage.nccl.state = PROGRESS
    ticket = made.launch([reduction()])
    assert ticket.error() == "a launch was still in progress after 0.2 s"
    assert not ticket.query()


def test_a_stop_ends_a_launch_in_progress(stage: Stage) -> None:
    made = stage.ready()
    stage.nccl.state = stage.nccl.codes["ncclCommRevoke"] = PROGRESS
    tickets: list[Ticket] = []
    thread = threading.Thread(target=lambda: tickets.append(made.launch([reduction()])))
    thread.start()
    eventually(lambda: "ncclGroupEnd" in stage.nccl.names, "the launch")
    stopper = threading.Thread(target=made.stop)
    stopper.start()
    thread.join(TIMEOUT)
    assert not tickets[0].query() and not tickets[0].error()
    stage.nccl.state = Result.SUCCESS
    stopper.join(TIMEOUT)
    assert made.idle and tickets[0].query()
    with pytest.raises(GroupError, match="is stopped"):
        made.launch([reduction()])


@pytest.mark.parametrize("state", BAD)
def test_an_error_in_between_is_seen_by_whoever_asks(stage: Stage, state: int) -> None:
    made = stage.ready()
    stage.device.done = False
    ticket = made.launch([reduction()])
    assert not ticket.query() and not ticket.error()
    stage.nccl.state = state
    assert "what NCCL said last" in ticket.error()
    stage.nccl.state = Result.SUCCESS
    assert made.trouble == ticket.error() != "", "it does not go away"


def test_other_operations_go_by_gloo(stage: Stage) -> None:
    made = stage.ready()
    for operation in [
        Operation(OperationKind.SEND, torch.ones(1), peer=0),
        Operation(OperationKind.ALLREDUCE, torch.ones(1, dtype=torch.int16), "SUM"),
        Operation(OperationKind.ALLREDUCE, torch.ones(1), "MEDIAN"),
    ]:
        with pytest.raises(ConfigError, match=r"use Group\.submit"):
            made.launch([reduction(), operation])
    assert "ncclGroupStart" not in stage.nccl.names and made.idle


def test_a_devices_own_error_reaches_whoever_waits(stage: Stage) -> None:
    """But for those who stop: a device that has failed does nothing any more."""
    made = stage.ready()
    ticket = made.launch([reduction()])
    stage.device.error = RuntimeError("CUDA error: an illegal memory access was encountered")
    with pytest.raises(RuntimeError, match="illegal memory access"):
        ticket.query()
    assert made.idle
    made.stop()
    assert made.idle
    made.free()


def test_tensors_on_another_device_are_trouble(stage: Stage) -> None:
    made = stage.ready()
    stage.elsewhere = "there are tensors on cuda:3"
    assert not made.ready and made.trouble == stage.elsewhere


# --- stop and free -----------------------------------------------------------------------------------------------------


def test_stop_revokes_and_free_aborts(stage: Stage) -> None:
    made = stage.ready()
    made.launch([reduction()])
    stage.nccl.codes["ncclCommRevoke"] = PROGRESS
    stage.nccl.states.extend([PROGRESS] * 5)
    made.stop()
    made.stop()
    assert stage.since("ncclCommRevoke") == ["ncclCommRevoke", "record"]
    assert stage.nccl.log[-2] == ("ncclCommRevoke", HANDLE, 0)
    assert not made.ready and not made.trouble
    made.free()
    made.free()
    assert stage.since("record")[-1] == "ncclCommAbort" and stage.nccl.names.count("ncclCommAbort") == 1


@pytest.mark.parametrize("code", BAD)
def test_the_device_says_whether_a_revoke_has_worked(stage: Stage, code: int) -> None:
    """NCCL answers with the state of the communicator, which may be an error from before."""
    made = stage.ready()
    stage.device.done = False
    made.launch([reduction()])
    stage.nccl.codes["ncclCommRevoke"] = code
    stopper = threading.Thread(target=made.stop)
    stopper.start()
    time.sleep(0.05)
    assert stopper.is_alive()
    stage.device.done = True
    stopper.join(TIMEOUT)
    assert made.idle


@pytest.mark.parametrize("what", ["in progress", "have not ended"])
def test_a_revoke_without_end_has_a_deadline(stage: Stage, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    monkeypatch.setattr(module, "_STOP", 0.2)
    made = stage.ready()
    stage.device.done = False
    made.launch([reduction()])
    if what == "in progress":
        stage.nccl.codes["ncclCommRevoke"] = stage.nccl.state = PROGRESS
    with pytest.raises(GroupError, match=what):
        made.stop()
    assert not made.idle


def test_nothing_is_asked_of_nccl_beside_a_revoke_that_hangs(stage: Stage) -> None:
    made = stage.ready()
    ticket = made.launch([reduction()])
    back = stage.nccl.hang["ncclCommRevoke"] = threading.Event()
    stopper = threading.Thread(target=made.stop)
    stopper.start()
    eventually(lambda: "ncclCommRevoke" in stage.nccl.names, "the revoke")
    stage.nccl.state = Result.REMOTE_ERROR
    assert not ticket.error() and not made.trouble and not made.ready
    with pytest.raises(GroupError, match="is stopped"):
        made.launch([reduction()])
    back.set()
    stopper.join(TIMEOUT)


@pytest.mark.parametrize("code", [*BAD, PROGRESS])
def test_an_abort_that_fails_says_so(stage: Stage, code: int) -> None:
    made = stage.ready()
    made.stop()
    stage.nccl.codes["ncclCommAbort"] = code
    with pytest.raises(GroupError, match="ncclCommAbort: "):
        made.free()
    made.free()
    assert stage.nccl.names.count("ncclCommAbort") == 1, "the handle is void, whatever came of it"


def test_a_start_that_ends_before_the_stop_has_its_turn_is_no_error(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.device.done = False
    made = stage.begin()
    eventually(lambda: "record" in stage.nccl.names, "the first operation")

    @around(monkeypatch, made, "_turn")
    def _turn(usual: Callable[[str], AbstractContextManager[None]], what: str) -> AbstractContextManager[None]:
        if what == "stop the communicator":
            assert stage.decided.wait(TIMEOUT), "the start hears of the stop first"
            stage.device.done = True
        return usual(what)

    made.stop()
    assert made.idle and not made.ready and not made.trouble
