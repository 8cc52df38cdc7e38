"""Communicators in processes of their own, among real processes: what becomes of them, and of the memory that they share."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
import torch

from ftlib.errors import ConfigError, GroupError
from ftlib.frameworks import sockets
from ftlib.frameworks.accelerators.backoff import Backoff
from ftlib.frameworks.accelerators.base import NotYetError
from ftlib.frameworks.accelerators.isolated import IsolatedRehearsalFramework
from ftlib.frameworks.accelerators.isolated import accelerator as isolated
from ftlib.frameworks.accelerators.isolated.accelerator import IsolatedAccelerator
from ftlib.frameworks.accelerators.isolated.communicator import IsolatedCommunicator
from ftlib.frameworks.accelerators.isolated.memory import HostMemory
from ftlib.frameworks.accelerators.rehearsal.accelerator import PLACE
from ftlib.frameworks.base import GroupSpec, Operation, OperationKind, Work
from ftlib.frameworks.isolated import child_process
from tests.frameworks.accelerators import orders
from tests.frameworks.accelerators.orders import TIMEOUT, hybrid
from tests.frameworks.crew import Crew, Hand, Worker
from tests.frameworks.orders import reduce_one
from tests.harness.basics import eventually, lives

pytestmark = [pytest.mark.process, pytest.mark.skipif(not sockets.supported(), reason="needs /proc")]

COUNT = 1000
WHILE = 0.5
"""Seconds in which memory that is used too early would have been."""

_under_way: list[tuple[torch.Tensor, Work]] = []
"""In a worker: the operation of ``begin``, and its row."""


@pytest.fixture(scope="module")
def crew() -> Iterator[Crew]:
    """One of each kind, which share a group; the first one is that of a killed child."""
    crew, other = Crew("isolated:rehearsal"), Crew("rehearsal")
    crew.hands = [*crew.hire(1), *other.hire(1)]
    yield crew
    crew.close()


# --- what workers are told ---------------------------------------------------------------------------------------------


def framework(worker: Worker) -> IsolatedRehearsalFramework:
    assert isinstance(worker.framework, IsolatedRehearsalFramework)
    return worker.framework


def communicator(worker: Worker) -> IsolatedCommunicator:
    managed = hybrid(worker)._communicator
    assert managed is not None and isinstance(managed._communicator, IsolatedCommunicator)
    return managed._communicator


def row(worker: Worker) -> torch.Tensor:
    made = worker.group.allocate_at(PLACE, COUNT, torch.float32)
    made.fill_(worker.group.rank + 1.0)
    return made


def launch(worker: Worker, tensor: torch.Tensor) -> Work:
    return worker.group.submit_bulk([Operation(OperationKind.ALLREDUCE, tensor, "SUM")])


def reduce(worker: Worker) -> list[float]:
    """A row of the accelerator's, and a tensor that is none."""
    tensors = [row(worker), torch.full((COUNT,), worker.group.rank + 1.0)]
    for tensor in tensors:
        assert launch(worker, tensor).wait(TIMEOUT)
    return [float(tensor.unique()) for tensor in tensors]


def begin(worker: Worker) -> None:
    """An operation that the other rank has not entered."""
    tensor = row(worker)
    work = launch(worker, tensor)
    assert not work.wait(0.05)
    _under_way[:] = [(tensor, work)]


def signal_child(worker: Worker, number: int) -> tuple[str, tuple[int, ...]]:
    """While an operation is under way there, if there is one: with what it fails, and whom it blames."""
    os.kill(communicator(worker)._process.pid, number)
    work = _under_way[0][1] if _under_way else None
    if work is None:
        eventually(communicator(worker)._process.gone.is_set, "the end of the child", TIMEOUT)
        assert worker.group.accelerated, "else Gloo would carry everything until the next view"
        work = launch(worker, row(worker))
    with pytest.raises(GroupError) as failure:
        eventually(lambda: work.wait(0.05), "the end of the operation", TIMEOUT)
    _under_way.clear()
    return str(failure.value), failure.value.peers


def replaced(worker: Worker) -> int:
    return framework(worker).replaced


def counts(worker: Worker, wanted: int) -> None:
    """Wait for so many replaced children: who waits for an operation is woken before they are counted."""
    eventually(lambda: framework(worker).replaced == wanted, f"{wanted} children were replaced", TIMEOUT)


def rows_again(worker: Worker) -> int:
    """Rows that are freed are used again: how many addresses ten of them have."""
    return len({row(worker).data_ptr() for _ in range(10)})


def stop_without_an_end(worker: Worker, bug: bool) -> bool:
    """Stop it, while the signal takes its time. Whether the row's memory is free for others then; another one takes it."""
    tensor, work = _under_way.pop()
    address = tensor.data_ptr()
    with mock.patch.object(child_process.signal, "pidfd_send_signal"):
        hybrid(worker)._communicator.stop()  # type: ignore[union-attr]
        if bug:
            communicator(worker)._process._pending.clear()
        hybrid(worker)._communicator._kept.clear()  # type: ignore[union-attr]
        assert not communicator(worker).idle
        assert work.done() is False
        with pytest.raises(GroupError, match="abandoned"):
            work.wait(WHILE)
        del tensor, work
        _under_way.append((row(worker), None))  # type: ignore[arg-type]
        _under_way[0][0].fill_(7.0)
    return _under_way[0][0].data_ptr() == address


