"""Tensors that are added while backward runs: averaged beside it where the steps before were alike, whole whatever happens."""

from __future__ import annotations

import operator
import threading
import time
from functools import partial
from random import Random
from typing import Any

import pytest
import torch
from torch import nn

from ftlib import ConfigError
from ftlib.core.engine.engine import Engine
from ftlib.torchft.replica.averages import Averages
from ftlib.torchft.replica.steps import AVERAGE, Step
from tests.ftlib.crews.workers import TIMEOUT, Job, Worker
from tests.harness.entries import note_entries
from tests.harness.recompute import recompute

from .histories import survivors

BUCKET = 64
"""Bytes."""
KNOWN = 3
"""The first step that is averaged beside backward: the first that two alike came before."""
STEPS = 24


@pytest.fixture
def early(monkeypatch: pytest.MonkeyPatch) -> dict[Engine, list[bool]]:
    """By engine: whether each average was entered in the middle of backward."""
    return note_entries(monkeypatch)


class Broken(Exception):
    """Of the program."""


class Net(nn.Module):
    """Each parameter's gradient is what ``forward`` is called with; they come in the order of the parameters."""

    def __init__(self, sizes: list[int]) -> None:
        super().__init__()
        self.parts = nn.ParameterList(torch.zeros(size) for size in sizes)

    def forward(self, value: float, *, again: bool = False) -> torch.Tensor:
        total = torch.zeros((), requires_grad=True)
        for part in reversed(self.parts):  # what is computed last has the first gradient
            plus = partial(self.plus, part, value)
            total = recompute(plus, total, use_reentrant=True) if again else plus(total)
        return total

    @staticmethod
    def plus(part: torch.Tensor, value: float, total: torch.Tensor) -> torch.Tensor:
        return total + (part * value).sum()


