"""The agreed order of gradients is a part of the state: of a joiner's, of a checkpoint's; members that differ are found."""

from __future__ import annotations

import functools
import gc
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ftlib import ConfigError, DistributedDataParallel, ElasticSampler, Status, StepMismatch
from ftlib.core.tensors.layout import Layout
from ftlib.ftlib import FTLib
from ftlib.recovery.catchup import Catchup
from ftlib.recovery.joiner.http_transport import HTTPTransport
from ftlib.state.agreed import Agreed
from ftlib.state.registry import Registered
from tests.ftlib.crews.trainees import exclude
from tests.ftlib.crews.workers import Job, Worker
from tests.harness.basics import TIMEOUT
from tests.harness.company import at_once, company, in_thread
from tests.train.cases import built, data


class Shuffled(nn.Module):
    """Registered in another order than it computes."""

    def __init__(self) -> None:
        super().__init__()
        self.middle, self.last, self.first = nn.Linear(8, 8), nn.Linear(8, 3), nn.Linear(4, 8)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.last(self.middle(self.first(inputs).tanh()).tanh())
        return found


REVERSED = [5, 4, 3, 2, 1, 0]


def ready(order: list[int]) -> bool:
    """The last layer's, the middle one's, the first one's."""
    return [set(order[i : i + 2]) for i in (0, 2, 4)] == [{2, 3}, {0, 1}, {4, 5}]


class Trainer:
    """A program: one model, registered itself or through its wrapper, before or after that is made, or by somebody else."""

    def __init__(self, ft: FTLib, *, through: bool = False, first: bool = False, registers: bool = True) -> None:
        self.ft = ft
        self.module = built(Shuffled())
        self.optimizer = torch.optim.SGD(self.module.parameters(), lr=0.1, momentum=0.5)
        if first:
            ft.register_state(model=self.module, optimizer=self.optimizer)
        self.model = DistributedDataParallel(ft, self.module, bucket_mb=1e-4)
        if registers and not first:
            ft.register_state(model=self.model if through else self.module, optimizer=self.optimizer)

    @property
    def order(self) -> list[int]:
        return self.model._backward._order.order()

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.model(data(self.ft.rank, 5, 4, seed=self.ft.step)).square().mean().backward()
        assert self.model.status
        self.optimizer.step()

    def digest(self) -> bytes:
        return b"".join(parameter.detach().numpy().tobytes() for parameter in self.module.parameters())


def test_values_travel_with_whatever_is_registered() -> None:
    agreed, other = Agreed(), Agreed()
    assert [agreed.name(), agreed.name()] == ["1", "2"]
    agreed.put("1", b"x")
    tree = Registered({"model": nn.Linear(2, 2)}, agreed=agreed).tree(3)
    there = Registered({"model": nn.Linear(2, 2)}, agreed=other)
    there.load(tree)
    assert other.get("1") == b"x"
    assert other.get("2") is None
    with pytest.raises(ConfigError):
        there.check({**tree, "optimizer": [{}]})


def test_a_state_of_an_older_release_has_none() -> None:
    agreed = Agreed()
    agreed.put("1", b"x")
    registered = Registered({"model": nn.Linear(2, 2)}, agreed=agreed)
    tree = registered.tree(0)
    del tree["agreed"]
    registered.load(tree)
    assert agreed.get("1") is None


@pytest.mark.parametrize("through", [False, True])
def test_a_checkpoint_has_the_order(tmp_path: Path, through: bool) -> None:
    """Also where the one job registered the wrapper, and the other the module."""

    def save(worker: Worker) -> list[int]:
        trainer = Trainer(worker.ft, through=through)
        for _ in range(3):
            trainer.step()
        worker.ft.save(tmp_path, wait=True)
        trainer.step()
        worker.ft.close()
        return trainer.order

    def load(worker: Worker) -> list[list[int]]:
        trainer = Trainer(worker.ft, through=not through, first=through)
        found = [trainer.order]
        assert worker.ft.load(tmp_path) is not None
        found.append(trainer.order)
        trainer.step()
        return [*found, trainer.order]

    with Job(1) as job:
        order = job.run({"a": save})["a"]
    assert ready(order)
    with Job(1) as job:
        assert job.run({"b": load})["b"] == [REVERSED, order, order]


@pytest.mark.parametrize("begin", [1, 2, 3, 6])
def test_a_joiner_comes_while_the_order_is_agreed(begin: int) -> None:
    """Or before, or after: all have the same parameters and the same order in the end."""
    trainers = joined_at(begin)
    assert all(ready(trainer.order) for trainer in trainers.values())


def joined_at(begin: int) -> dict[str, Trainer]:
    """Two train, and a third joins when one of them has come to that step; all have the same parameters in the end."""
    ends, trainers = [1 << 30], dict[str, Trainer]()

    def train(worker: Worker) -> None:
        trainer = trainers[worker.name] = Trainer(worker.ft, through=worker.name == "b", first=worker.name == "a")
        while worker.ft.step < ends[0]:
            trainer.step()
            if worker.name == "c" and len(ends) == 1:
                ends[:] = [worker.ft.step + 5, 0]  # nobody is there yet
            if worker.name == "a" and worker.ft.step == begin:
                job.start("c", train)

    with Job(2) as job:
        job.start("a", train)
        job.start("b", train)
        for name in "abc":
            while name not in job.workers:
                job.workers["a"].thread.join(0.01)
            job.workers[name].join()
    assert len({trainer.digest() for trainer in trainers.values()}) == 1
    return trainers


