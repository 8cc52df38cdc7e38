"""Replicas that report errors at any place of a step: all skip it, and nobody waits for tensors that do not come."""

from __future__ import annotations

import operator
import threading
import time
from functools import partial
from random import Random
from typing import Any

import pytest
import torch

from ftlib.torchft.replica.averages import Averages
from ftlib.torchft.replica.steps import AVERAGE, Step
from tests.ftlib.crews.workers import Job, Worker
from tests.harness.company import at_once

from .histories import survivors
from .replicas import Replica, settle

STEPS = 12


class Plan:
    """What the replicas of one job do: equal tensors everywhere, errors that are drawn for each."""

    def __init__(self, seed: int) -> None:
        rng = Random(f"{seed} of steps with errors")
        self.size = rng.choice([2, 3, 3, 4])
        self.sendings = [[rng.choice([AVERAGE, AVERAGE, "SUM", "MAX"]) for _ in range(rng.randint(0, 3))] for _ in range(STEPS)]
        """The operations of each step; somebody waits for each before the next one is added."""
        often = rng.choice([0.1, 0.5, 0.9])
        self.fails = [
            [rng.randint(0, len(ops)) if rng.random() < often else None for ops in self.sendings] for _ in range(self.size)
        ]
        """For each replica and step: after how many sendings it has an error; None: it has none."""
        self.naps = [[rng.choice([0.0, 0.0, rng.random() * 0.01]) for _ in range(STEPS)] for _ in range(self.size)]
        self.victim = rng.randrange(self.size) if self.size > 2 else None
        self.killed_after = rng.random() * 0.15
        self.met = threading.Event()

    def clean(self, step: int) -> bool:
        return all(fails[step] is None for fails in self.fails)


def program(worker: Worker, number: int, plan: Plan) -> list[tuple[int, list[float]]]:
    """What each step returned, with the tensors where it was committed."""
    found = []
    averages = Averages(worker.ft, 1 << 20)
    worker.ft.barrier()
    plan.met.set()
    for step, ops in enumerate(plan.sendings):
        fails, tensors, errors = plan.fails[number][step], list[torch.Tensor](), list[int]()
        calls = Step(worker.ft, averages, counts=True, sound=partial(operator.not_, errors))
        time.sleep(plan.naps[number][step])
        for place, op in enumerate([*ops, ""]):
            if fails == place:
                errors.append(place)
            if op:
                tensors.append(torch.full((3 + place,), float(number + step)))
                calls.settle(calls.add(tensors[-1], op, quantized=False))
        count = calls.commit()
        found.append((count, [float(each[0]) for each in tensors] if count else []))
    return found


@pytest.mark.parametrize("seed", range(30))
def test_all_skip_the_same_steps_and_the_results_of_the_others_are_whole(seed: int) -> None:
    plan = Plan(seed)
    with Job(plan.size, min_size=1, nonfinite="pass") as job:
        bodies = {f"w{i}": lambda worker, i=i: program(worker, i, plan) for i in range(plan.size)}
        found = list(job.run(bodies).values())
    assert all(each == found[0] for each in found)
    for step, (count, tensors) in enumerate(found[0]):
        assert count == plan.size * plan.clean(step)
        values = [float(number + step) for number in range(plan.size)]
        expected = {AVERAGE: sum(values) / plan.size, "SUM": sum(values), "MAX": max(values)}
        assert tensors == pytest.approx([expected[op] for op in plan.sendings[step]] if count else [])


@pytest.mark.parametrize("seed", range(100, 130))
def test_one_is_killed_meanwhile_and_the_others_skip_the_same_steps(seed: int) -> None:
    plan = Plan(seed)
    for step, (count, _) in enumerate(survivors(plan, program)):
        erred = {number for number, fails in enumerate(plan.fails) if fails[step] is not None}
        if erred - {plan.victim}:
            assert count == 0
        elif not erred:
            assert count, "nobody had an error"


def test_a_replica_joins_while_others_have_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    settle(monkeypatch)
    rng = Random(5)
    errors = {(number, step) for number in range(2) for step in range(400) if rng.random() < 0.3}
    enough = threading.Event()
    replicas = [Replica(number, 2) for number in range(2)]

    def train(replica: Replica) -> list[int]:
        committed: list[int] = []
        for step in range(10_000):
            if len(committed) > 2 and min(committed[-3:]) == 3:
                enough.set()
            before = replica.manager.current_step()
            replica.optimizer.zero_grad()
            loss = replica.wrapped(torch.full((1, 3), float(replica.number))).sum()
            if (replica.number, step) in errors:
                replica.manager.report_error(ValueError("broken"))
            else:
                loss.backward()
            replica.optimizer.step()
            after = replica.manager.current_step()
            committed.append(replica.manager.num_participants() if after > before else 0)
            if after >= 60 and enough.is_set():
                return committed
        raise AssertionError("the steps do not end")

    joiner: list[Any] = []

    def join() -> list[int]:
        time.sleep(0.3)
        joiner.append(Replica(2, 2))
        return train(joiner[0])

    try:
        at_once(lambda: train(replicas[0]), lambda: train(replicas[1]), join)
        states = {(each.manager.current_step(), tuple(each.weights())) for each in (*replicas, *joiner)}
        assert len(states) == 1
    finally:
        at_once(*[each.manager.shutdown for each in (*replicas, *joiner)])