class Trainer:
    """One replica's program: gradients are added by hooks, as they come."""

    def __init__(self, worker: Worker, *, counts: bool = True) -> None:
        worker.ft.register_state(state_dict=lambda: {"there": torch.ones(1)}, load_state_dict=lambda _: None)
        self.averages = Averages(worker.ft, BUCKET)
        self.ft = worker.ft
        self.counts = counts
        self.errors: list[str] = []
        self.nets: dict[tuple[int, ...], Net] = {}
        self.added: list[tuple[int, torch.Tensor]] = []
        """In this step, each with the sending that it went with."""
        self.stops = False
        """After one gradient more it has an error, and adds no other."""
        self.begin()

    def begin(self) -> None:
        self.errors.clear()
        self.added.clear()
        self.step = Step(self.ft, self.averages, counts=self.counts, sound=partial(operator.not_, self.errors))

    def net(self, sizes: list[int], op: str = AVERAGE) -> Net:
        net = self.nets.get(tuple(sizes))
        if net is None:
            net = self.nets[tuple(sizes)] = Net(sizes)
            for part in net.parts:
                part.register_post_accumulate_grad_hook(partial(self.hook, op))
        net.zero_grad()
        return net

    def hook(self, op: str, parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        if self.stops and self.added:
            self.errors.append("in a hook")
            return
        self.added.append((self.step.add(parameter.grad, op, quantized=False), parameter.grad))

    def backward(self, sizes: list[int], value: float) -> list[float]:
        """The gradients at the end of a backward pass."""
        self.net(sizes)(value).backward()
        return [float(tensor[-1]) for _, tensor in self.added]


@pytest.mark.parametrize("passes", [1, 2])
def test_they_are_averaged_when_backward_returns(passes: int, early: dict[Engine, list[bool]]) -> None:
    """Nobody waits for them; and from the third step on they are under way before that, in each pass of it."""
    sizes = [3, 40, 5, 7]

    def train(worker: Worker) -> list[int]:
        trainer, committed = Trainer(worker), []
        for step in range(STEPS):
            trainer.begin()
            for _ in range(passes):
                trainer.added.clear()
                assert trainer.backward(sizes, worker.ft.rank + step) == [0.5 + step] * len(sizes)
                for sending, tensor in trainer.added:
                    trainer.step.settle(sending)
                    assert torch.equal(tensor, torch.full_like(tensor, 0.5 + step))
            committed.append(trainer.step.commit())
        return committed

    with Job(2, nonfinite="pass") as job:
        assert job.run({"a": train, "b": train}) == {"a": [2] * STEPS, "b": [2] * STEPS}
    assert len(early) == 2
    for entered in early.values():
        assert len(entered) == passes * (STEPS - (KNOWN - 1)), "of those before it was not asked"
        assert all(entered)


@pytest.mark.parametrize(
    ("steps", "views"),
    [
        ([[20, 30], [20, 30], [20, 31]] * 8, 2),
        ([[20, 30], [20, 30, 40]] * 8, 1),
        ([[20, 30]] * 4 + [[20]] + [[20, 30]] * 5, 2),
        ([[20, 30]] * 4 + [[20, 30, 20]] + [[20, 30]] * 5, 2),
        ([[20, 30]] * 4 + [[]] + [[20, 30]] * 5, 1),
    ],
    ids=["now and then", "in turns", "fewer once", "more once", "none once"],
)
def test_a_step_that_is_not_like_the_last_costs_a_view_and_then_no_more(steps: list[list[int]], views: int) -> None:
    def train(worker: Worker) -> int:
        trainer = Trainer(worker)
        worker.ft.barrier()
        first = worker.ft.view
        for number, sizes in enumerate(steps):
            trainer.begin()
            if sizes:
                assert trainer.backward(sizes, worker.ft.rank + number) == [0.5 + number] * len(sizes)
            assert trainer.step.commit() == 2
        assert first is not None and worker.ft.view is not None
        return worker.ft.view.epoch - first.epoch + 1

    with Job(2, nonfinite="pass") as job:
        found = job.run({"a": train, "b": train})
    assert max(found.values()) <= views, found


def test_within_re_entrant_checkpoints_they_wait_for_the_end(early: dict[Engine, list[bool]]) -> None:
    def train(worker: Worker) -> None:
        trainer = Trainer(worker)
        for step in range(6):
            trainer.begin()
            trainer.net([20, 30, 40])(float(worker.ft.rank + step), again=True).backward()
            assert trainer.step.commit() == 2
            assert {float(tensor[-1]) for _, tensor in trainer.added} == {0.5 + step}

    with Job(2, nonfinite="pass") as job:
        job.run({"a": train, "b": train})
    assert not any(any(entered) for entered in early.values())


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("tells", [True, False])
def test_backward_raises_at_one_replica(place: int, tells: bool, early: dict[Engine, list[bool]]) -> None:
    """The others skip the step with it, if it says so; if it begins another step instead, that is the one they are in."""
    sizes, broken = [20, 30, 40], 5

    def train(worker: Worker) -> list[int]:
        trainer, committed = Trainer(worker), []
        net = trainer.net(sizes)

        def breaks(_: torch.Tensor) -> None:
            if len(committed) == broken and worker.name == "b" and not raised:
                raised.append(worker.name)
                raise Broken

        raised = list[str]()
        net.parts[place].register_post_accumulate_grad_hook(breaks)
        while len(committed) < STEPS:
            trainer.begin()
            try:
                values = trainer.backward(sizes, 1.0 + worker.ft.rank)
            except Broken:
                if not tells:
                    continue
                trainer.errors.append("broken")
            else:
                assert (tells and len(committed) == broken) or values == [1.5] * len(sizes)
            committed.append(trainer.step.commit())
        return committed

    with Job(2, nonfinite="pass") as job:
        found = job.run({"a": train, "b": train})
    expected = [0 if tells and step == broken else 2 for step in range(STEPS)]
    assert found == {"a": expected, "b": expected}
    for entered in early.values():
        assert all(entered[-KNOWN:])


class Plan:
    """What the replicas of one job do: equal nets everywhere, errors and naps that are drawn for each."""

    def __init__(self, seed: int) -> None:
        rng = Random(f"{seed} of steps beside backward")
        self.size = rng.choice([2, 3, 3, 4])
        nets = [[rng.choice([1, 5, 16, 17, 60]) for _ in range(rng.randint(1, 5))] for _ in range(2)]
        self.nets = [rng.choices(nets, [0.9, 0.1])[0] for _ in range(STEPS)]
        self.ops = [rng.choices([AVERAGE, "SUM"], [0.9, 0.1])[0] for _ in range(STEPS)]
        """Of one more tensor, which is added after backward."""
        self.passes = [rng.choices([1, 2], [0.8, 0.2])[0] for _ in range(STEPS)]
        often = rng.choice([0.0, 0.1, 0.4])
        self.errors = [
            [rng.choice(["before", "in backward", "in a hook", "after"]) if rng.random() < often else "" for _ in range(STEPS)]
            for _ in range(self.size)
        ]
        self.naps = [[rng.choice([0.0, 0.0, rng.random() * 0.01]) for _ in range(STEPS)] for _ in range(self.size)]
        self.counting = self.size - (rng.random() < 0.3)
        """Those after are spares."""
        self.victim = rng.randrange(self.size) if self.size > 2 and rng.random() < 0.7 else None
        self.killed_after = rng.random() * 0.3
        self.met = threading.Event()


def program(worker: Worker, number: int, plan: Plan) -> list[tuple[int, list[float]]]:
    """What each step returned, with the tensors where it was committed."""
    trainer = Trainer(worker, counts=number < plan.counting)
    nap = Random(f"{number} naps").random
    worker.ft.barrier()
    plan.met.set()
    found = []
    for step in range(STEPS):
        trainer.begin()
        error = plan.errors[number][step]
        if error == "before":
            trainer.errors.append(error)
        trainer.stops = error == "in a hook"
        try:
            for _ in range(plan.passes[step]):
                net = trainer.net(plan.nets[step])
                loss = torch.zeros(())
                if error == "in backward":  # what is computed first comes last in backward: after other gradients
                    loss = _Breaks.apply(net.parts[-1]).sum()  # type: ignore[no-untyped-call]
                loss = loss + net(float(number + step))
                time.sleep(plan.naps[number][step] * nap())
                loss.backward()
        except Broken:
            trainer.errors.append(error)
        else:
            added = torch.full((4,), float(number + step))
            trainer.added.append((trainer.step.add(added, plan.ops[step], quantized=False), added))
        if error in ("after", "in a hook"):  # if there was only one gradient, it has not had it yet
            trainer.errors.append(error)
        count = trainer.step.commit()
        found.append((count, [float(tensor[-1]) for _, tensor in trainer.added] if count else []))
    return found


class _Breaks(torch.autograd.Function):
    """Its backward raises."""

    @staticmethod
    def forward(ctx: object, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.clone()

    @staticmethod
    def backward(ctx: object, gradient: torch.Tensor) -> torch.Tensor:
        raise Broken


@pytest.mark.parametrize("seed", range(60))
def test_whatever_happens_all_commit_the_same_steps_with_the_same_results(seed: int) -> None:
    plan = Plan(seed)
    for step, (count, tensors) in enumerate(survivors(plan, program)):
        erred = {number for number in range(plan.size) if plan.errors[number][step]}
        if erred - {plan.victim}:
            assert count == 0
        elif not erred and plan.victim is None:
            assert count == plan.counting
            values = [float(number + step) for number in range(plan.counting)]
            mean = sum(values) / plan.counting
            last = mean if plan.ops[step] == AVERAGE else sum(values)
            assert tensors[-1] == pytest.approx(last)
            assert tensors[:-1] == pytest.approx([mean] * len(plan.nets[step]) * plan.passes[step])


def test_a_tensor_without_room_for_a_result_is_refused() -> None:
    def train(worker: Worker) -> None:
        trainer = Trainer(worker)
        negated = torch.zeros(3, dtype=torch.complex64).conj().imag
        for tensor in (torch.zeros(()).expand(3), torch.zeros(2, 2).to_sparse(), negated):
            with pytest.raises(ConfigError, match=r"several elements at one place|only dense ones|negates what is in memory"):
                trainer.step.settle(trainer.step.add(tensor, AVERAGE, quantized=False))
            trainer.begin()
        assert trainer.step.commit() == 1

    with Job(1, nonfinite="pass") as job:
        job.run({"a": train})


class _Elsewhere(torch.autograd.Function):
    """Its backward runs that of a net on another thread, as torch runs a GPU's part of a graph."""

    @staticmethod
    def forward(context: Any, trainer: Trainer, sizes: list[int], value: float, start: torch.Tensor) -> torch.Tensor:
        context.inner = partial(trainer.backward, sizes, value)
        return start.clone()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        thread = threading.Thread(target=context.inner)
        thread.start()
        thread.join(TIMEOUT)
        return None, None, None, gradient


def test_hooks_on_another_thread(early: dict[Engine, list[bool]]) -> None:
    def train(worker: Worker) -> list[float]:
        trainer, found, more = Trainer(worker), [], float(worker.name == "b")
        for step in range(STEPS):
            trainer.begin()
            start = torch.zeros((), requires_grad=True)
            _Elsewhere.apply(trainer, [3, 40, 5], step + more, start).backward()  # type: ignore[no-untyped-call]
            found += [float(tensor[-1]) for _, tensor in trainer.added]
            assert trainer.step.commit() == 2
        return found

    with Job(2) as job:
        one, other = job.run({"a": train, "b": train}).values()
    assert one == other == [step + 0.5 for step in range(STEPS) for _ in range(3)]
    assert len(early) == 2 and all(sum(entered) >= STEPS - KNOWN for entered in early.values())