def enter(worker: Worker) -> bool:
    """The other rank's part. True if the operation succeeded."""
    try:
        return launch(worker, row(worker)).wait(TIMEOUT)
    except GroupError:
        return False


def found(worker: Worker, seconds: float) -> list[float]:
    """What is in the row, once the child has written there, or after so many seconds."""
    until = time.monotonic() + seconds
    while time.monotonic() < until and bool((_under_way[0][0] == 7.0).any()):
        time.sleep(0.01)
    return [float(value) for value in _under_way[0][0].unique()]


def finish_off(worker: Worker) -> bool:
    process = communicator(worker)._process
    os.kill(process.pid, signal.SIGKILL)
    eventually(process.gone.is_set, "the end of the child", TIMEOUT)
    _under_way.clear()
    return communicator(worker).idle


def kill_the_nursery(worker: Worker) -> None:
    """And with it go all children."""
    spares = framework(worker)._isolated._spares
    assert spares is not None
    child = communicator(worker)._process
    os.kill(spares._nursery.pid, signal.SIGKILL)
    eventually(child.gone.is_set, "the end of the child", TIMEOUT)


def no_accelerator(worker: Worker) -> str:
    """Empty once it is known that there is none in this view."""
    eventually(lambda: hybrid(worker).trouble, "the reason for no accelerator", TIMEOUT)
    text = hybrid(worker).trouble
    return "" if "has no rehearsal accelerator: " in text else text


def reduce_until_a_new_view_is_wanted(worker: Worker) -> tuple[str, tuple[int, ...]]:
    """By Gloo."""
    until = time.monotonic() + TIMEOUT
    try:
        while time.monotonic() < until:
            worker.group.allreduce(torch.ones(10)).wait(TIMEOUT)
            time.sleep(0.001)
    except GroupError as error:
        worker.group.abort()
        return str(error), error.peers
    return "nothing has happened", ()


def kill_spare(worker: Worker) -> None:
    spares = framework(worker)._isolated._spares
    assert spares is not None
    spare = spares.await_spare(TIMEOUT)
    assert spare is not None
    os.kill(spare.pid, signal.SIGKILL)
    eventually(spare.gone.is_set, "the end of the spare child", TIMEOUT)


def spare_again(worker: Worker) -> None:
    """Wait until there is one that has started; and failures of earlier tests are forgotten."""
    framework(worker)._backoff = Backoff()
    framework(worker)._isolated._spare(TIMEOUT)


def pids(worker: Worker) -> tuple[int, ...]:
    return framework(worker).pids


def close(worker: Worker) -> list[int]:
    """Which of the processes are left."""
    known = framework(worker).pids
    worker.framework.close()
    eventually(lambda: not any(map(lives, known)), "the ends of all", TIMEOUT)
    return [pid for pid in known if lives(pid)]


# --- the tests ---------------------------------------------------------------------------------------------------------


def ready(crew: Crew) -> list[Hand]:
    """A group of both, with accelerators."""
    hands = crew.hire(2)
    ask(hands[0], spare_again)
    crew.build(hands)
    crew.run(hands, orders.accelerated)
    return hands


def ask(hand: Hand, function: Any, *arguments: Any) -> Any:
    hand.tell(function, *arguments)
    return hand.answer()


def worked(crew: Crew) -> list[Hand]:
    hands = ready(crew)
    assert crew.run(hands, reduce) == [[3.0, 3.0]] * 2
    return hands


@pytest.mark.soak
def test_one_in_a_child_and_one_that_is_not(crew: Crew) -> None:
    """They connect to each other; and rows are used again."""
    hands = worked(crew)
    assert crew.run(hands, reduce_one, 1000) == [2.0] * 2
    assert ask(hands[0], rows_again) == 1
    ask(hands[0], spare_again)
    assert len(ask(hands[0], pids)) == 3
    assert ask(hands[0], replaced) == 0


@pytest.mark.parametrize(
    ("number", "when", "text"),
    [
        (signal.SIGKILL, "under way", "it has (closed its )?end"),
        (signal.SIGSTOP, "under way", r"it has not answered for 0\.8 s"),
        (signal.SIGKILL, "between", "it has (closed its )?end"),
    ],
)
def test_an_own_child_that_dies_or_hangs_is_nobody_elses_fault(crew: Crew, number: int, when: str, text: str) -> None:
    """Also where it had nothing to do; and the next view has another one. Twice."""
    for _ in range(2):
        hands = worked(crew)
        before = ask(hands[0], replaced)
        if when == "under way":
            ask(hands[0], begin)
        hands[0].tell(signal_child, number)
        error, blamed = hands[0].answer()
        assert "the accelerator's process" in error
        assert re.search(text, error)
        assert blamed == (0,)
        ask(hands[0], counts, before + 1)
        crew.run(hands, orders.abort)
        crew.run(hands, orders.settle, 1 << 30)


