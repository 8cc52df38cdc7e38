"""Workers that go through a dataset with an elastic sampler, in threads of one process; and what must be true of them all.

A gradient says which samples it was computed from, so that every average tells what really is in it, whatever ledgers say.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ftlib import ElasticSampler, FTLib, FTLibError, Status
from tests.ftlib.crews.workers import Job, Worker
from tests.harness.basics import TIMEOUT, eventually

Loader = Callable[[ElasticSampler], Iterator[list[int]]]


def prefetching(depth: int) -> Loader:
    """As a ``DataLoader`` whose workers look so many batches ahead: it asks again before it hands out the next one."""

    def load(sampler: ElasticSampler) -> Iterator[list[int]]:
        indices = iter(sampler)
        ready: deque[list[int]] = deque()

        def ask() -> None:
            batch = next(indices, None)
            if batch is not None:
                ready.append(batch)

        for _ in range(depth):
            ask()
        while ready or depth == 0:
            ask()
            if not ready:
                return
            yield ready.popleft()

    return load


class Scholar:
    """One worker: ``learn`` is its program."""

    def __init__(self, size: int, batch_size: int, epochs: int, depth: int = 0, **given: Any) -> None:
        """``depth``: batches that its loader looks ahead. ``given``: for ``ElasticSampler``."""
        self.size = size
        self.epochs = epochs
        self.sampler = ElasticSampler(range(size), batch_size=batch_size, **{"seed": 5, **given})
        self._load = prefetching(depth)
        self.model = torch.nn.Linear(size, 1, bias=False)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1.0)
        self.books: dict[int, list[tuple[int, str, tuple[int, ...], bool]]] = {}
        """By epoch: (step, member, indices, granted)."""
        self.last = 0
        """Steps at the end of the newest loop."""
        self.unit = False
        """Whether each step is one unit (``FTLib.execute``)."""
        self.hook: Callable[[], None] = lambda: None
        """Called before every call."""
        self.ending = ""
        self.name = ""

    def register(self, ft: FTLib) -> None:
        ft.register_state(self.model, self.optimizer, self.sampler)

    def learn(self, worker: Worker) -> Scholar:
        """All epochs, from wherever the job is."""
        ft, self.name = worker.ft, worker.name
        try:
            self.register(ft)
            for _ in self.sampler.epochs(self.epochs):
                for batch in self._load(self.sampler):
                    self.hook()
                    if (ft.execute(self.step, ft, batch) if self.unit else self.step(ft, batch)) is Status.ABORT:
                        self.ending = "left"
                        return self
                self.last = ft.step
                self._note()
            ft.barrier()  # who leaves while others are still in its last call has that redone without it
            self.ending = "done"
            ft.leave()
        except SystemExit as end:
            assert end.code == 0  # noqa: PT017 - nobody calls this who could expect it
            self.ending = "not needed any more"
        except FTLibError as error:
            self.ending = f"{type(error).__name__}: {error}"
        return self

    def step(self, ft: FTLib, batch: list[int]) -> Status:
        """One batch: as much of the gradient as each of its samples has a share in it."""
        weight = self.model.weight
        weight.grad = torch.zeros_like(weight)
        for index in batch:
            weight.grad[0, index] += 1.0 / len(batch)
        status = ft.allreduce_average(self.model)
        if status:
            if not self.unit:  # whose ledger has it once it is committed
                self._check(ft, weight.grad[0].double())
            self.optimizer.step()
        return status

    def _note(self) -> None:
        """Keep what the ledger says of the epochs that it knows."""
        for epoch in range(self.epochs):
            if rows := self._rows(epoch):
                self.books[epoch] = rows

    def _rows(self, epoch: int) -> list[tuple[int, str, tuple[int, ...], bool]]:
        try:
            return [(row.step, row.member, tuple(row.indices), row.granted) for row in self.sampler.ledger(epoch)]
        except FTLibError:
            return []

    def _check(self, ft: FTLib, average: torch.Tensor) -> None:
        """What is in the average is what the ledger says that this step used up, each sample as often as it says."""
        told = Counter(index for row in self.sampler.ledger() if row.step == ft.step for index in row.indices)
        total = sum(told.values())
        found = {int(index): round(float(average[index]) * total, 3) for index in average.nonzero().flatten()}
        assert found == dict(told), f"step {ft.step} averaged {found}, the ledger says {dict(told)}"


def judge(scholars: list[Scholar], *, epochs: int, size: int) -> None:
    """Every sample once an epoch, in whoever's ledger; all that came to the end are alike and ended after the same step."""
    done = [scholar for scholar in scholars if scholar.ending == "done"]
    assert done, [scholar.ending for scholar in scholars]
    for scholar in done:
        for epoch, rows in scholar.books.items():
            used = sorted(index for _, _, indices, _ in rows for index in indices)
            assert used == list(range(size)), f"epoch {epoch} at {scholar.name}: {Counter(used).most_common(3)}, {len(used)}"
        assert scholar.books.keys() >= {epochs - 1}
        for epoch in scholar.books.keys() & done[0].books.keys():
            both = [set(one.books[epoch]) for one in (scholar, done[0])]
            assert both[0] == both[1], (
                f"epoch {epoch}: {scholar.name} alone {both[0] - both[1]}, {done[0].name} {both[1] - both[0]}"
            )
        assert scholar.last == done[0].last, {s.name: s.last for s in done}
        assert torch.equal(scholar.model.weight, done[0].model.weight)


