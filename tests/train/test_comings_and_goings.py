"""Drawn training programs with the wrapper, in which members join and leave: the bits of the same program at one worker alone.

All members compute with the same data, and there are one or two of them: then an average is what each of them has, to the bit
(half and half of a float make that float again), whoever takes part. So whatever a joiner must not contribute, whatever it
failed to get, and whatever a leaver has left half done, shows.
"""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from ftlib import DistributedDataParallel, Status
from tests.ftlib.crews.workers import TIMEOUT, Job, Worker
from tests.train.cases import built
from tests.train.test_programs import Model, Pass, bits, fail_once, losses, ways

FURTHER = 2
"""Steps that are made after each coming and going."""


@dataclass(frozen=True)
class Program:
    """A loop over ``steps``, each some passes that are accumulated and one that is averaged."""

    steps: tuple[tuple[Pass, ...], ...]
    events: tuple[str, ...]
    """What happens while it goes on, one after the other."""
    bucket_mb: float
    catches_up: bool
    views: bool
    find_unused: bool
    to_none: bool
    """How gradients are reset."""
    recovery: str
    """Whether a joiner gets the state beside the others' steps, or within its first call, in which it has gradients then."""


passes = st.builds(
    Pass, ways=st.lists(ways, min_size=1, max_size=2).map(tuple), twice=st.just(value=False), fails=st.booleans()
)
EVENTS = (
    ("join",),
    ("leave",),
    ("join", "leave"),
    ("join", "senior leaves"),
    ("leave", "join"),
    ("senior leaves", "join"),
    ("join", "leave", "join"),
    ("join", "senior leaves", "join", "senior leaves"),
)
programs = st.builds(
    Program,
    steps=st.lists(st.lists(passes, min_size=1, max_size=3).map(tuple), min_size=2, max_size=4).map(tuple),
    events=st.sampled_from(EVENTS),
    bucket_mb=st.sampled_from([25.0, 2e-4, 1e-5]),
    catches_up=st.booleans(),
    views=st.booleans(),
    find_unused=st.booleans(),
    to_none=st.booleans(),
    recovery=st.sampled_from(["live", "wait"]),
)


def accumulate(program: Program, step: int, model: Model, wrapper: nn.Module, worker: int) -> None:
    """The backwards of that step, of which the last one is averaged; some raise in the middle, and are done again."""
    each_pass = program.steps[step % len(program.steps)]
    for index, each in enumerate(each_pass):
        seed = 10 * step + index
        apart = isinstance(wrapper, DistributedDataParallel) and index < len(each_pass) - 1
        with wrapper.no_sync() if apart else contextlib.nullcontext():  # type: ignore[operator]
            before = fail_once(model, wrapper, each, worker % 2, seed) if worker >= 0 else None
            loss = losses(wrapper, each, 0, seed)
            if before is not None:
                before()
            loss.backward()


def complete(program: Program, model: nn.Module) -> None:
    """Zeros for what no pass has reached, as an average of several has them; at a worker that is alone it stays None."""
    for parameter in model.parameters():
        if parameter.grad is None and not program.find_unused:
            parameter.grad = torch.zeros_like(parameter)


class Course:
    """What happens in one job, and when: workers tell how far they are, and are told to begin or to leave."""

    def __init__(self, job: Job, program: Program) -> None:
        self.job = job
        self.program = program
        self.changed = threading.Condition()
        self.traces: dict[str, dict[int, bytes]] = {}
        """By worker, and by ``ft.step``: the parameters after that step."""
        self.leaving: set[str] = set()
        self.until = 1 << 30
        self.statuses: dict[str, set[Status | None]] = {}

    def worker(self, worker: Worker) -> None:
        number = int(worker.name)
        model = built(Model(), seed=1 + number)
        assert isinstance(model, Model)
        ft, program = worker.ft, self.program
        wrapper = DistributedDataParallel(
            ft,
            model,
            bucket_mb=program.bucket_mb,
            gradient_as_bucket_view=program.views,
            find_unused_parameters=program.find_unused,
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
        ft.register_state(model=wrapper, optimizer=optimizer)
        trace, statuses = self.traces.setdefault(worker.name, {}), self.statuses.setdefault(worker.name, set())
        while ft.step < self.until:
            if worker.name in self.leaving:
                ft.leave()
                return
            if program.catches_up:
                ft.catch_up()
            optimizer.zero_grad(program.to_none)
            accumulate(program, ft.step, model, wrapper, number)
            statuses.add(wrapper.status)
            complete(program, model)
            optimizer.step()
            with self.changed:
                trace[ft.step] = bits(list(model.parameters()))
                self.changed.notify_all()

    def play(self, founders: int) -> None:
        present = [str(number) for number in range(founders)]
        coming = iter(map(str, range(founders, 9)))
        for name in present:
            self.job.start(name, self.worker)
        self._further(present)
        for event in self.program.events:
            if event == "join":
                present.append(next(coming))
                self.job.start(present[-1], self.worker)
            else:
                name = present.pop(0 if event == "senior leaves" else -1)
                self.leaving.add(name)
                self.job.workers[name].join()
            self._further(present)
        with self.changed:
            # All are in the same step, or one apart: so all see it before they come there.
            self.until = max(max(self.traces[name]) for name in present) + 4
        for name in present:
            self.job.workers[name].join()

    def _further(self, names: list[str]) -> None:
        """Wait until all of them have gone on together."""
        with self.changed:
            before = {name: len(self.traces.get(name, {})) for name in names}

            def gone_on() -> bool:
                errors = [worker.error for worker in self.job.workers.values() if worker.error is not None]
                if errors:
                    raise errors[0]
                return all(len(self.traces.get(name, {})) >= before[name] + FURTHER for name in names)

            while not gone_on():
                assert self.changed.wait(TIMEOUT), f"nobody goes on: {self.traces.keys()}"


def alone(program: Program, steps: int) -> dict[int, bytes]:
    """The same program at one worker, by torch alone."""
    model = built(Model())
    assert isinstance(model, Model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
    found = {}
    for step in range(steps):
        optimizer.zero_grad(program.to_none)
        accumulate(program, step, model, model, -1)
        complete(program, model)
        optimizer.step()
        found[step + 1] = bits(list(model.parameters()))
    return found


@settings(max_examples=40)
@given(programs)
def test_whoever_comes_and_goes_the_bits_are_those_of_one_worker_alone(program: Program) -> None:
    founders = 1 if program.events[0] == "join" else 2
    with Job(founders, recovery=program.recovery) as job:
        course = Course(job, program)
        course.play(founders)
    wanted = alone(program, max(max(trace) for trace in course.traces.values()))
    for name, trace in course.traces.items():
        steps = sorted(trace)
        assert steps == list(range(steps[0], steps[-1] + 1)), (name, steps)
        wrong = [step for step in steps if trace[step] != wanted[step]]
        assert not wrong, (name, wrong, steps)
        assert course.statuses[name] <= {Status.SUCCESS, Status.NO_NEED}, (name, course.statuses[name])
