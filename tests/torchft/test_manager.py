"""Managers that train together: what they average, commit and skip, and what the others see when one goes or comes."""

from __future__ import annotations

import functools
import threading
from datetime import timedelta
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed import ReduceOp

from ftlib import ConfigError, FTLibError
from ftlib.torchft.checkpointing import CheckpointTransport, HTTPTransport
from ftlib.torchft.checkpointing.pg_transport import PGTransport
from ftlib.torchft.ddp import DistributedDataParallel, PureDistributedDataParallel
from ftlib.torchft.manager import Manager, WorldSizeMode
from ftlib.torchft.optim import OptimizerWrapper
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
            assert seen == pytest.approx([(count - 1) / 2 + step] * count)
        assert [each.manager.current_step() for each in replicas] == [3] * count
        assert [each.manager.batches_committed() for each in replicas] == [3 * count] * count
        assert {tuple(each.weights()) for each in replicas} == {tuple(replicas[0].weights())}
        assert sorted(each.manager.participating_rank() for each in replicas) == list(range(count))
        assert {each.manager.num_participants() for each in replicas} == {count}
    finally:
        shut(*[each.manager for each in replicas])


class Branches(nn.Module):
    """Parameters that each pass may use or not."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ParameterList([torch.ones(2) for _ in range(3)])

    def forward(self, used: list[int]) -> torch.Tensor:
        return torch.stack([self.parts[index].sum() for index in used]).sum()


@pytest.mark.usefixtures("meeting")
@pytest.mark.parametrize("mode", list(WorldSizeMode))
def test_a_parameter_that_one_replica_used_has_the_average_at_all(mode: WorldSizeMode) -> None:
    """It kept no gradient where it was unused, and that replica's optimizer left it out."""
    managers = [manager(2, world_size_mode=mode) for _ in range(2)]
    models = [Branches() for _ in managers]

    def run(number: int) -> list[Any]:
        each, model = managers[number], models[number]
        wrapped = DistributedDataParallel(each, model)
        optimizer = OptimizerWrapper(each, torch.optim.SGD(model.parameters(), lr=1.0))
        found = []
        for used in ([0, number], [1 - number], [0, 1]):
            optimizer.zero_grad()
            wrapped(used).backward()
            found.append([None if part.grad is None else float(part.grad[0]) for part in model.parts])
            optimizer.step()
        return found

    try:
        nobody = None if mode is WorldSizeMode.DYNAMIC else 0.0  # who is none of the others' may be a spare
        found = at_once(*[functools.partial(run, number) for number in range(2)])
        assert found == [[[1.5, 0.5, nobody], [0.5, 0.5, nobody], [1.0, 1.0, nobody]]] * 2
        assert [each.current_step() for each in managers] == [3, 3]
        assert all(map(torch.equal, models[0].parts, models[1].parts))
    finally:
        shut(*managers)


