"""A simulated program that makes other calls between its averages, and averages of two models; members may be late or follow.

Which call comes next is registered state, as it is in a real program that derives it from ``ft.step``: who gets the others'
state goes on at the others' place. Averages are counted by the program itself, since a late member applies what its backup
worker got.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

import torch

from ftlib.core.calls.call import Call, Kind
from ftlib.core.tensors.layout import lay_out
from ftlib.status import Status

from ..peers.job import Colleague
from .backward import Model, OpenTrainer

MAIN, OTHER, LOSS, BARRIER = "XYLB"
"""An average of the model, one of another model, a sum of the losses, a barrier: the letters of ``Habits.program``."""

PROGRAMS = ("XL", "XY", "XXL", "XYL", "XLXB", "XYXL", "XLL", "X")
"""What the members of a job repeat. Each begins with an average, so that joiners come in with one."""


class MixedTrainer(OpenTrainer):
    """See the module."""

    def __init__(self, process: Colleague, rng: Random) -> None:
        super().__init__(process, rng)
        jobs = process.jobs
        own = Random(f"{jobs.seed} other layouts")
        count = jobs.tensors + 1  # calls of models of equal shapes could not be told apart: a joiner comes in with any of them
        others = [torch.full((jobs.lanes,), 5 + process.index, dtype=torch.int64) for _ in range(count)]
        self._main, self._other = self._model, Model(others, own, self._compression)
        self.parameters = [*self.parameters, *others]
        self._program = self._habits.program
        self._place = torch.zeros((), dtype=torch.int64)
        """How many calls were made."""
        self._clock = torch.zeros((), dtype=torch.int64)
        """How many averages were applied."""
        self._losses = [torch.zeros(jobs.lanes, dtype=torch.float64)]
        specs, row = [(torch.float64, (jobs.lanes,))], jobs.lanes * torch.float64.itemsize
        self._of_losses, self._of_barriers = lay_out("allreduce SUM", specs, "SUM", row), lay_out("barrier", [], "SUM", row)
        self._replayed = False
        """Whether it has applied averages that it missed, since its last call."""
        self._began = 0
        """Which place its newest call had when it was begun."""

    # What ``register_state`` is given

    @property
    def _registered(self) -> Model:
        return self._main

    def state_dict(self) -> dict[str, Any]:
        """Where the program is, as well."""
        return super().state_dict() | {"other order": self._other.order, "place": self._place, "clock": self._clock}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a donor's."""
        super().load_state_dict(state)
        self._other.order.copy_(state["other order"])
        self._place.copy_(state["place"])
        self._clock.copy_(state["clock"])

    def replay(self) -> None:
        """Apply an average of the model that the backup worker got; the rest of its step was made without this member."""
        while self._letter != MAIN:
            self._place += 1
        self._place += 1
        self._replayed = True
        self._clock += 1
        self._apply_all(self._main, self.clock(None))
        self._process.jobs.promises.applied(self._process, self.clock(None), None)

    def clock(self, call: Call | None) -> int:
        """How many averages have been applied, this one included."""
        return int(self._clock)

    # The program

    def averages(self, calls: int) -> int:
        return int(self._clock)

    @property
    def _letter(self) -> str:
        """Which call comes next."""
        place, every = int(self._place), self._habits.extras
        if every and place % every == every - 1:
            return BARRIER
        return self._program[(place - (place // every if every else 0)) % len(self._program)]

    def _begins(self) -> bool:
        return not self._habits.catches_up or int(self._place) % len(self._program) > 0 or self._catch_up()

    def _draws(self) -> bool:
        return self._letter == MAIN

    def _step(self, call: Call) -> None:
        self._clock += 1
        super()._step(call)

    def _returned(self, call: Call) -> None:
        if (call.late or call.declines) and self._replayed:  # whole steps were missed
            also = int(call.declines)  # then the average of this call was replayed, too
            self._place += (self._began + also - self._place) % len(self._program) - also
        self._replayed = False
        if call.late:
            self._process.jobs.promises.taken_over(self._process, declined=call.declines)
        self._place += 1

    def _decline(self) -> tuple[Status, Call]:
        self._began = int(self._place)
        return super()._decline()

    def _perform(self) -> tuple[Status, Call]:
        letter, self._began = self._letter, int(self._place)
        if letter in (MAIN, OTHER):
            self._model = self._main if letter == MAIN else self._other
            return super()._perform()
        self._begin_pass()
        self.weight = 1.0
        self._losses[0].zero_()
        self._losses[0][self._process.index] = self.token
        sums = letter == LOSS
        call = Call(Kind.ALLREDUCE, self._of_losses, self._losses) if sums else Call(Kind.BARRIER, self._of_barriers, [])
        self._process.jobs.promises.entered(self._process, call)
        return self._blocking(call), call
