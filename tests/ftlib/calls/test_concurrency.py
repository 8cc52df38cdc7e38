"""Several threads, calls within calls, callbacks, and what is interrupted in the middle."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from ftlib import ConfigError, Excluded, RebuildTimeout, Status, StepMismatch
from ftlib.core.calls.call import Call
from ftlib.core.calls.observer import Observer
from ftlib.ftlib import FTLib
from tests.ftlib.crews.crew import Crew, by_all
from tests.ftlib.crews.workers import TIMEOUT, Job, Worker, workers
from tests.harness.basics import eventually
from tests.harness.company import at_once, call_until, company, in_thread

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def pair() -> Iterator[Crew]:
    with Crew(2) as crew:
        yield crew


@workers(2)
def test_two_threads_in_the_same_order_everywhere(worker: Worker) -> None:
    """They take turns as the program lets them; each call is one call."""
    turn = [threading.Semaphore(1), threading.Semaphore(0)]
    errors: list[BaseException] = []

    def loop(index: int) -> None:
        try:
            for step in range(20):
                turn[index].acquire()
                tensor = torch.full((50 + index,), float(step + int(worker.name[1:])))
                assert worker.ft.allreduce_average(tensor)
                assert bool((tensor == step + 0.5).all())
                turn[1 - index].release()
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)
            turn[1 - index].release()

    threads = [in_thread(lambda index=index: loop(index)) for index in range(2)]
    for thread in threads:
        thread.join(TIMEOUT)
        assert not thread.is_alive()
    if errors:
        raise errors[0]
    assert worker.ft.step == 40


@workers(1)
def test_two_threads_at_once_do_not_mix_their_calls(worker: Worker) -> None:
    """Alone there is no order to agree on: whatever comes is carried out, one by one."""

    def loop(index: int) -> None:
        for _ in range(100):
            assert worker.ft.allreduce_average(torch.full((20 + index,), float(index))) is Status.NO_NEED

    threads = [in_thread(lambda index=index: loop(index)) for index in range(4)]
    for thread in threads:
        thread.join(TIMEOUT)
        assert not thread.is_alive()
    assert worker.ft.step == 400


@workers(2)
def test_threads_in_another_order_elsewhere_are_a_mismatch_not_a_hang(worker: Worker) -> None:
    first, second = (30, 40) if worker.name == "w0" else (40, 30)
    worker.ft.barrier()
    outcome: list[object] = []

    def other() -> None:
        try:
            outcome.append(worker.ft.allreduce_average(torch.ones(first)))
        except StepMismatch as error:
            outcome.append(error)

    thread = in_thread(other)
    thread.join(TIMEOUT)
    assert not thread.is_alive()
    assert isinstance(outcome[0], StepMismatch)
    with pytest.raises(StepMismatch):
        worker.ft.allreduce_average(torch.ones(second))


def test_a_thread_that_waits_too_long_for_another_says_for_which() -> None:
    def body(worker: Worker) -> None:
        if worker.name == "w1":
            waited.wait(TIMEOUT)
            assert worker.ft.barrier()
            return
        thread = threading.Thread(target=worker.ft.barrier, name="the-slow-one", daemon=True)
        thread.start()
        eventually(lambda: worker.ft._plane.current is not None, "it is inside")
        worker.ft._call_lock.timeout = 0.2
        with pytest.raises(RebuildTimeout, match=r"barrier\(\): thread the-slow-one was in a call for 0.2 s; waiting for"):
            worker.ft.barrier()
        waited.set()
        thread.join(TIMEOUT)
        assert not thread.is_alive()

    waited = threading.Event()
    with Job(2) as job:
        job.run({"w0": body, "w1": body})


@by_all("pair")
def test_callbacks_and_state_functions_cannot_call(ft: FTLib, i: int) -> None:
    ft.on_view_change(lambda _: ft.barrier())
    ft._plane.news.changes.append(ft.view)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"^barrier\(\): a callback of on_view_change cannot average"):
        ft.barrier()
    assert ft.barrier(), "and the next call is as good as ever"


@by_all("pair")
def test_a_callback_of_one_thread_keeps_others_out(ft: FTLib, i: int) -> None:
    """The thread that tells is inside a call already, so another cannot overtake it."""
    order: list[str] = []
    inside = threading.Event()

    def callback(_: object) -> None:
        inside.set()
        time.sleep(0.05)
        order.append("callback")

    ft.on_view_change(callback)
    ft._plane.news.changes.append(ft.view)  # type: ignore[arg-type]
    thread = in_thread(ft.barrier)
    assert inside.wait(TIMEOUT)
    assert ft.barrier()
    order.append("second call")
    thread.join(TIMEOUT)
    assert order == ["callback", "second call"]


@by_all("pair")
def test_an_autograd_hook_may_call(ft: FTLib, i: int) -> None:
    parameter = nn.Parameter(torch.ones(3))
    statuses: list[Status] = []

    def hook(hooked: torch.Tensor) -> None:
        statuses.append(ft.allreduce_average([hooked]))

    parameter.register_post_accumulate_grad_hook(hook)
    (parameter * float(i)).sum().backward()
    assert statuses == [Status.SUCCESS]
    assert torch.equal(parameter.grad, torch.full((3,), 0.5))  # type: ignore[arg-type]


def test_a_state_function_that_calls_is_told_so() -> None:
    def body(worker: Worker) -> None:
        ft = worker.ft
        if worker.name == "w2":
            ft.register_state(state_dict=dict, load_state_dict=lambda _: ft.barrier())
            with pytest.raises(ConfigError, match="within another call"):
                ft.allreduce(torch.zeros(1), "MAX")
            ft.close()
            return
        ft.register_state(state_dict=dict, load_state_dict=lambda _: None)
        if worker.name == "w0":
            job.start("w2", body)
        call_until(ft, lambda: ft.epoch >= 3)

    with Job(2) as job:
        job.run({"w0": body, "w1": body})
        job.workers["w2"].join()


class _Interrupted(Observer):
    def entering(self, number: int) -> None:
        os.kill(os.getpid(), signal.SIGUSR2)


def test_a_signal_that_interrupts_a_call_finds_it_busy() -> None:
    """In this process's main thread, as handlers are."""
    with company(1) as crew:
        ft = crew.members[0]
        caught: list[Exception] = []

        def handler(number: int, frame: object) -> None:
            try:
                ft.barrier()
            except ConfigError as error:
                caught.append(error)

        previous = signal.signal(signal.SIGUSR2, handler)
        ft._engine._observers.attach(_Interrupted())
        try:
            assert ft.barrier() is Status.NO_NEED
        finally:
            signal.signal(signal.SIGUSR2, previous)
        assert "within another call" in str(caught[0])