@pytest.mark.usefixtures("meeting")
@pytest.mark.parametrize("view", [False, True])
def test_a_gradient_that_one_replica_has_kept_is_averaged(view: bool) -> None:
    """One that joined has none: else momentum would move the parameter at the others alone."""
    managers = [manager(2) for _ in range(2)]
    models = [Branches() for _ in managers]
    # They end with the test: torch's process group waits for its threads as it ends, holding the lock that these may wait for.
    wrappers = [
        DistributedDataParallel(each, model, gradient_as_bucket_view=view) for each, model in zip(managers, models, strict=True)
    ]

    def run(number: int) -> list[Any]:
        each, model, wrapped = managers[number], models[number], wrappers[number]
        optimizer = OptimizerWrapper(each, torch.optim.SGD(model.parameters(), lr=1.0))
        found = []
        for _ in range(3):
            optimizer.zero_grad()
            if number:
                model.parts[1].grad = torch.full((2,), 3.0)
            wrapped([0]).backward()
            found.append([None if part.grad is None else float(part.grad[0]) for part in model.parts])
            optimizer.step()
        return found

    try:
        found = at_once(*[functools.partial(run, number) for number in range(2)])
        assert found == [[[1.0, 1.5, None]] * 3] * 2
    finally:
        shut(*managers)


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
def test_a_callback_that_fails_is_called_once() -> None:
    each, called = manager(1), list[int]()

    def fail(_: Any) -> None:
        called.append(1)
        raise ValueError("broken")

    try:
        each.start_quorum()
        work = each.allreduce(torch.ones(1))
        following = work.get_future().then(fail)
        assert not following.done() and [work.wait() for _ in range(3)] == [False] * 3
        with pytest.raises(ValueError, match="broken"):
            following.value()
        assert called == [1] and following.done() and not each.should_commit()
    finally:
        each.shutdown()


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
def test_a_step_in_which_the_state_of_others_came_is_skipped_by_all() -> None:
    """As at a replica that was excluded and comes back (``rejoin``): what it has averaged is of another step."""
    replicas = [Replica(number, 2) for number in range(2)]

    def run(number: int) -> list[int]:
        each, found = replicas[number], []
        for step in range(3):
            each.optimizer.zero_grad()
            each.wrapped(torch.full((1, 3), float(number))).sum().backward()
            if number and step == 1:
                each.manager._load_manager_state_dict(each.manager._manager_state_dict())
            each.optimizer.step()
            found.append(each.manager.current_step())
        return found

    try:
        assert at_once(*[functools.partial(run, number) for number in range(2)]) == [[1, 1, 2]] * 2
        assert replicas[0].weights() == replicas[1].weights()
    finally:
        shut(*[each.manager for each in replicas])


@pytest.mark.usefixtures("meeting")
def test_who_comes_back_in_the_vote_that_commits_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    replica = Replica(0, 1)
    try:
        replica.step(1.0)
        replica.optimizer.zero_grad()
        calls = replica.manager._calls
        commit = calls.commit

        def loading() -> int:
            count = commit()
            replica.manager._load_manager_state_dict(replica.manager._manager_state_dict())
            return count

        monkeypatch.setattr(calls, "commit", loading)
        with pytest.raises(FTLibError, match="Start the program again"):
            replica.optimizer.step()
        assert replica.manager.current_step() == 1
    finally:
        replica.manager.shutdown()


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


@pytest.mark.usefixtures("meeting")
def test_a_step_by_all_calls_of_a_manager() -> None:
    """Those that stand in torchft's own loops, with all their arguments; each way to wait gives the average."""
    managers = [manager(2), manager(2)]

    def run(number: int) -> list[float]:
        each, found = managers[number], []
        for way in ("wait", "synchronize", "block_current_stream"):
            each.start_quorum(allow_heal=True, shrink_only=True, timeout=timedelta(seconds=30))
            each.wait_quorum()
            assert each.num_participants() == 2 and each.is_participating()
            tensor = torch.tensor([1.0 + number])
            work = each.allreduce(tensor)
            assert not work.is_completed()
            getattr(work, way)()
            assert work.is_completed()
            found.append(tensor.item())
            work.block_current_stream(timedelta(seconds=1))  # once more changes nothing
            assert each.should_commit(timeout=timedelta(seconds=30)) and tensor.item() == found[-1]
        return found

    try:
        assert at_once(*[functools.partial(run, number) for number in range(2)]) == [[1.5] * 3] * 2
    finally:
        shut(*managers)


@pytest.mark.usefixtures("meeting")
def test_what_is_quantized_is_sent_as_fp8() -> None:
    """Averages are near, and the same at all; what is no average, or not float32, is exact all the same."""
    managers = [manager(2), manager(2)]
    data = [torch.randn(1000, generator=torch.Generator().manual_seed(number)) for number in range(2)]
    exact = (data[0] + data[1]) / 2

    def run(number: int) -> list[torch.Tensor]:
        each = managers[number]
        each.start_quorum()
        tensors = [data[number].clone(), data[number].double(), data[number].clone(), data[number].clone()]
        works = [each.allreduce(tensor, should_quantize=True) for tensor in tensors[:2]]
        works += [each.allreduce(tensors[2]), each.allreduce(tensors[3], should_quantize=True, reduce_op=ReduceOp.MAX)]
        assert all(work.wait() for work in works) and each.should_commit()
        return tensors

    try:
        found = at_once(*[functools.partial(run, number) for number in range(2)])
        assert all(map(torch.equal, *found))
        rough, double, plain, largest = found[0]
        assert torch.equal(plain, exact) and torch.equal(largest, torch.maximum(*data))
        assert torch.equal(double, (data[0].double() + data[1].double()) / 2)
        off = float((rough - exact).norm() / exact.norm())
        assert 1e-4 < off < 0.1, "as near as fp8 comes, and no nearer"
    finally:
        shut(*managers)


