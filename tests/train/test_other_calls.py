"""Other calls between the averages of a wrapper: the loss of each step, another model's average, a barrier now and then."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch

from ftlib.core.calls.observer import Observer
from ftlib.core.calls.open_call import OpenCall
from ftlib.core.engine.engine import Engine
from ftlib.core.plane.plane import Plane
from tests.ftlib.crews.workers import Job, Worker
from tests.harness.entries import note_entries
from tests.train.test_agreed_order import Trainer

STEPS = 12
KNOWN = 5
"""From this step on the order of buckets is agreed, and the calls have repeated themselves."""


@pytest.fixture
def early(monkeypatch: pytest.MonkeyPatch) -> dict[Engine, list[bool]]:
    """By engine: whether each open call was entered in the middle of backward."""
    return note_entries(monkeypatch)


def a_loss(trainer: Trainer, _: int) -> None:
    trainer.ft.allreduce(torch.ones(1))


def two_kinds(trainer: Trainer, _: int) -> None:
    trainer.ft.allreduce(torch.ones(1))
    trainer.ft.broadcast(torch.ones(3), 0)


def a_barrier_now_and_then(trainer: Trainer, step: int) -> None:
    if step % 4 == 3:
        trainer.ft.barrier()


@pytest.mark.parametrize(
    ("between", "late"),
    [(a_loss, set()), (two_kinds, set()), (a_barrier_now_and_then, {6, 10})],
    ids=["loss", "two", "barrier"],
)
def test_averages_begin_in_backward_all_the_same(
    early: dict[Engine, list[bool]], between: Callable[[Trainer, int], None], late: set[int]
) -> None:
    """``late``: steps before which a barrier is expected, as it came there the last time."""

    def train(worker: Worker) -> bytes:
        trainer = Trainer(worker.ft)
        for step in range(STEPS):
            trainer.step()
            between(trainer, step)
        return trainer.digest()

    with Job(2) as job:
        found = job.run({"a": train, "b": train})
    assert found["a"] == found["b"]
    assert len(early) == 2
    for entered in early.values():
        not_entered = {STEPS - len(entered) + step for step, yes in enumerate(entered) if not yes}
        assert {step for step in not_entered if step >= KNOWN} <= late


def test_two_models_that_take_turns_both_begin_in_backward(early: dict[Engine, list[bool]]) -> None:
    def train(worker: Worker) -> list[bytes]:
        one, other = Trainer(worker.ft), Trainer(worker.ft, through=True)
        for trainer in itertools.islice(itertools.cycle([one, other]), 2 * STEPS):
            trainer.step()
        return [one.digest(), other.digest()]

    with Job(2) as job:
        found = job.run({"a": train, "b": train})
    assert found["a"] == found["b"]
    for entered in early.values():
        assert all(entered[2 * KNOWN - 2 * STEPS :])


def test_averages_begin_in_backward_again_once_a_joiner_has_the_state(early: dict[Engine, list[bool]]) -> None:
    """In the very view in which it came."""
    ends, trainers = [1 << 30], dict[str, Trainer]()

    def train(worker: Worker) -> None:
        trainer = trainers[worker.name] = Trainer(worker.ft)
        while worker.ft.step < ends[0]:
            trainer.step()
            if worker.name == "c" and len(ends) == 1:
                ends[:] = [worker.ft.step + STEPS, 0]  # nobody is there yet
            if worker.name == "a" and worker.ft.step == KNOWN:
                job.start("c", train)

    with Job(2) as job:
        job.start("a", train)
        job.start("b", train)
        for name in "abc":
            while name not in job.workers:
                job.workers["a"].thread.join(0.01)
            job.workers[name].join()
    assert len({trainer.digest() for trainer in trainers.values()}) == 1
    assert len(early) == 3
    for entered in early.values():
        assert any(entered[-STEPS:])


def test_averages_begin_in_backward_while_a_joiner_gets_the_state(monkeypatch: pytest.MonkeyPatch) -> None:
    ends, trainers = [1 << 30], dict[str, Trainer]()
    beside: dict[OpenCall, bool] = {}
    """Calls of members that a joiner asks for the state: whether they were entered in the middle of backward."""
    opens = Engine.open

    def note(engine: Engine, call: OpenCall) -> bool:
        session, asked = engine._plane.session, engine._observers.present
        entered = opens(engine, call)
        if asked and session is not None and session.size == 3 and session.expected is not None:
            beside[call] = entered
        return entered

    monkeypatch.setattr(Engine, "open", note)

    def train(worker: Worker) -> None:
        trainer = trainers[worker.name] = Trainer(worker.ft)
        while worker.ft.step < ends[0]:
            trainer.step()
            if worker.name == "c" and len(ends) == 1:
                ends[:] = [worker.ft.step + STEPS, 0]  # nobody is there yet
            if worker.name == "a" and worker.ft.step == KNOWN:
                job.start("c", train)

    with Job(2) as job:
        job.start("a", train)
        job.start("b", train)
        for name in "abc":
            while name not in job.workers:
                job.workers["a"].thread.join(0.01)
            job.workers[name].join()
    assert len({trainer.digest() for trainer in trainers.values()}) == 1
    assert beside
    assert all(beside.values())


def test_observers_learn_of_the_entry_when_backward_has_ended(early: dict[Engine, list[bool]]) -> None:
    """Until then it may change buffers."""

    class Noting(Observer):
        def __init__(self, plane: Plane) -> None:
            self.plane, self.entered = plane, list[int]()

        def entering(self, number: int) -> None:
            assert self.plane.in_call(number)
            assert self.plane.finished == number - 1
            self.entered.append(number)

    def train(worker: Worker) -> None:
        trainer, engine = Trainer(worker.ft), worker.ft._engine
        for _ in range(KNOWN):
            trainer.step()
        noting = Noting(worker.ft._plane)
        engine._observers.attach(noting)
        first = worker.ft._plane.finished + 1
        for _ in range(STEPS):
            trainer.step()
        assert noting.entered == [*range(first, first + STEPS)]

    with Job(2) as job:
        job.run({"a": train, "b": train})
    assert all(all(entered[-STEPS:]) for entered in early.values())


@pytest.mark.parametrize("begin", [6, 7])
def test_a_joiner_tells_models_of_equal_shapes_apart(begin: int) -> None:
    """Its first average is the first model's, whichever the others are in."""
    ends, trainers = [1 << 30], dict[str, list[Trainer]]()

    def train(worker: Worker) -> None:
        turns = trainers[worker.name] = [Trainer(worker.ft, registers=False) for _ in range(2)]
        with torch.no_grad():
            for parameter in turns[1].module.parameters():
                parameter.mul_(2.0)
        worker.ft.register_state(
            model=[trainer.module for trainer in turns], optimizer=[trainer.optimizer for trainer in turns]
        )
        while worker.ft.step < ends[0]:
            for trainer in turns:
                trainer.step()
                if worker.name == "a" and worker.ft.step == begin:
                    job.start("c", train)
            if worker.name == "c" and len(ends) == 1:
                ends[:] = [worker.ft.step + 4, 0]  # nobody is there yet

    with Job(2) as job:
        job.start("a", train)
        job.start("b", train)
        for name in "abc":
            while name not in job.workers:
                job.workers["a"].thread.join(0.01)
            job.workers[name].join()
    first, other = ({turns[index].digest() for turns in trainers.values()} for index in range(2))
    assert len(first) == len(other) == 1
    assert first != other