def test_the_spare_child_dies(crew: Crew) -> None:
    hands = worked(crew)
    ask(hands[0], kill_spare)
    crew.build(hands)
    crew.run(hands, orders.accelerated)
    assert crew.run(hands, reduce) == [[3.0, 3.0]] * 2


def check_memory_of_a_killed_child(crew: Crew, *, bug: bool = False) -> None:
    """It is not used for anything else before the child is gone, though nobody refers to it any more."""
    hands = worked(crew)
    ask(hands[0], begin)
    taken = ask(hands[0], stop_without_an_end, bug)
    entered = ask(hands[1], enter)
    values = ask(hands[0], found, TIMEOUT if bug else WHILE)
    assert ask(hands[0], finish_off), "idle, once the child is gone"
    crew.run(hands, orders.abort)
    assert entered, "nothing was shown: the child did not work any more"
    assert values == [7.0], f"{values}: written to by a child that was taken for gone"
    assert not taken


def test_memory_is_used_again_once_the_child_is_gone(crew: Crew) -> None:
    check_memory_of_a_killed_child(crew)


def test_planted_memory_reused_before_the_child_was_gone(crew: Crew) -> None:
    with pytest.raises(AssertionError, match=r"\[3\.0\]: written to by a child that was taken for gone"):
        check_memory_of_a_killed_child(crew, bug=True)


@pytest.mark.soak
def test_the_nursery_dies(crew: Crew) -> None:
    """A new one takes seconds to start: Gloo carries everything meanwhile. Then a new view is asked for, by nobody's fault."""
    hands = worked(crew)
    ask(hands[0], kill_the_nursery)
    crew.run(hands, orders.abort)
    crew.build(hands)
    assert crew.run(hands, no_accelerator) == [""] * 2
    for hand in hands:
        hand.tell(reduce_until_a_new_view_is_wanted)
    answers = [hand.answer() for hand in hands]
    assert answers[0] == ("rank 0 of 2 wants a new view: its rehearsal accelerator can be used now", (0,))
    assert answers[1][1] != (1,)
    crew.build(hands)
    crew.run(hands, orders.accelerated)
    assert crew.run(hands, reduce) == [[3.0, 3.0]] * 2


def test_the_training_process_dies(crew: Crew) -> None:
    """All its processes do within a second, give or take the machine's other work."""
    hands = worked(crew)
    left = ask(hands[0], pids)
    hands[0].kill()
    began = time.monotonic()
    eventually(lambda: not any(map(lives, left)), "no orphan", TIMEOUT)
    print(f"\ngone after {time.monotonic() - began:.2f} s")
    hands[1].kill()


@pytest.mark.soak
def test_close_leaves_no_process(crew: Crew) -> None:
    hands = worked(crew)
    assert ask(hands[0], close) == []
    for hand in hands:
        hand.kill()


def ask_for_facts(accelerator: IsolatedAccelerator) -> None:
    accelerator.start("127.0.0.1")
    began = time.monotonic()
    try:
        accelerator.facts(SPEC)
    finally:
        assert time.monotonic() - began < TIMEOUT


SPEC = GroupSpec("v", 1, 0, 2, {}, 5.0)


@pytest.mark.parametrize(
    ("maker", "error", "text"),
    [
        ("StartFails", GroupError, "^libnccl.so.2 is too old$"),
        pytest.param("Misconfigured", ConfigError, "unset it", marks=pytest.mark.soak),
        pytest.param("StartHangs", NotYetError, "has not started it within", marks=pytest.mark.soak),
        pytest.param("FactsFail", GroupError, "^no id could be made$", marks=pytest.mark.soak),
        pytest.param("FactsHang", NotYetError, "has not answered", marks=pytest.mark.soak),
    ],
)
def test_an_accelerator_that_fails_before_it_begins(maker: str, error: type[Exception], text: str) -> None:
    """The reason is that of the child's, nobody waits for long, and nothing is left behind."""
    accelerator = IsolatedAccelerator("rehearsal", f"tests.frameworks.accelerators.makers:{maker}", HostMemory())
    try:
        limit = 5.0 if maker == "StartHangs" else 60.0
        with mock.patch.object(isolated, "_START", limit), pytest.raises(error, match=text) as failure:
            ask_for_facts(accelerator)
        assert type(failure.value) is error
        if maker == "FactsHang":
            eventually(lambda: accelerator.replaced == 1, "the end of the child that hangs", TIMEOUT)
            assert accelerator.await_facts(TIMEOUT)
    finally:
        left = accelerator.pids
        accelerator.close()
        eventually(lambda: not any(map(lives, left)), "the ends of all", TIMEOUT)