def test_a_member_that_comes_back_has_the_order() -> None:
    """Its program was not started anew: it learned an order, or not, before it was excluded."""
    with company(3, rejoin=True) as crew:
        trainers = at_once(*[lambda ft=ft: Trainer(ft) for ft in crew.members])
        last, ends = trainers[-1], [1 << 30]

        def train(trainer: Trainer) -> None:
            while trainer.ft.step < ends[0]:
                trainer.step()

        others = [in_thread(functools.partial(train, trainer)) for trainer in trainers[:-1]]
        for _ in range(4):
            last.step()
        assert ready(last.order)
        before = last.ft._plane.member_id
        exclude(last.ft)
        for _ in range(3):
            last.step()
        assert last.ft._plane.member_id != before, "it is another member"
        ends[0] = last.ft.step + 6
        train(last)
        for thread in others:
            thread.join(TIMEOUT)
        assert [trainer.ft.step for trainer in trainers] == ends * 3
        assert len({trainer.digest() for trainer in trainers}) == 1
        assert [trainer.order for trainer in trainers] == [last.order] * 3
        assert ready(last.order)


def _another_order(trainer: Trainer) -> None:
    order = trainer.model._backward._order
    order._put([*REVERSED[1:], REVERSED[0]])


def _frozen(trainer: Trainer) -> None:
    trainer.module.last.bias.requires_grad_(False)  # type: ignore[union-attr]


@pytest.mark.parametrize("differ", [_another_order, _frozen])
def test_members_that_differ_are_found(differ: Callable[[Trainer], Any]) -> None:
    def train(worker: Worker) -> str:
        trainer = Trainer(worker.ft)
        for _ in range(3):
            trainer.step()
        if worker.name == "b":
            differ(trainer)
        with pytest.raises(StepMismatch) as caught:
            trainer.step()
        return str(caught.value)

    with Job(2) as job:
        found = job.run({"a": train, "b": train})
    if differ is _frozen:
        assert "frozen parameters here: last.bias" in found["b"]


def test_a_joiner_asks_for_the_order_while_it_waits_to_be_let_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the view's first call all would wait for that request."""
    within = list[object]()
    ahead, layout = Catchup.look_ahead, HTTPTransport.layout

    def look_ahead(self: Catchup, *arguments: Any) -> None:
        ahead(self, *arguments)
        for thread in threading.enumerate():
            if thread.name == "ftlib-ahead":
                thread.join(TIMEOUT)

    def asked(self: HTTPTransport, *arguments: Any) -> Layout:
        within.append(arguments)
        return layout(self, *arguments)

    monkeypatch.setattr(Catchup, "look_ahead", look_ahead)
    monkeypatch.setattr(HTTPTransport, "layout", asked)
    trainers = joined_at(4)
    assert all(ready(trainer.order) for trainer in trainers.values())
    assert not within


@pytest.mark.parametrize("buffers", [False, True], ids=["", "buffers"])
@pytest.mark.parametrize("when", range(4))
def test_a_call_that_a_wrapper_makes_before_an_average_is_declined_with_it(when: int, *, buffers: bool) -> None:
    """Rank 0's order before the second average, its buffers before each. All are in the same average then, and end together."""
    samples = 24

    def work(ft: FTLib, *, declines: bool) -> tuple[list[Status | None], list[float], list[int]]:
        module = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 1)).eval()
        model = DistributedDataParallel(ft, module, broadcast_buffers=buffers)
        sampler = ElasticSampler(range(samples), batch_size=1)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        ft.register_state(model=module, optimizer=optimizer, sampler=sampler)
        statuses: list[Status | None] = []
        for batch in sampler:
            optimizer.zero_grad()
            if declines and len(statuses) == when:
                statuses.append(ft.decline())
                continue
            model(torch.full((1, 2), float(batch[0]))).sum().backward()
            statuses.append(model.status)
            if model.status:
                optimizer.step()
        used = [index for row in sampler.ledger(0) for index in row.indices]
        return statuses, torch.cat([each.flatten() for each in module.parameters()]).tolist(), sorted(used)

    with company(3) as crew:
        found = at_once(*[lambda ft=ft: work(ft, declines=ft is crew.members[1]) for ft in crew.members])
        assert found[0] == found[1] == found[2]
        statuses, _, used = found[0]
        assert [number for number, status in enumerate(statuses) if not status] == [when]
        assert used == list(range(samples))


def test_wrappers_that_are_gone_are_not_asked_what_they_would_send() -> None:
    with company(1) as crew:
        for _ in range(5):
            DistributedDataParallel(crew.members[0], nn.Linear(2, 1))
            gc.collect()
        assert len(crew.members[0]._prefaces) <= 4, "those of the last one, and of one that nobody has collected when it came"
