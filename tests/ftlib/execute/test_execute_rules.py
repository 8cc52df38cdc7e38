"""What may be done within ``execute``, and what is refused there."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ftlib import ConfigError, FTLib, FTLibError, GroupError, Status, StepMismatch
from tests.ftlib.crews.steps import STEPS, Learner, Whim, once, the_same
from tests.ftlib.crews.workers import TIMEOUT, Job, Worker, workers
from tests.harness.basics import eventually


@workers(1)
def test_alone_it_just_runs_the_function(worker: Worker) -> None:
    ft, tensor = worker.ft, torch.ones(2)

    def step(factor: float, *, more: float) -> torch.Tensor:
        assert ft.group is None
        assert torch.is_grad_enabled()
        assert ft.allreduce_average(tensor, wait=False).wait() is Status.NO_NEED
        return tensor.mul_(factor + more)

    assert ft.execute(step, 2.0, more=1.0) is tensor
    assert tensor.tolist() == [3.0, 3.0]
    assert ft.step == 1
    with torch.inference_mode():
        assert ft.execute(torch.is_inference_mode_enabled)
    with torch.no_grad():
        assert not ft.execute(torch.is_grad_enabled)
    assert ft.step == 1
    with pytest.raises(Whim):
        ft.execute(_raise, Whim())
    assert worker.ft.epoch == 1
    assert ft.metrics()["rolled_back"] == 0
    assert not ft._engine._units._backup.nbytes


def _raise(error: BaseException) -> None:
    raise error


@workers(2)
def test_misuse_is_refused(worker: Worker) -> None:
    ft = worker.ft
    with pytest.raises(ConfigError, match="wait=False"):
        ft.allreduce_average(torch.ones(1), wait=False)
    if ft.size > 1:
        with pytest.raises(ConfigError, match="register_state"):
            ft.execute(int)
    ft.barrier()
    ft.register_state(state_dict=dict, load_state_dict=lambda _: None)
    handles: list[Any] = []

    def step() -> None:
        with pytest.raises(ConfigError, match="within execute"):
            ft.execute(int)
        with pytest.raises(ConfigError, match="within execute"):
            ft.register_state(state_dict=dict, load_state_dict=lambda _: None)
        with pytest.raises(ConfigError, match="save was called within a call"):
            ft.save("nowhere")
        with pytest.raises(ConfigError, match="unknown operation"):
            ft.allreduce(torch.ones(1), "MAXIMUM")
        handles.append(ft.allreduce(torch.ones(1), "SUM", wait=False))

    ft.execute(step)
    assert handles[0].wait()  # it was awaited at the end
    refused: list[str] = []

    def callback(_: Any) -> None:
        try:
            ft.execute(int)
        except ConfigError as error:
            refused.append(str(error))

    ft.on_view_change(callback)
    ft._plane.news.due.append(ft.view)
    ft.execute(int)
    assert "callback" in refused[0]


@workers(2)
def test_statuses_inside_are_those_outside(worker: Worker) -> None:
    ft = worker.ft
    ft.register_state(state_dict=dict, load_state_dict=lambda _: None)
    rank = ft.rank

    def step() -> None:
        assert ft.allreduce_average(torch.ones(2), weight=0.0) is Status.FAIL
        spoilt = torch.tensor([float("nan") if rank else 1.0])
        assert ft.allreduce_average(spoilt) is Status.FAIL
        shared = torch.full((2, 3), float(rank)).t()
        assert ft.broadcast(shared, 1) is Status.SUCCESS
        assert shared.unique().tolist() == [1.0]
        assert ft.barrier() is Status.SUCCESS
        mine = torch.full((3,), float(rank + 1))
        assert ft.allreduce_average(mine, weight=rank + 1.0) is Status.SUCCESS
        assert mine[0].item() == pytest.approx(5 / 3)

    before = ft.step
    ft.execute(step)
    assert ft.step == before + 1
    ft.execute(lambda: ft.allreduce_average(torch.ones(2), weight=0.0))
    assert ft.step == before + 1, "nobody was granted one"
    ft.execute(lambda: [ft.allreduce_average(torch.ones(i + 1)) for i in range(3)])
    assert ft.step == before + 2, "a unit is one step"
    assert ft.metrics()["vetoed"] == 1


@pytest.mark.parametrize("kind", ["other tensors", "other order", "one more", "one less", "no unit"])
def test_whoever_does_something_else_is_found_out(kind: str) -> None:
    """One against two, in its third step, when the others start without a prelude: before it sends anything of another size."""

    def body(worker: Worker) -> None:
        ft, odd = worker.ft, worker.name == "w1"
        ft.register_state(state_dict=dict, load_state_dict=lambda _: None)

        def step(*, wrong: bool) -> None:
            tensors = [torch.ones(5), torch.ones(70_000)]
            if wrong and kind == "other tensors":
                tensors[1] = torch.ones(80_000)
            elif wrong and kind == "other order":
                tensors.reverse()
            elif wrong and kind == "one more":
                tensors.append(torch.ones(9))
            elif wrong and kind == "one less":
                tensors.pop()
            pending = [ft.allreduce_average(tensor, wait=False) for tensor in tensors]
            assert all(handle.wait() for handle in pending)

        for number in range(6):
            wrong = odd and number == 2
            if wrong and kind == "no unit":
                assert ft.allreduce_average(torch.ones(5))
            else:
                ft.execute(step, wrong=wrong)

    with Job(3) as job:
        workers = [job.start(f"w{i}", body) for i in range(3)]
        with pytest.raises(StepMismatch, match="different tensors or operations"):
            workers[1].join()
        workers[0].join()
        workers[2].join()


def test_layouts_may_change_from_step_to_step() -> None:
    def body(worker: Worker) -> None:
        ft = worker.ft
        ft.register_state(state_dict=dict, load_state_dict=lambda _: None)

        def step(number: int) -> None:
            pending = [ft.allreduce(torch.full((number * i,), 2.0), "SUM", wait=False) for i in range(number % 4)]
            assert all(handle.wait() for handle in pending)

        for number in range(12):
            ft.execute(step, number)
            if number % 3 == 0:
                assert ft.allreduce(torch.ones(number + 1))

    with Job(2) as job:
        job.run(dict.fromkeys(("w0", "w1"), body))
        assert job.cluster.epoch == 1


def test_the_programs_function_may_hide_what_failed() -> None:
    """It swallows every error, and goes on: nothing of that is committed."""
    learners: dict[str, Learner] = {}

    def body(worker: Worker) -> dict[int, str]:
        learner = learners[worker.name] = Learner(worker.ft, seed=int(worker.name[1:]))
        honest = learner._step

        def hiding(batch: int) -> float:
            try:
                return honest(batch)
            except Exception:  # noqa: BLE001 - as careless as programs are
                learner.generator.manual_seed(1)
                return 0.0

        learner._step = hiding  # type: ignore[method-assign]
        if worker.name == "w1":
            learner.hooks["between"] = once(lambda: job.hub.fail_next(1), lambda: worker.ft.step == 3)
        return learner.train(STEPS)

    with Job(3) as job:
        for history in job.run(dict.fromkeys(("w0", "w1", "w2"), body)).values():
            the_same(history)
        assert job.cluster.epoch == 2


@workers(2)
def test_the_group_refuses_a_tensor_whose_memory_holds_other_values(worker: Worker) -> None:
    lazy = torch.ones(2, dtype=torch.complex64).conj()
    worker.ft.register_state(state_dict=dict, load_state_dict=lambda _: None)

    def step() -> float:
        for tensor in (lazy, lazy.imag):
            with pytest.raises(ConfigError, match="negates or conjugates what is in memory"):
                worker.ft.group.broadcast(tensor, 0)
        plain = torch.ones(1)
        assert worker.ft.group.allreduce(plain, "SUM").wait(TIMEOUT)
        return plain.item()

    assert worker.ft.execute(step) == 2.0


@workers(2)
def test_a_group_of_a_view_that_is_over_is_the_programs_error(worker: Worker) -> None:
    ft = worker.ft
    ft.register_state(state_dict=dict, load_state_dict=lambda _: None)
    kept: list[Any] = []
    ft.execute(lambda: kept.append(ft.group))
    ft.barrier()
    if worker.name == "w1":
        worker.job.kill("w1")
        return
    eventually(lambda: ft.size == 1 and ft.initialized(), "w0 is alone")
    with pytest.raises(GroupError):
        ft.execute(lambda: kept[0].barrier().wait(TIMEOUT))


def test_after_leaving_it_says_so() -> None:
    def body(worker: Worker) -> FTLib:
        worker.ft.leave()
        with pytest.raises(FTLibError, match="has left"):
            worker.ft.execute(int)
        return worker.ft

    with Job(1) as job:
        job.run({"w0": body})
