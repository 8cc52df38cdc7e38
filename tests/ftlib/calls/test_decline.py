"""``ft.decline()``: the others' call, whatever it is, returns FAIL at all members."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from ftlib import ConfigError, ElasticSampler, Status
from ftlib.ftlib import FTLib
from tests.ftlib.crews.crew import Crew
from tests.harness.company import at_once, company

SIZE = 3
SAMPLES = 23
CALLS: dict[str, Callable[[FTLib], Any]] = {
    "average": lambda ft: ft.allreduce_average([torch.ones(1000), torch.ones(3)]),
    "compressed average": lambda ft: ft.allreduce_average([torch.ones(1000)], compression="bf16"),
    "sum": lambda ft: ft.allreduce(torch.ones(5, dtype=torch.int64), "SUM"),
    "broadcast": lambda ft: ft.broadcast(torch.ones(2), 1),
    "barrier": lambda ft: ft.barrier(),
    "vote": lambda ft: ft.vote(1, against=False)[0],
}


@pytest.fixture(scope="module")
def crew() -> Iterator[Crew]:
    with Crew(SIZE) as made:
        yield made


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("known", [False, True], ids=["unexpected", "expected"])
def test_a_call_of_any_kind_fails_at_all(crew: Crew, name: str, *, known: bool) -> None:
    call = CALLS[name]
    for _ in range(3 * known):
        assert all(crew.all(lambda ft, _: call(ft)))
    for decliners in ((0,), (1, 2), (2,), (0, 1, 2)):
        assert crew.all(lambda ft, i, those=decliners: ft.decline() if i in those else call(ft)) == [Status.FAIL] * SIZE
    assert all(crew.all(lambda ft, _: call(ft)))


def test_an_average_that_was_declined_grants_no_step_and_changes_no_tensor(crew: Crew) -> None:
    steps = crew.all(lambda ft, _: ft.step)
    tensors = [torch.full((4,), float(i)) for i in range(SIZE)]
    for _ in range(2):
        crew.all(lambda ft, i: ft.decline() if not i else ft.allreduce_average([tensors[i]]))
    assert [tensor.tolist() for tensor in tensors] == [[float(i)] * 4 for i in range(SIZE)]
    assert crew.all(lambda ft, _: ft.step) == steps
    assert all(crew.all(lambda ft, i: ft.allreduce_average([tensors[i]])))
    assert [tensor.tolist() for tensor in tensors] == [[1.0] * 4] * SIZE
    assert crew.all(lambda ft, _: ft.step) == [step + 1 for step in steps]


def test_alone_it_fails_as_well() -> None:
    with Crew(1) as alone:
        assert alone.all(lambda ft, _: ft.decline()) == [Status.FAIL]
        assert all(alone.all(lambda ft, _: ft.barrier()))


def test_it_is_no_part_of_a_unit() -> None:
    with Crew(1) as alone:
        alone.all(lambda ft, _: ft.register_state(state_dict=dict, load_state_dict=lambda _state: None))
        with pytest.raises(ConfigError, match="decline was called within execute"):
            alone.all(lambda ft, _: ft.execute(ft.decline))


@pytest.mark.parametrize("batches", [-1, 1.0, True, 1 << 16])
def test_batches_are_a_count(crew: Crew, batches: Any) -> None:
    with pytest.raises(ConfigError, match="must be a whole number from 0"):
        crew.job.workers["w0"].ft.decline(batches=batches)


class Pupil:
    """One member's loop over an ``ElasticSampler``, an average for ``accumulate`` batches at a time."""

    def __init__(self, ft: FTLib, number: int, *, ahead: bool, accumulate: int = 1) -> None:
        self.ft, self.number, self.accumulate = ft, number, accumulate
        self.weight = nn.Parameter(torch.zeros(SAMPLES))
        self.optimizer = torch.optim.SGD([self.weight], lr=1.0)
        self.sampler = ElasticSampler(range(SAMPLES), batch_size=1, seed=3)
        model = nn.Module()
        model.weight = self.weight
        ft.register_state(model=model, optimizer=self.optimizer, sampler=self.sampler)
        workers = {"num_workers": 1, "prefetch_factor": 2} if ahead else {}
        self.loader = DataLoader(range(SAMPLES), batch_sampler=self.sampler, **workers)  # type: ignore[arg-type]
        self.calls = 0
        self.averaged: dict[int, int] = {}
        """Of each sample in an average here: ``ft.step`` after it."""
        self.declined: set[int] = set()

    def learn(self, declines: Callable[[int, int], bool]) -> None:
        """One epoch. ``declines``: whether the member of that number declines its call of that number."""
        batches: list[int] = []
        for batch in self.loader:
            real = self.sampler.counts(len(batches))
            batches += batch.tolist()[:1] if real else [-1]
            if len(batches) < self.accumulate:
                continue
            own = {index for index in batches if index >= 0}
            self.calls += 1
            if declines(self.number, self.calls):
                assert self.ft.decline(batches=len(batches)) is Status.FAIL
                self.declined |= own
            else:
                self.weight.grad = torch.zeros(SAMPLES)
                self.weight.grad[list(own)] = 1.0
                if self.ft.allreduce_average(self.weight, batches=len(batches)):
                    self.optimizer.step()
                    self.averaged.update(dict.fromkeys(own, self.ft.step))
                else:
                    self.declined |= own
            batches = []

    @property
    def told(self) -> tuple[dict[int, int], set[int]]:
        """As ``averaged`` and ``declined``, by the ledger."""
        rows = [row for row in self.sampler.ledger(0) if row.member == self.ft._plane.member_id]
        granted = {index: row.step for row in rows if row.granted for index in row.indices}
        return granted, {index for row in rows if not row.granted for index in row.indices}