def together(job: Job, scholars: dict[str, Scholar], joiners: dict[str, threading.Event]) -> None:
    """Run them to their ends; ``joiners`` start when their event is set."""
    for name, scholar in scholars.items():
        if name in joiners:
            assert joiners[name].wait(TIMEOUT)
        job.start(name, scholar.learn)
    for name in scholars:
        job.workers[name].join()


def play(seed: int) -> list[Scholar]:
    """A history of random events: members die, leave and join at random moments, but for the first, which stays."""
    rng = random.Random(seed)
    founders, size, epochs = rng.randint(1, 4), rng.choice([30, 61, 100]), rng.choice([2, 3])
    recovery = rng.choice(["live", "live", "wait"])
    with Job(founders, recovery=recovery) as job:

        def scholar() -> Scholar:
            return Scholar(size, batch, epochs, rng.choice([0, 1, 2, 4]), drop_last=False)

        drama = Drama(job, rng, scholar)
        batch = rng.choice([2, 3, 5])
        for _ in range(founders):
            drama.enter()
            eventually(lambda: drama.first in job.cluster.members, "the first one is there: it has to be a founder")
        drama.run()
        judge(list(drama.scholars.values()), epochs=epochs, size=size)
    return list(drama.scholars.values())


class Drama:
    """What happens to a job: on the test's own thread, at random moments, until the first worker has come to its end."""

    def __init__(self, job: Job, rng: random.Random, scholar: Callable[[], Scholar]) -> None:
        self.scholars: dict[str, Scholar] = {}
        self.first = "w00"
        """It stays, and so does what has been learned."""
        self._killed: set[str] = set()
        self._job, self._rng, self._scholar = job, rng, scholar

    def enter(self) -> None:
        """One more worker."""
        name = f"w{len(self.scholars):02}"
        pause = random.Random(self._rng.random())
        scholar = self.scholars[name] = self._scholar()
        scholar.hook = lambda: time.sleep(pause.uniform(0.0, 0.004))  # a forward pass, for events to fall into
        self._job.start(name, scholar.learn)

    def run(self) -> None:
        """Until the first worker is done; then the others have to be, too."""
        job, rng = self._job, self._rng
        while job.workers[self.first].thread.is_alive():
            time.sleep(rng.expovariate(20.0))  # between two events
            there = [name for name in self.scholars if job.workers[name].thread.is_alive()]
            others = [name for name in there if name != self.first and job.workers[name].ft.rank >= 0]
            event = rng.choice(["kill", "kill", "kill_two", "leave", "join", "join", "join"])
            if event == "join" and len(others) < 4 and len(self.scholars) < 12:
                self.enter()
            elif event == "leave" and (begun := [name for name in others if self.scholars[name].name]):
                threading.Thread(target=job.workers[rng.choice(begun)].ft.leave, daemon=True).start()
            elif event.startswith("kill") and others:
                for name in rng.sample(others, min(len(others), 1 + (event == "kill_two"))):
                    self._killed.add(name)
                    job.kill(name, silent=rng.random() < 0.3)
        for name in self.scholars.keys() - self._killed:
            if job.workers[name].ft.rank >= 0:  # else nobody is left who could let it in
                job.workers[name].join()
