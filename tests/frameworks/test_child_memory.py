"""Memory that a killed child shares is not used for anything else before the child is certainly gone."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
import torch

from ftlib.errors import GroupError
from ftlib.frameworks import sockets
from ftlib.frameworks.base import Work
from ftlib.frameworks.isolated import child_process
from ftlib.frameworks.isolated.group import IsolatedGroup
from ftlib.frameworks.isolated.group_process import GroupProcess
from tests.frameworks.crew import Crew, Worker
from tests.harness.basics import eventually

pytestmark = [pytest.mark.process, pytest.mark.skipif(not sockets.supported(), reason="needs /proc")]

TIMEOUT = 60.0
"""Seconds that anything may take."""
WHILE = 0.2
"""Seconds in which an operation that ended too early would have been taken for ended."""
NEXT = 7.0
"""What the next call stages in the same slot."""

_under_way: list[tuple[torch.Tensor, Work]] = []
"""In a worker: the operation of ``begin``, and its slot."""


@pytest.fixture(scope="module")
def crew() -> Iterator[Crew]:
    crew = Crew("isolated:gloo")
    yield crew
    crew.close()


# --- what workers are told ---------------------------------------------------------------------------------------------


def begin(worker: Worker) -> None:
    """An operation on shared memory, which the other rank has not entered."""
    slot = worker.framework.allocate(1000, torch.float32)
    slot.fill_(1.0)
    work = worker.group.allreduce(slot)
    assert not work.wait(0.1)
    _under_way[:] = [(slot, work)]


def kill(worker: Worker, bug: bool) -> bool:
    """Kill the child, which does not end yet: a signal may take its time. Whether the operation is said to have ended."""
    assert isinstance(worker.group, IsolatedGroup)
    slot, work = _under_way[0]
    with mock.patch.object(child_process.signal, "pidfd_send_signal"):
        if bug:
            with mock.patch.object(GroupProcess, "_give_up", _give_up_and_take_it_for_gone):
                worker.group._child.kill("for the test")
        else:
            worker.group._child.kill("for the test")
    ended = _ended(work, WHILE)
    if ended:
        slot.fill_(NEXT)
    return ended


def bury(worker: Worker, used: bool) -> None:
    """The child ends; then the slot may be used, if it was not before: ``used``.

    If it was, the child first gets to the end of its operation: the peer's may have ended before.
    """
    assert isinstance(worker.group, IsolatedGroup)
    slot, work = _under_way[0]
    if used:
        eventually(lambda: bool((slot != NEXT).all()), "the child writes into the slot", TIMEOUT)
    os.kill(worker.group.pid, signal.SIGKILL)
    eventually(worker.group._child.gone.is_set, "the end of the child", TIMEOUT)
    if not used:
        assert _ended(work, TIMEOUT)
        slot.fill_(NEXT)


def enter(worker: Worker) -> bool:
    """The other rank's part. True if the operation succeeded."""
    try:
        return worker.group.allreduce(torch.ones(1000)).wait(TIMEOUT)
    except GroupError:
        return False


def found(worker: Worker) -> list[float]:
    """What is in the slot."""
    return [float(value) for value in _under_way[0][0].unique()]


def _ended(work: Work, timeout: float) -> bool:
    try:
        return work.wait(timeout)
    except GroupError:
        return work.done()


_give_up = GroupProcess._give_up


def _give_up_and_take_it_for_gone(child: GroupProcess, why: str, **more: Any) -> None:
    _give_up(child, why, **more)
    with child._lock:
        pending, child._pending = list(child._pending.values()), {}
    for work, _ in pending:
        work.finish(GroupError(why), changes=False)


# --- the tests ---------------------------------------------------------------------------------------------------------


def check_a_slot_of_a_killed_child(crew: Crew, *, bug: bool = False) -> None:
    hands = crew.hire(2)
    crew.build(hands)
    crew.run(hands[:1], begin)
    [ended] = crew.run(hands[:1], kill, bug)
    if ended:  # then the peer may enter while the child still lives
        assert crew.run(hands[1:], enter) == [True]
        crew.run(hands[:1], bury, ended)
    else:
        crew.run(hands[:1], bury, ended)
        assert crew.run(hands[1:], enter) == [False]
    [values] = crew.run(hands[:1], found)
    assert values == [NEXT], f"{values}: written to by a child that was taken for gone"


def test_a_slot_is_used_again_once_the_child_is_gone(crew: Crew) -> None:
    check_a_slot_of_a_killed_child(crew)


def test_planted_a_slot_reused_before_the_child_was_gone(crew: Crew) -> None:
    with pytest.raises(AssertionError, match=r"\[8\.0\]: written to by a child that was taken for gone"):
        check_a_slot_of_a_killed_child(crew, bug=True)
