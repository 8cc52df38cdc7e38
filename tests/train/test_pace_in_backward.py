"""Who is slow is found also where averages begin in the middle of backward, and nobody else is taken for slow."""

from __future__ import annotations

import time

import pytest
import torch
from torch import nn

from ftlib.ftlib import FTLib
from tests.ftlib.crews.crew import Crew

SIZE = 3
BUCKETS = 6
STEPS, MOST = 16, 80
"""Ten in a row make a straggler; the first ones of a view are entered at the end of backward. On a busy machine a step in which
the others are slow, too, interrupts the row.
"""
PAUSE = 0.003


class Paced:
    """A program whose backward takes a while before each bucket."""

    def __init__(self, ft: FTLib, slow: float = 1.0, *, pushes: bool = True) -> None:
        """``slow``: how many times as long all but the first bucket take here. ``pushes``: whether buckets are pushed before
        the end.
        """
        self._ft = ft
        self._slow = slow
        self._pushes = pushes
        self._model = nn.Sequential(*(nn.Linear(20, 20, bias=False) for _ in range(BUCKETS)))
        self._parameters = list(self._model.parameters())
        sizes = {"bucket_bytes": 1600, "first_bytes": 1600}
        self._layout = ft.lay_out_average(self._model, self._parameters, range(BUCKETS), **sizes)
        self.early = 0
        ft.register_state(model=self._model)

    def step(self) -> None:
        average = self._ft.open_average(self._parameters, self._layout, lambda: self._layout, module=self._model)
        for number, bucket in enumerate(self._layout.buckets):
            time.sleep(PAUSE * (self._slow if number > 1 else 1.0))
            for piece in bucket.pieces:
                self._parameters[piece.index].grad = torch.ones(20, 20)
            if self._pushes:
                average.push(number)
        self.early += average._opened
        assert average.finish()


@pytest.mark.parametrize("slow", [1.0, 8.0])
def test_who_is_slow_in_backward_is_found_and_nobody_else(slow: float) -> None:
    """The second worker enters its calls at the end of backward, as where a view becomes active late; the third may be slow."""
    with Crew(SIZE) as crew:
        programs: list[Paced] = [None] * SIZE  # type: ignore[list-item]

        def begin(ft: FTLib, i: int) -> None:
            programs[i] = Paced(ft, slow if i == 2 else 1.0, pushes=i != 1)

        crew.all(begin)
        ids = [crew.job.workers[name].ft._plane.member_id for name in crew.names]
        wanted, found = [False, False, slow > 1.0], []
        for step in range(1, MOST + 1):
            crew.all(lambda _, i: programs[i].step())
            seen = crew.all(lambda ft, _: ft._plane.step_times.facts())
            found = [[facts[member]["straggler"] for member in ids] for facts in seen]
            if step >= STEPS and found == [wanted] * SIZE:
                break
        assert found == [wanted] * SIZE
        assert [program.early > 10 for program in programs] == [True, False, True]
