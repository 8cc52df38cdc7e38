"""Managers that train together: what they average, commit and skip, and what the others see when one goes or comes."""

from __future__ import annotations

import functools
import threading
from typing import Any

import pytest
import torch
from torch.distributed import ReduceOp

from ftlib.torchft.ddp import DistributedDataParallel, PureDistributedDataParallel
from ftlib.torchft.manager import Manager
from tests.harness.basics import TIMEOUT
from tests.harness.company import at_once

from .replicas import Replica, manager, settle


@pytest.fixture
def meeting(monkeypatch: pytest.MonkeyPatch) -> None:
    settle(monkeypatch)


def shut(*managers: Manager) -> None:
    at_once(*[each.shutdown for each in managers])


@pytest.mark.usefixtures("meeting")
@pytest.mark.parametrize("wrapper", [DistributedDataParallel, PureDistributedDataParallel])
@pytest.mark.parametrize("count", [2, 3])
def test_replicas_average_and_commit(count: int, wrapper: Any) -> None:
    replicas = [Replica(number, count, wrapper) for number in range(count)]
    try:
        for step in range(3):
            seen = at_once(*[functools.partial(each.step, float(each.number + step)) for each in replicas])
            if wrapper is DistributedDataParallel:  # the other's averages are there after the commit
                assert seen == pytest.approx([(count - 1) / 2 + step] * count)
        assert [each.manager.current_step() for each in replicas] == [3] * count
        assert [each.manager.batches_committed() for each in replicas] == [3 * count] * count
        assert {tuple(each.weights()) for each in replicas} == {tuple(replicas[0].weights())}
        assert sorted(each.manager.participating_rank() for each in replicas) == list(range(count))
        assert {each.manager.num_participants() for each in replicas} == {count}
    finally:
        shut(*[each.manager for each in replicas])


@pytest.mark.usefixtures("meeting")
def test_every_operation_and_a_step_without_tensors() -> None:
    managers = [manager(2), manager(2)]
    values = {}

    def run(number: int) -> list[bool]:
        each = managers[number]
        committed = []
        each.start_quorum()
        committed.append(each.should_commit())
        each.start_quorum()
        for op in (ReduceOp.AVG, ReduceOp.SUM, ReduceOp.MIN, ReduceOp.MAX, ReduceOp.PRODUCT):
            values[number, op] = torch.tensor([2.0 + number])
            work = each.allreduce(values[number, op], reduce_op=op)
            doubled = work.get_future().then(lambda done: done.value() * 2)
            assert work.wait() and work.is_completed()
            assert doubled.value() == 2 * values[number, op]
        again = torch.tensor([1.0])
        each.allreduce(again, reduce_op=ReduceOp.SUM)
        each.allreduce(again, reduce_op=ReduceOp.SUM).wait()
        values[number, "again"] = again
        committed.append(each.should_commit())
        return committed

    try:
        assert at_once(*[functools.partial(run, number) for number in range(2)]) == [[True, True], [True, True]]
        for number in range(2):
            found = [float(values[number, op]) for op in (ReduceOp.AVG, ReduceOp.SUM, ReduceOp.MIN, ReduceOp.MAX)]
            assert found == [2.5, 5.0, 2.0, 3.0]
            assert float(values[number, ReduceOp.PRODUCT]) == 6.0
            assert float(values[number, "again"]) == 4.0
    finally:
        shut(*managers)


@pytest.mark.usefixtures("meeting")
@pytest.mark.parametrize("when", ["before its tensors", "after its tensors"])
def test_an_error_at_one_replica_makes_all_skip(when: str) -> None:
    managers = [manager(2, max_retries=0), manager(2)]

    def run(number: int) -> list[bool]:
        each, found = managers[number], []
        for step in range(2):
            each.start_quorum()
            assert each.errored() is None
            if number and not step:
                if when == "after its tensors":
                    each.allreduce(torch.ones(2)).wait()
                each.report_error(ValueError("broken"))
                assert isinstance(each.errored().original_exception, ValueError)
            else:
                each.allreduce(torch.ones(2)).wait()
            if number or step:
                found.append(each.should_commit())
            else:
                with pytest.raises(RuntimeError, match="max_retries=0"):
                    each.should_commit()
                found.append(False)
        return found

    try:
        assert at_once(*[functools.partial(run, number) for number in range(2)]) == [[False, True]] * 2
        assert [each.current_step() for each in managers] == [1, 1]
        assert [each.batches_committed() for each in managers] == [2, 2]
    finally:
        shut(*managers)


@pytest.mark.usefixtures("meeting")
@pytest.mark.parametrize("least", [2, 3])
def test_a_replica_that_goes_in_the_middle_of_a_step_is_left_out(least: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FTLIB_MIN_SIZE", "1")
    monkeypatch.setenv("FTLIB_INITIAL_SIZE", "3")
    managers = [manager(least) for _ in range(3)]
    tensors = [torch.tensor([float(number)]) for number in range(3)]
    first = threading.Barrier(3, timeout=TIMEOUT)

    def run(number: int) -> float:
        each = managers[number]
        each.start_quorum()
        assert each.should_commit()
        first.wait()
        each.start_quorum()
        if number == 2:
            each.shutdown()
            return -1.0
        each.allreduce(tensors[number]).wait()
        return float(each.should_commit())

    try:
        found = at_once(*[functools.partial(run, number) for number in range(3)])
        assert tensors[0] == tensors[1] == 0.5
        commits = float(least <= 2)
        assert found == [commits, commits, -1.0]
    finally:
        shut(*managers)


@pytest.mark.usefixtures("meeting")
@pytest.mark.parametrize("asynchronous", [True, False])
def test_a_joiner_starts_from_the_state_of_the_others(asynchronous: bool) -> None:
    replicas = [Replica(number, 2, use_async_quorum=asynchronous) for number in range(2)]
    joined = threading.Event()
    state: dict[str, Any] = {}

    def found(each: Replica) -> None:
        while not joined.is_set() or each.manager.current_step() < state["until"]:
            each.step(1.0)

    def join() -> None:
        late = Replica(7, 2, use_async_quorum=asynchronous)
        replicas.append(late)
        late.optimizer.zero_grad()
        state["first"] = late.manager.current_step()
        state["weights"] = late.weights()
        late.wrapped(torch.full((1, 3), 1.0)).sum().backward()
        state["until"] = state["first"] + 5
        joined.set()
        late.optimizer.step()
        while late.manager.current_step() < state["until"]:
            late.step(1.0)

    try:
        at_once(*[functools.partial(each.step, 1.0) for each in replicas])
        at_once(*[functools.partial(found, each) for each in replicas], join)
        assert state["first"] > 0
        assert state["weights"] != Replica(7, 2).weights()
        assert [each.manager.current_step() for each in replicas] == [state["until"]] * 3
        assert len({each.manager.batches_committed() for each in replicas}) == 1
        assert len({tuple(each.weights()) for each in replicas}) == 1
    finally:
        shut(*[each.manager for each in replicas])
