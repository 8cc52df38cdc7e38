"""``DiLoCo`` over an ``ElasticSampler``: each sample once an epoch, also where syncs are under way beside inner steps."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from ftlib import ConfigError, DiLoCo, ElasticSampler, FTLib, Status
from ftlib.core.engine.waiting import Limits
from tests.harness.basics import TIMEOUT
from tests.harness.company import Company, at_once, company
from tests.train.local_sgd.test_course import Layers, inner_step

SAMPLES, EPOCHS = 71, 3
FILL = -1
"""What a filler is made of here."""
WAYS: dict[str, dict[str, Any]] = {
    "at-the-end": {"sync_every": 4},
    "delayed": {"sync_every": 4, "delay": 2},
    "in-turns": {"sync_every": 10, "fragments": 2, "delay": 4},
}


class Deep:
    """A loader that draws so many batches ahead as one with workers does, without any."""

    def __init__(self, sampler: ElasticSampler, depth: int) -> None:
        self._sampler, self._depth = sampler, depth

    def __iter__(self) -> Iterator[torch.Tensor]:
        source = iter(self._sampler)
        waiting = deque(itertools.islice(source, self._depth))
        while True:
            waiting.extend(itertools.islice(source, 1))  # it asks again for each batch, also after the sampler's end
            if not waiting:
                return
            yield torch.tensor(waiting.popleft())


class Student:
    """One member's loop."""

    def __init__(self, ft: FTLib, way: dict[str, Any], workers: int) -> None:
        self.ft = ft
        self.model = Layers()
        self.inner = torch.optim.SGD(self.model.parameters(), lr=0.5)
        self.diloco = DiLoCo(
            ft, self.model, inner=self.inner, outer=lambda w: torch.optim.SGD(w, lr=1.0), weight="samples", **way
        )
        self.sampler = ElasticSampler(range(SAMPLES), batch_size=3, seed=1)
        self.sampler._filler = [FILL]
        self.loader: Iterable[torch.Tensor] = DataLoader(
            [*range(SAMPLES), FILL],  # type: ignore[arg-type]
            batch_sampler=self.sampler,
            num_workers=workers,
        )
        ft.register_state(model=self.diloco, sampler=self.sampler)
        self.handed = Counter[tuple[int, int]]()
        """How often the loader has handed out what: epochs and indices."""
        self.early = 0
        self.wrong: list[str] = []
        self.lengths: list[int] = []
        """How many batches each loop has handed out."""

    @property
    def under_way(self) -> bool:
        """A sync is, and was entered before its end."""
        average = self.diloco._rounds._average
        return average is not None and average._opened

    def learn(self, leaves_after: int = 0, pace: Callable[[], object] = lambda: None) -> None:
        """``pace``: called after each inner step."""
        with self.diloco:
            for _ in self.sampler.epochs(EPOCHS):
                self.lengths.append(0)
                for batch in self.loader:
                    self.lengths[-1] += 1
                    self.step(batch)
                    pace()
                    if leaves_after and self.diloco.syncs >= leaves_after and (self.under_way or not self.delays):
                        raise ZeroDivisionError
                assert not self.under_way, "a loop ends with a sync, not beside it"
                self.check(self.sampler.epoch)

    def step(self, batch: torch.Tensor) -> None:
        """An inner step, and the sync that it ends with."""
        self.early += self.under_way
        self.handed.update((self.sampler.epoch, index) for index in batch.tolist() if index != FILL)
        inner_step(self.model, self.inner)
        self._look()

    def learn_on(self, raises: Callable[[], bool]) -> None:
        """As ``learn``. Where it ``raises`` after an inner step the sync under way is given up, and the loop goes on."""
        for _ in self.sampler.epochs(EPOCHS):
            batches, over = iter(self.loader), False
            while not over:
                with contextlib.suppress(ZeroDivisionError), self.diloco:
                    for batch in batches:
                        self.step(batch)
                        if raises():
                            raise ZeroDivisionError
                    over = True
            self.check(self.sampler.epoch)

    def limit(self, min_size: int) -> None:
        """With fewer members a sync fails, at once."""
        engine = self.ft._engine
        limits = Limits(0.01 if min_size > 1 else TIMEOUT, min_size)
        engine._limits = engine._waiting._limits = engine._arrival._limits = limits
        engine._open._min_size = min_size

    @property
    def delays(self) -> int:
        return self.diloco._rounds._schedule.delay

    def _look(self) -> None:
        """What the newest sync has used up here was handed out before."""
        rows = [row for row in self.sampler.ledger() if (row.member, row.step) == (self.ft._plane.member_id, self.ft.step)]
        foreign = [index for row in rows for index in row.indices if (row.epoch, index) not in self.handed]
        if foreign:
            self.wrong.append(f"sync {self.diloco.syncs} has used up {foreign}, which no inner step has seen yet")

    def check(self, epoch: int) -> None:
        used = [index for row in self.sampler.ledger(epoch) for index in row.indices]
        if sorted(used) != list(range(SAMPLES)):
            self.wrong.append(f"epoch {epoch}: {len(used)} used, {len(set(used))} different ones")


def students(crew: Company, way: str, workers: int = 0) -> list[Student]:
    return at_once(*[lambda ft=ft: Student(ft, WAYS[way], workers) for ft in crew.members])


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("way", WAYS)
def test_every_sample_once(way: str, workers: int) -> None:
    with company(3) as crew:
        class_ = students(crew, way, workers)
        at_once(*[student.learn for student in class_])
        assert [student.wrong for student in class_] == [[]] * 3
        assert len({student.diloco.syncs for student in class_}) == 1
        for student in class_:
            assert bool(student.early) is bool(student.delays), "it was sent beside inner steps"