@pytest.mark.usefixtures("meeting")
@pytest.mark.parametrize("equal", [True, False])
def test_without_init_sync_founders_promise_equal_states(equal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is sent then; the junior one learns that the promise is broken, and the other is alone, which commits nothing."""
    monkeypatch.setenv("FTLIB_MIN_SIZE", "1")  # alone it is not to wait for another one
    loads: list[dict[str, Any]] = []

    class Noting(Replica):
        def load(self, state: dict[str, Any]) -> None:
            loads.append(state)
            super().load(state)

    replicas = [Noting(0 if equal else number, 2, init_sync=False) for number in range(2)]

    def run(each: Replica) -> str:
        try:
            each.step(float(each.number))
        except ConfigError as error:
            return str(error)
        return ""

    try:
        found = at_once(*[functools.partial(run, each) for each in replicas])
        assert loads == []
        if equal:
            assert found == ["", ""] and replicas[0].weights() == replicas[1].weights()
        else:
            assert sorted(text.partition(":")[0] for text in found) == ["", "sync=False"], found
            assert [each.manager.current_step() for each in replicas] == [0, 0]
    finally:
        shut(*[each.manager for each in replicas])


def joined(monkeypatch: pytest.MonkeyPatch, heal: bool = True, **arguments: Any) -> tuple[list[Replica], dict[str, Any]]:
    """Two replicas train, a third one comes; all stop after the same step. ``arguments``: of managers.

    ``heal``: what the third one passes as ``allow_heal`` in its first step.
    """
    settle(monkeypatch)
    replicas = [Replica(number, 2, **arguments) for number in range(2)]
    late = Replica(7, 2, **arguments)
    there, state = threading.Event(), {"own": late.weights()}

    def train(each: Replica) -> None:
        while not there.is_set() or each.manager.current_step() < state["until"]:
            each.step(1.0)

    def join() -> None:
        late.manager.start_quorum(allow_heal=heal)
        late.sgd.zero_grad()
        state["first"], state["weights"] = late.manager.current_step(), late.weights()
        late.wrapped(torch.full((1, 3), 1.0)).sum().backward()
        late.optimizer.step()
        state["until"] = late.manager.current_step() + 5
        there.set()
        train(late)

    try:
        at_once(*[functools.partial(each.step, 1.0) for each in replicas])
        at_once(*[functools.partial(train, each) for each in replicas], join)
    finally:
        shut(*[each.manager for each in (*replicas, late)])
    return [*replicas, late], state


def test_a_joiner_gets_the_state_whatever_it_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it, it would come to the others' calls in the middle of a step, and stop them all."""
    replicas, state = joined(monkeypatch, heal=False)
    assert state["first"] > 0 and state["weights"] != state["own"]
    assert [each.manager.current_step() for each in replicas] == [state["until"]] * 3
    assert len({tuple(each.weights()) for each in replicas}) == 1
    assert len({each.manager.batches_committed() for each in replicas}) == 1


class Own(CheckpointTransport[Any]):
    """A program's own."""


@pytest.mark.parametrize(
    "transport",
    [HTTPTransport(timedelta(seconds=10), num_chunks=2), PGTransport(None, timedelta(seconds=10), "cpu"), Own()],
    ids=["http", "pg", "own"],
)
def test_whatever_transport_is_given_the_state_comes(
    transport: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """By ftlib's own way; who has meant another one is told."""
    replicas, state = joined(monkeypatch, checkpoint_transport=transport)
    assert state["first"] > 0 and state["weights"] != state["own"]
    assert len({tuple(each.weights()) for each in replicas}) == 1
    warned = f"the checkpoint transport {type(transport).__name__} is not used: a joining replica gets the state over HTTP"
    assert (warned in caplog.text) == (not isinstance(transport, HTTPTransport))