CHOICES: dict[str, Callable[[int, int], bool]] = {
    "first": lambda number, call: number == 0 and call == 1,
    "some": lambda number, call: (number, call) in {(0, 2), (1, 3), (0, 5), (1, 5)},
    "all": lambda _number, call: call % 3 == 2,
    "at the end": lambda number, call: number == 1 and call > 5,
}


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("ahead", [False, True], ids=["as they come", "ahead"])
@pytest.mark.parametrize("choice", CHOICES)
def test_its_batches_are_used_up_without_a_step(choice: str, *, ahead: bool, accumulate: int) -> None:
    """Each sample is in the average that the ledger names, or in none, and all leave their loops after the same call."""
    with company(2) as crew:
        pupils = at_once(*[lambda i=i: Pupil(crew.members[i], i, ahead=ahead, accumulate=accumulate) for i in range(2)])
        at_once(*[lambda pupil=pupil: pupil.learn(CHOICES[choice]) for pupil in pupils])
        assert len({pupil.calls for pupil in pupils}) == 1
        for pupil in pupils:
            assert pupil.told == (pupil.averaged, pupil.declined)
        used = [index for row in pupils[0].sampler.ledger(0) for index in row.indices]
        assert sorted(used) == list(range(SAMPLES))
        assert {index for pupil in pupils for index in pupil.declined}, "some call was declined that had samples"


def test_where_it_uses_up_none_the_batch_is_there_for_the_next_call() -> None:
    with company(2) as crew:

        def work(number: int) -> tuple[list[int], list[int]]:
            ft = crew.members[number]
            pupil = Pupil(ft, number, ahead=True)
            averaged = []
            for batch in pupil.loader:
                real = pupil.sampler.counts(0)
                if not number:
                    assert ft.decline(batches=0) is Status.FAIL
                else:
                    assert ft.allreduce(torch.ones(1)) is Status.FAIL
                assert pupil.sampler.counts(0) == real
                pupil.weight.grad = torch.ones(SAMPLES)
                if ft.allreduce_average(pupil.weight) and real:
                    averaged += batch.tolist()
            rows = [row for row in pupil.sampler.ledger(0) if row.member == ft._plane.member_id]
            return averaged, [index for row in rows for index in row.indices]

        told = at_once(lambda: work(0), lambda: work(1))
        for averaged, used in told:
            assert averaged == used
        assert sorted(index for averaged, _ in told for index in averaged) == list(range(SAMPLES))
