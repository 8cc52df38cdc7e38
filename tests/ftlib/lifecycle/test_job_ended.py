"""Who still waits for a job when its last member leaves: told that it has ended, or that the state is lost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import pytest
import torch

from ftlib import FTLib, FTLibError, RebuildTimeout, StateLost
from tests.ftlib.crews.workers import TIMEOUT, Job, Worker
from tests.harness.basics import eventually
from tests.harness.company import company, in_thread


def left_alone(leave: Callable[[FTLib], None]) -> BaseException | None:
    """How a joiner ends whose own call never comes, when the founder that it follows leaves so."""
    with Job(1, recovery="wait") as job:

        def founder(worker: Worker) -> None:
            worker.ft.register_state(model := torch.nn.Linear(2, 1))
            model.weight.grad = torch.ones(1, 2)
            while job.workers["j"].ft._plane.finished < 3 if "j" in job.workers else True:
                worker.ft.allreduce_average(model)
                if worker.ft.step == 3:
                    job.start("j", joiner)
            leave(worker.ft)

        def joiner(worker: Worker) -> None:
            worker.ft.register_state(torch.nn.Linear(2, 1))
            worker.ft.allreduce(torch.zeros(1))

        job.start("a", founder).join()
        job.workers["j"].thread.join(TIMEOUT)
        return job.workers["j"].error


def missed_the_last_result(ended: Callable[[FTLib], None], **settings: float) -> BaseException | None:
    """How a worker ends that alone lost the result of a job's last call, which the two others have clipped in place since."""
    with Job(3, **settings) as job:
        met, clipped, behind = threading.Barrier(3), threading.Barrier(3), threading.Event()

        def trainee(worker: Worker) -> None:
            worker.ft.register_state(model := torch.nn.Linear(2, 1))
            for _ in range(2):
                model.weight.grad = torch.ones(1, 2)
                assert worker.ft.allreduce_average(model, views=True)
            report = worker.consensus.average_failure

            def late(call: int, suspects: Sequence[str]) -> None:
                """Not before the others have finished and clipped: or they would be frozen in the call, and redo it."""
                clipped.wait(TIMEOUT)
                report(call, suspects)

            if worker.name == "c":
                worker.consensus.average_failure = late  # type: ignore[method-assign]
                job.hub.fail_next(worker.ft.rank, finish_elsewhere=True)
            met.wait(TIMEOUT)
            model.weight.grad = torch.ones(1, 2)
            assert worker.ft.allreduce_average(model, views=True)
            assert worker.name != "c"
            model.weight.grad.mul_(0.5)
            clipped.wait(TIMEOUT)
            assert behind.wait(TIMEOUT)
            ended(worker.ft)

        for name in "abc":
            job.start(name, trainee)
        eventually(lambda: job.workers["c"].ft._plane.newcomer, "its view knows that nobody can give it the result")
        behind.set()
        job.workers["c"].thread.join(TIMEOUT / 2)
        return job.workers["c"].error


def interrupted(ft: FTLib) -> None:
    with pytest.raises(KeyError), ft:
        raise KeyError


def preempted(ft: FTLib) -> None:
    ft.drain()
    ft.leave()


@pytest.mark.parametrize("leave", [FTLib.close, FTLib.leave])
def test_the_program_has_come_to_its_end(leave: Callable[[FTLib], None]) -> None:
    error = left_alone(leave)
    assert isinstance(error, SystemExit) and error.code == 0


@pytest.mark.parametrize("leave", [interrupted, preempted])
def test_the_program_has_not_come_to_its_end(leave: Callable[[FTLib], None]) -> None:
    assert isinstance(left_alone(leave), StateLost)


def test_who_lost_the_last_result_ends_when_the_others_do() -> None:
    error = missed_the_last_result(FTLib.close)
    assert isinstance(error, SystemExit) and error.code == 0


def test_who_waits_for_calls_that_never_come_says_whom_it_waited_for() -> None:
    """The others' programs do something else, for longer than a call may take."""
    other_work = threading.Event()
    error = missed_the_last_result(lambda _: (other_work.wait(TIMEOUT / 2), None)[1], step_timeout=1.5)
    assert isinstance(error, RebuildTimeout)
    assert "waiting for a@127.0.0.1" in str(error), error
    assert "not in this call yet" in str(error)


@pytest.mark.parametrize("more", [0, 2])
def test_the_last_one_is_killed_when_the_other_has_ended(more: int) -> None:
    """Nothing is lost, unless further calls have finished since."""
    with Job(2, recovery="wait") as job:
        gone = threading.Event()

        def founder(worker: Worker) -> None:
            worker.ft.register_state(model := torch.nn.Linear(2, 1))
            model.weight.grad = torch.ones(1, 2)
            ends = False
            while not ends:
                worker.ft.allreduce_average(model)
                if worker.ft.step == 3 and worker.name == "a":
                    job.start("j", joiner)
                ends = call_until_three(worker)
            if worker.name == "a":
                # What the others redo without it, as it alone had finished it, is a further call to them.
                eventually(lambda: len({each.ft._plane.finished for each in job.workers.values()}) == 1, "all have finished it")
                return worker.ft.close()
            eventually(lambda: worker.ft.size == 2 and worker.ft.epoch == 3, "the other has gone")
            for _ in range(more):
                worker.ft.allreduce_average(model)
            gone.set()
            return None

        def call_until_three(worker: Worker) -> bool:
            seen = torch.tensor([float("j" in job.workers and job.workers["j"].ft._plane.finished >= 3)])
            worker.ft.allreduce(seen, "MIN")
            return bool(seen.item())

        def joiner(worker: Worker) -> None:
            worker.ft.register_state(torch.nn.Linear(2, 1))
            worker.ft.broadcast(torch.zeros(1), 0)

        for name in "ab":
            job.start(name, founder)
        assert gone.wait(TIMEOUT)
        job.kill("b")
        job.workers["j"].thread.join(TIMEOUT)
        error = job.workers["j"].error
    if more:
        assert isinstance(error, StateLost)
    else:
        assert isinstance(error, SystemExit) and error.code == 0


def test_a_spare_that_was_never_let_in() -> None:
    """The real agents: the last member tells those who have applied."""
    ends: list[BaseException] = []
    with company(1, max_size=1) as crew:
        [founder] = crew.members
        called = threading.Event()

        def wait() -> None:
            spare = crew.init()
            called.set()
            try:
                spare.barrier()
            except (SystemExit, FTLibError) as error:
                ends.append(error)

        thread = in_thread(wait)
        assert called.wait(TIMEOUT)
        eventually(lambda: founder._consensus.status()["spares"], "the spare has applied")
        founder.close()
        thread.join(TIMEOUT)
    [error] = ends
    assert isinstance(error, SystemExit) and error.code == 0


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_joiner_that_has_just_met_the_job(size: int) -> None:
    """One member has told it of the others, and all close before any of them has to let it in: its own call comes later."""
    with company(size, max_size=size) as crew:
        founders = list(crew.members)
        joiner = crew.init()
        closing = [in_thread(founder.close) for founder in founders]
        for thread in closing:
            thread.join(TIMEOUT)
        with pytest.raises(SystemExit) as end:
            joiner.barrier()
        assert end.value.code == 0
