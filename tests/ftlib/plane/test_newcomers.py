"""Joiners that cannot follow, in programs that make several kinds of calls: they come in with a call of their own kind."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from ftlib import ElasticSampler, FTLib, Status, StepMismatch
from ftlib.core.engine.arrival import FOREIGN_CALLS
from tests.ftlib.crews.scholars import prefetching
from tests.ftlib.crews.workers import TIMEOUT, Job, Worker
from tests.harness.basics import eventually

SIZE, BATCH = 60, 3


class Student:
    """Its program: an average a batch, an ``allreduce`` of the loss, an evaluation after each epoch, a barrier in the end."""

    def __init__(
        self, *, depth: int = 0, epochs: int = 3, size: int = SIZE, unit: bool = False, also: str = "LEB", **registered: Any
    ) -> None:
        """``also``: the kinds of calls besides the average, by letter. ``unit``: averages are made within ``execute``."""
        self.sampler = ElasticSampler(range(size), batch_size=BATCH, seed=5)
        self.model = torch.nn.Linear(4, 1, bias=False)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.hook: Callable[[FTLib], None] = lambda _ft: None
        """Called before every step."""
        self.steps = 0
        self._depth, self._epochs, self._unit, self._also, self._registered = depth, epochs, unit, also, registered

    def study(self, worker: Worker) -> Student:
        ft = worker.ft
        ft.register_state(self.model, self.optimizer, self.sampler, **self._registered)
        for _ in self.sampler.epochs(self._epochs):
            for batch in prefetching(self._depth)(self.sampler):
                self.hook(ft)
                status = ft.execute(self._step, ft, batch) if self._unit else self._step(ft, batch)
                if status is Status.ABORT:
                    return self
                if "L" in self._also:
                    self._agree(ft, 1)
                if "A" in self._also:  # a second average, of other tensors
                    ft.allreduce_average(torch.ones(5), batches=0)
            if "E" in self._also:
                self._agree(ft, 2)
        if "B" in self._also:
            ft.barrier()
        self.steps = ft.step
        ft.leave()
        return self

    def _step(self, ft: FTLib, batch: list[int]) -> Status:
        self.model.weight.grad = torch.full_like(self.model.weight, float(sum(batch)))
        status = ft.allreduce_average(self.model)
        if status:
            self.optimizer.step()
        return status

    def _agree(self, ft: FTLib, count: int) -> None:
        """Everybody is after the same step."""
        told = torch.full((count,), float(ft.step))
        if ft.allreduce(told, "MAX"):
            assert told[0] == ft.step, f"at step {ft.step} others are at step {told[0]}"


def joined(job: Job, students: dict[str, Student], *, at: int, pause: float = 0.003) -> None:
    """Founders ``a`` and so on; ``j`` starts at a step. All of them come to their ends, alike."""
    now = threading.Event()
    first = next(iter(students))

    def hook(ft: FTLib) -> None:
        time.sleep(pause)  # for the joiner to come meanwhile
        if ft.step >= at and not now.is_set():
            now.set()
            eventually(lambda: "j" in job.cluster.waiting, "the joiner asks to join, before the others have ended")

    students[first].hook = hook
    for name, student in students.items():
        if name.startswith("j"):
            assert now.wait(TIMEOUT)
        job.start(name, student.study)
    for name in students:
        job.workers[name].join()
    ends = {(student.steps, tuple(student.model.weight.flatten().tolist())) for student in students.values()}
    assert len(ends) == 1, {name: student.steps for name, student in students.items()}


@pytest.mark.parametrize("founders", [1, 2])
@pytest.mark.parametrize("also", ["B", "LB", "LEB", "LAB", "LAEB"])
def test_a_joiner_that_is_waited_for_comes_in_with_a_call_of_its_own_kind(also: str, founders: int) -> None:
    with Job(founders, recovery="wait") as job:
        joined(job, {name: Student(also=also) for name in [*"abc"[:founders], "j"]}, at=9)


@pytest.mark.parametrize("also", ["LB", "LEB"])
def test_units(also: str) -> None:
    """Its function runs once the state is here, and not while the others are in another call."""
    with Job(2) as job:
        joined(job, {name: Student(also=also, unit=True) for name in "abj"}, at=9)


@pytest.mark.parametrize("seed", range(40))
def test_whenever_it_comes(seed: int) -> None:
    """It counts like everybody, or is told that the job has ended.

    With batches in hand that the others do not have it would make calls that they do not make.
    """
    come(seed)


@pytest.mark.soak
def test_whenever_it_comes_many_times() -> None:
    for seed in range(40, 1500):
        try:
            come(seed)
        except BaseException as error:
            raise AssertionError(f"seed {seed}") from error


def come(seed: int) -> None:
    rng = random.Random(seed)
    unit, also = rng.random() < 0.3, rng.choice(["B", "LB", "LEB"])
    size, epochs, founders = rng.choice([9, 21, 60]), rng.randint(1, 3), rng.randint(1, 2)
    pace = rng.choice([0.0, 0.001, 0.003])
    recovery = "live" if rng.random() < 0.2 else "wait"
    begins = rng.uniform(0.3, 1.0) * epochs * size / BATCH / founders
    with Job(founders, recovery=recovery) as job:

        def student() -> Student:
            made = Student(depth=rng.choice([0, 1, 3]), epochs=epochs, size=size, unit=unit, also=also)
            made.hook = lambda _ft: time.sleep(pace)
            return made

        old = {name: student() for name in "ab"[:founders]}
        for name, one in old.items():
            job.start(name, one.study)
        ft = job.workers["a"].ft
        while ft.step < begins and job.workers["a"].thread.is_alive():
            time.sleep(0.0002)
        late = student()
        joiner = job.start("j", late.study)
        for name in old:
            job.workers[name].join()
        assert len({one.steps for one in old.values()}) == 1
        if not joiner.ft.rank >= 0 and joiner.thread.is_alive():
            return  # the job was over before it was let in, and nobody is there to tell it so
        joiner.thread.join(TIMEOUT)
        if isinstance(joiner.error, SystemExit):
            assert joiner.error.code == 0
        else:
            joiner.join()
            assert late.steps == old["a"].steps and torch.equal(late.model.weight, old["a"].model.weight)


def test_whose_call_the_others_never_make_takes_part_in_few_of_theirs() -> None:
    """It names the call and stops: it does not go on making calls for as long as the others do."""
    with Job(2) as job:
        came, over = threading.Event(), threading.Event()

        def founder(worker: Worker) -> int:
            worker.ft.register_state(model := torch.nn.Linear(2, 1))
            model.weight.grad = torch.ones(1, 2)
            seen = torch.zeros(1)
            while not seen.item():
                assert worker.ft.allreduce_average(model)
                if worker.name == "a" and worker.ft.step == 3:
                    job.start("j", stray)
                    came.set()
                seen.fill_(over.is_set())
                assert worker.ft.allreduce(seen, "MAX")
            return worker.ft.size

        def stray(worker: Worker) -> None:
            worker.ft.register_state(torch.nn.Linear(2, 1))
            worker.ft.allreduce(torch.zeros(7), "MIN")

        for name in "ab":
            job.start(name, founder)
        assert came.wait(TIMEOUT)
        with pytest.raises(StepMismatch, match=f"none like it so far, {FOREIGN_CALLS + 1} of them"):
            job.workers["j"].join()
        over.set()
        assert job.workers["j"].ft.metrics()["calls"] <= FOREIGN_CALLS + 1
        assert [job.workers[name].join() for name in "ab"] == [2, 2]
