"""``DiLoCo`` over an ``ElasticSampler``: each sample once an epoch, also where syncs are under way beside inner steps."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from ftlib import ConfigError, DiLoCo, ElasticSampler, FTLib
from tests.harness.basics import TIMEOUT
from tests.harness.company import Company, at_once, company
from tests.train.local_sgd.test_course import Layers, inner_step

SAMPLES, EPOCHS = 71, 3
WAYS: dict[str, dict[str, Any]] = {
    "at-the-end": {"sync_every": 4},
    "delayed": {"sync_every": 4, "delay": 2},
    "in-turns": {"sync_every": 10, "fragments": 2, "delay": 4},
}


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
        self.loader = DataLoader(range(SAMPLES), batch_sampler=self.sampler, num_workers=workers)  # type: ignore[arg-type]
        ft.register_state(model=self.diloco, sampler=self.sampler)
        self._handed: set[tuple[int, int]] = set()
        """Epochs and indices of what the loader has handed out."""
        self.early = 0
        self.wrong: list[str] = []

    @property
    def under_way(self) -> bool:
        """A sync is, and was entered before its end."""
        average = self.diloco._rounds._average
        return average is not None and average._opened

    def learn(self, leaves_after: int = 0, pace: Callable[[], object] = lambda: None) -> None:
        """``pace``: called after each inner step."""
        with self.diloco:
            for _ in self.sampler.epochs(EPOCHS):
                for batch in self.loader:
                    self.early += self.under_way
                    self._handed.update((self.sampler.epoch, index) for index in batch.tolist())
                    inner_step(self.model, self.inner)
                    self._look()
                    pace()
                    if leaves_after and self.diloco.syncs >= leaves_after and (self.under_way or not self.delays):
                        raise ZeroDivisionError
                assert not self.under_way, "a loop ends with a sync, not beside it"
                self.check(self.sampler.epoch)

    @property
    def delays(self) -> int:
        return self.diloco._rounds._schedule.delay

    def _look(self) -> None:
        """What the newest sync has used up here was handed out before."""
        rows = [row for row in self.sampler.ledger() if (row.member, row.step) == (self.ft._plane.member_id, self.ft.step)]
        foreign = [index for row in rows for index in row.indices if (row.epoch, index) not in self._handed]
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
