"""Deaths, joins, leaves and failed operations in the middle of calls, over the memory framework."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
import torch
from torch import nn

from ftlib import Status, StepMismatch
from ftlib.frameworks.base import Operation, Work
from ftlib.frameworks.memory import MemoryGroup
from tests.ftlib.crews.workers import TIMEOUT, Job, Worker
from tests.harness.basics import eventually

STEPS = 30


def train(worker: Worker, steps: int, record: dict[int, tuple[float, ...]], size: int = 60_000) -> None:
    """Averages whose result depends on the members, so that a mixture of member sets shows."""
    ft = worker.ft
    while ft.step < steps:
        tensors = [torch.full((size,), float(int(worker.name[1:]) + 1)), torch.full((100,), float(ft.step))]
        assert ft.allreduce_average(tensors)
        assert bool((tensors[0] == tensors[0][0]).all())
        record[ft.step] = (tensors[0][0].item(), tensors[1][0].item())


def agree(records: dict[str, dict[int, tuple[float, ...]]], legal: set[float]) -> None:
    for step in {step for record in records.values() for step in record}:
        values = {record[step] for record in records.values() if step in record}
        assert len(values) == 1, (step, values)
        value = values.pop()
        assert any(value[0] == pytest.approx(each, rel=1e-6) for each in legal), (step, value)
        assert value[1] == pytest.approx(step - 1)


@pytest.mark.parametrize("skip", range(12))
@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_failed_operation_is_salvaged(skip: int, elsewhere: bool) -> None:
    """Nobody dies; one operation fails, at one rank or at all. With ``elsewhere`` the others may finish the call."""
    records: dict[str, dict[int, tuple[float, ...]]] = {f"w{i}": {} for i in range(3)}

    def body(worker: Worker) -> None:
        if worker.name == "w0":
            job.hub.fail_next(1, 20 + skip, finish_elsewhere=elsewhere)
        worker.ft.barrier()
        train(worker, STEPS, records[worker.name])

    with Job(3, bucket_mb=0.1) as job:
        job.run(dict.fromkeys(records, body))
        assert job.cluster.epoch >= 2

        def total(what: str) -> int:
            return sum(worker.ft.metrics()[what] for worker in job.workers.values())

        # Counted on the donor's rebuild thread, once the sends have begun: by then the adopter may be far ahead.
        eventually(lambda: total("adopted") == total("donated"), "every result that was taken was given")
    agree(records, {2.0})
    assert all(len(record) == STEPS for record in records.values())


@pytest.mark.parametrize("delay", [0.0, 0.003, 0.01, 0.03])
@pytest.mark.parametrize("silent", [False, True])
@pytest.mark.parametrize("victim", ["w0", "w2"])
def test_survivors_lose_no_step(delay: float, silent: bool, victim: str) -> None:
    records: dict[str, dict[int, tuple[float, ...]]] = {f"w{i}": {} for i in range(4)}
    under_way = threading.Event()

    def body(worker: Worker) -> None:
        under_way.set()
        train(worker, 60, records[worker.name])

    with Job(4, bucket_mb=0.1) as job:
        workers = [job.start(name, body) for name in records]
        assert under_way.wait(TIMEOUT)
        time.sleep(delay)  # when the fault falls is the variable here
        job.kill(victim, silent=silent)
        for worker in workers:
            if worker.name != victim:
                worker.join()
        left = tuple(name for name in sorted(records) if name != victim)
        eventually(lambda: job.cluster.history[-1].ids == left, "the last view is without it, though the training may be over")
    survivors = {name: record for name, record in records.items() if name != victim}
    assert all(len(record) == 60 for record in survivors.values())
    four, three = 2.5, (10 - int(victim[1:]) - 1) / 3
    agree(survivors, {four, torch.tensor(three).item()})


def test_one_after_the_other_down_to_one_and_back_to_three() -> None:
    records: dict[str, dict[int, tuple[float, ...]]] = {}
    ended: dict[str, int] = {}

    def body(worker: Worker) -> None:
        ft, record = worker.ft, records.setdefault(worker.name, {})
        model = nn.Linear(3, 2)  # drawn at random: only the state that was transferred makes workers alike
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
        ft.register_state(model=model, optimizer=optimizer)
        while True:
            for parameter in model.parameters():
                parameter.grad = torch.full_like(parameter, float(int(worker.name[1:]) + 1))
            if not ft.allreduce_average(model):
                return
            optimizer.step()
            record[ft.step] = tuple(parameter.sum().item() for parameter in model.parameters())
            time.sleep(0.0005)  # nothing waits for this: it leaves the other threads some time

    def steps_of(name: str) -> int:
        return max(records.get(name, {}), default=0)

    def until(condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + TIMEOUT
        while not condition():
            states = [(worker.ft, worker.error) for worker in job.workers.values()]
            assert time.monotonic() < deadline, (job.cluster.view, states)
            time.sleep(0.002)

    def kill(name: str) -> None:
        """Its last step may be its own: what the dead alone had finished, the others do again. What its thread records later is
        no process's word.
        """
        ended[name] = steps_of(name)
        job.kill(name)

    def go_on(name: str) -> None:
        before = steps_of(name)
        until(lambda: steps_of(name) > before + 5)

    with Job(3) as job:
        for i in range(3):
            job.start(f"w{i}", body)
        for victim in ("w1", "w0"):
            go_on("w2")
            kill(victim)
        until(lambda: job.workers["w2"].ft.size == 1)
        go_on("w2")
        for name in ("w3", "w4"):
            job.start(name, body)
            until(lambda name=name: steps_of(name) > 0)
        until(lambda: job.workers["w2"].ft.size == 3)
        go_on("w2")
        assert job.workers["w4"].ft.metrics()["state_loads"] == 1
        for name in ("w2", "w3", "w4"):
            kill(name)
        for name in ("w2", "w3", "w4"):
            job.workers[name].thread.join(TIMEOUT)
    records = {name: {k: v for k, v in record.items() if k < ended[name]} for name, record in records.items()}
    steps = {step for record in records.values() for step in record}
    for step in steps:
        assert len({record[step] for record in records.values() if step in record}) == 1, step
    assert steps == set(range(1, max(steps) + 1))


def test_joins_and_leaves_abort_nothing() -> None:
    records: dict[str, dict[int, tuple[float, ...]]] = {f"w{i}": {} for i in range(3)}

    def until_all_see(worker: Worker, size: int) -> None:
        """Step until everybody did so in a group of that size, then some more: all find that after the same step."""
        seen = torch.zeros(10)
        while seen[0] < 1.0:
            seen.fill_(worker.ft.size == size)
            assert worker.ft.allreduce_average(seen)
        for _ in range(20):
            assert worker.ft.allreduce_average(seen)
            assert worker.ft.size == size

    def body(worker: Worker) -> None:
        train(worker, 10, records[worker.name])
        if worker.name == "w0":
            job.start("w2", late)
        until_all_see(worker, 3)
        if worker.name == "w1":
            worker.ft._call_lock.leave()
            with pytest.raises(SystemExit):
                worker.ft.allreduce_average(torch.zeros(10))
            assert worker.ft.allreduce_average(torch.ones(10)) is Status.ABORT
            return
        until_all_see(worker, 2)

    def late(worker: Worker) -> None:
        assert worker.ft.rank == -1
        assert worker.ft.size == 2
        assert worker.ft.allreduce_average(torch.zeros(10))
        assert worker.ft.rank == 2
        assert worker.ft.step > 10
        until_all_see(worker, 3)
        until_all_see(worker, 2)

    with Job(2) as job:
        job.run({"w0": body, "w1": body})
        job.workers["w2"].join()
        assert sum(worker.ft.metrics()["redone"] for worker in job.workers.values()) == 0
        assert all(not worker.consensus.failures for worker in job.workers.values())
        assert job.workers["w0"].consensus.boundaries[-1][1] == ("w1",)


def test_others_go_on_after_a_user_exception() -> None:
    def body(worker: Worker) -> None:
        assert worker.ft.allreduce_average(torch.ones(4))
        if worker.name == "w2":
            worker.ft.close()
            return
        for _ in range(5):
            assert worker.ft.allreduce_average(torch.ones(4))
        assert worker.ft.size == 2

    with Job(3) as job:
        job.run({f"w{i}": body for i in range(3)})


def test_the_worker_with_other_tensors_stops_and_the_others_go_on() -> None:
    def body(worker: Worker) -> None:
        assert worker.ft.allreduce_average(torch.ones(4))
        count = 5 if worker.name == "w1" else 4
        for _ in range(3):
            assert worker.ft.allreduce_average(torch.ones(count))

    with Job(3) as job:
        for i in range(3):
            job.start(f"w{i}", body)
        for name in ("w0", "w2"):
            job.workers[name].join()
        with pytest.raises(StepMismatch, match=r"different tensors.*w1"):
            job.workers["w1"].join()


def test_two_workers_that_disagree_both_stop() -> None:
    def body(worker: Worker) -> None:
        worker.ft.allreduce_average(torch.ones(4 if worker.name == "w0" else 100_000))

    with Job(2) as job:
        for i in range(2):
            job.start(f"w{i}", body)
        for i in range(2):
            with pytest.raises(StepMismatch):
                job.workers[f"w{i}"].join()


def test_inputs_survive_a_failure_and_frozen_calls_do_not_finish(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operation that ends after the freeze does not finish the call."""
    held = threading.Event()
    release = threading.Event()
    original = MemoryGroup.submit

    class Slow(Work):
        def __init__(self, work: Work) -> None:
            self.work = work

        def wait(self, timeout: float) -> bool:
            done = self.work.wait(timeout)
            held.set()
            release.wait(TIMEOUT)
            return done

        def done(self) -> bool:
            return self.work.done()

    slow = threading.Event()

    def submit(self: MemoryGroup, operation: Operation) -> Work:
        work = original(self, operation)
        return Slow(work) if slow.is_set() and self.rank == 0 and threading.current_thread().name == "w0" else work

    monkeypatch.setattr(MemoryGroup, "submit", submit)
    values: dict[str, float] = {}

    def body(worker: Worker) -> None:
        worker.ft.barrier()
        if worker.name == "w0":
            slow.set()
        tensor = torch.full((4,), float(worker.name[1:]))
        if worker.name == "w1":
            held.wait(TIMEOUT)
        assert worker.ft.allreduce_average(tensor)
        values[worker.name] = tensor[0].item()

    with Job(3) as job:
        workers = [job.start(f"w{i}", body) for i in range(3)]
        assert held.wait(TIMEOUT)
        eventually(lambda: workers[1].ft._plane.running is not None, "all are in the call")
        job.kill("w2")
        until = time.monotonic() + TIMEOUT
        while job.cluster.epoch < 2 and time.monotonic() < until:
            time.sleep(0.01)
        slow.clear()
        held.set()
        release.set()
        workers[0].join()
        workers[1].join()
    assert values == {"w0": 0.5, "w1": 0.5}