@pytest.mark.parametrize("way", WAYS)
def test_loaders_of_other_depths_end_their_loops_together(way: str) -> None:
    """Also where the last sync of the epoch is under way while they draw on."""
    with company(3) as crew:
        class_ = students(crew, way)
        for depth, student in enumerate(class_):
            student.loader = Deep(student.sampler, 2 * depth)
        at_once(*[student.learn for student in class_])
        assert [student.wrong for student in class_] == [[]] * 3
        assert class_[0].lengths == class_[1].lengths == class_[2].lengths


@pytest.mark.parametrize("way", WAYS)
def test_one_leaves_in_the_middle_of_a_sync(way: str) -> None:
    """What it had drawn goes back."""
    with company(3) as crew:
        class_ = students(crew, way)

        def leave() -> None:
            with pytest.raises(ZeroDivisionError):
                class_[2].learn(leaves_after=3)
            class_[2].ft.close()

        at_once(class_[0].learn, class_[1].learn, leave)
        assert [student.wrong for student in class_[:2]] == [[], []]


@pytest.mark.parametrize("way", WAYS)
def test_one_joins_while_others_learn(way: str) -> None:
    """The samples are dealt again, whatever had been drawn beside a sync."""
    with company(2) as crew:
        class_ = students(crew, way)
        begun, met, joined = threading.Event(), threading.Event(), threading.Event()

        def pace() -> None:
            """Slowly once another one comes, until it has taken part in a sync: their loops must not end before."""
            if class_[0].diloco.syncs >= 3:
                begun.set()
                met.wait(TIMEOUT)
                joined.wait(0.5 if class_[0].diloco.syncs < 6 else 5.0)  # longer on a busy machine: there are nine syncs

        def join() -> None:
            assert begun.wait(TIMEOUT)
            ft = crew.init()
            met.set()
            student = Student(ft, WAYS[way], 0)
            class_.append(student)
            seen: set[int] = set()

            def note() -> None:
                seen.add(student.diloco.syncs)  # it begins with the others' number, and counts on when it has synced itself
                if len(seen - {0}) > 1:
                    joined.set()

            student.learn(pace=note)

        at_once(lambda: class_[0].learn(pace=pace), lambda: class_[1].learn(pace=pace), join)
        assert [student.wrong for student in class_[:2]] == [[], []]
        assert len({student.diloco.syncs for student in class_}) == 1


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dies", [False, True], ids=["", "one dies"])
def test_a_sync_that_too_few_are_there_for(way: str, workers: int, *, dies: bool) -> None:
    """It is tried again with the batches of all inner steps since the last one: they do not go back meanwhile."""
    with company(3) as crew:
        class_, all_failed = students(crew, way, workers), threading.Barrier(3)

        def work(number: int) -> None:
            student = class_[number]
            failed: list[int] = []

            def pace() -> None:
                """The third sync fails, and so do the next two attempts."""
                if student.diloco.syncs != 2 or len(failed) == 3:
                    return
                student.limit(4)
                if student.diloco.status is Status.FAIL:
                    failed.append(student.diloco.inner_steps)
                if len(failed) == 3:
                    student.limit(1)
                    all_failed.wait(TIMEOUT)
                    if dies and number == 2:
                        raise ZeroDivisionError

            with contextlib.suppress(ZeroDivisionError):
                student.learn(pace=pace)
            if dies and number == 2:
                student.ft.close()
            assert failed == [failed[0], failed[0] + 1, failed[0] + 2], "it is tried after each inner step"

        at_once(*[lambda number=number: work(number) for number in range(3)])
        alive = class_[: 3 - dies]
        assert [student.wrong for student in alive] == [[]] * len(alive)
        handed = sum((student.handed for student in alive), Counter[tuple[int, int]]())
        assert max(handed.values()) == 1
        if not dies:
            assert len(handed) == EPOCHS * SAMPLES


@pytest.mark.parametrize("workers", [0, 2])
def test_a_sync_that_is_given_up_in_a_loop_that_goes_on(workers: int) -> None:
    """So it is where the program gives up a sync that was begun."""
    with company(2) as crew:
        class_, given_up = students(crew, "delayed", workers), []

        def raises() -> bool:
            begun = class_[0].under_way and class_[0].diloco.syncs > 1 + 2 * len(given_up)
            if begun:
                given_up.append(class_[0].diloco.inner_steps)
            return begun

        at_once(lambda: class_[0].learn_on(raises), class_[1].learn)
        assert given_up
        assert [student.wrong for student in class_] == [[], []]
        assert max(sum((student.handed for student in class_), Counter[tuple[int, int]]()).values()) == 1


def test_no_loop_begins_beside_a_sync() -> None:
    with company(2) as crew:

        def work(ft: FTLib) -> int:
            student, tried = Student(ft, {"sync_every": 4, "delay": 2}, 0), 0
            with student.diloco:
                loop = iter(student.sampler)
                for _ in range(12):
                    next(loop)
                    inner_step(student.model, student.inner)
                    if student.under_way:
                        tried += 1
                        with pytest.raises(ConfigError, match="a loop over an ElasticSampler was begun from within a call"):
                            next(iter(student.sampler))
            return tried

        assert all(at_once(*[lambda ft=ft: work(ft) for ft in crew.members]))