@pytest.mark.parametrize("moment", ["deliver", "average_success"])
def test_who_cannot_take_a_finished_result_acts_no_more(moment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C between the end of a call and the last tensor: the others have applied that step, this one has not."""
    with company(3) as three:
        victim = three.members[1]
        owner: object = victim._consensus if moment == "average_success" else None

        def body(ft: FTLib) -> Status | None:
            tensors = [torch.full((3,), float(ft.rank)), torch.ones(2)]
            if ft is not victim:
                assert ft.allreduce_average(tensors)
                assert float(tensors[0][0]) == 1.0
                assert ft.allreduce_average(torch.ones(1)), "finished without the one that cannot take it"
                assert ft.size == 2
                return None
            with monkeypatch.context() as patch:
                if owner is not None:
                    patch.setattr(owner, moment, interrupt)
                else:
                    patch.setattr(Call, "_write", only_in(threading.current_thread(), interrupt, Call._write))
                with pytest.raises(KeyboardInterrupt):
                    ft.allreduce_average(tensors)
            with pytest.raises(Excluded, match="could not be delivered"):
                ft.allreduce_average(tensors)
            return None

        at_once(*[lambda ft=ft: body(ft) for ft in three.members])


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def only_in(thread: threading.Thread, here: object, elsewhere: object) -> object:
    def chosen(*args: object) -> object:
        return (here if threading.current_thread() is thread else elsewhere)(*args)  # type: ignore[operator]

    return chosen


def test_callbacks_after_one_that_raises_are_told_by_the_next_call() -> None:
    with company(1) as one:
        [ft] = one.members
        told: list[str] = []

        def fails(_: object) -> None:
            told.append("fails")
            raise ValueError("rescaling failed")

        ft.on_view_change(fails)
        ft.on_view_change(lambda view: told.append(f"epoch {view.epoch}"))
        ft._plane.news.changes += [ft.view, ft.view]  # type: ignore[list-item]
        with pytest.raises(ValueError, match="rescaling"):
            ft.barrier()
        with pytest.raises(ValueError, match="rescaling"):
            ft.barrier()
        assert ft.barrier()
        assert told == ["fails", "epoch 1", "fails", "epoch 1"]
