"""Workers with a model and an optimizer, in threads of one process, whose state is compared after every step."""

from __future__ import annotations

import functools
import threading
import time
from typing import Any

import torch
import xxhash
from torch import nn

from consensus import LeftError
from ftlib import FTLib, FTLibError, Status
from tests.harness.basics import TIMEOUT, eventually
from tests.harness.company import Company, at_once, in_thread

WIDTH = 64

torch.optim.Adam([torch.zeros(1, requires_grad=True)])  # the first one of a process takes seconds: torch imports its compiler


def model_of(seed: int, width: int = WIDTH) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width), nn.Linear(width, 4))


class Pupil:
    """One worker's model and Adam, with data of its own."""

    compression: Any = None
    """Of its averages."""

    def __init__(self, ft: FTLib, seed: int, *, pace: float = 0.002, width: int = WIDTH, **registered: Any) -> None:
        self.ft = ft
        self.model, self.optimizer = self.build(seed, width)
        self.pace = pace
        self.statuses: list[Status] = []
        self.error: Exception | None = None
        """What ended it."""
        self.crashed = False
        self.hashes: dict[int, str] = {}
        """Parameters and optimizer state after each step, by number."""
        self._random = torch.Generator().manual_seed(seed)
        self.register(**registered)

    def build(self, seed: int, width: int) -> tuple[Any, torch.optim.Optimizer]:
        """What it trains, and with what."""
        model = model_of(seed, width)
        return model, torch.optim.Adam(model.parameters(), lr=1e-3)

    def register(self, **registered: Any) -> None:
        self.ft.register_state(model=self.model, optimizer=self.optimizer, **registered)

    def compute(self) -> None:
        """What it does before it calls."""
        self.gradients()

    def gradients(self) -> None:
        self.optimizer.zero_grad()
        data = torch.randn(8, self.model[0].in_features, generator=self._random)
        self.model(data).square().mean().backward()

    def step(self) -> Status:
        self.compute()
        status = self.ft.allreduce_average(self.model, compression=self.compression)
        self.statuses.append(status)
        if status:
            self.apply()
            self.note()
        time.sleep(self.pace)  # what a forward pass of a larger model takes
        return status

    def slow_down(self, pace: float) -> None:
        """Its next steps take ``pace`` seconds longer than what they compute."""
        self.pace = pace

    def apply(self) -> None:
        self.optimizer.step()

    def note(self) -> None:
        """What it has after this step."""
        self.hashes[self.ft.step] = self.digest()

    def crash(self) -> None:
        """As a process that is killed: no goodbye, and nothing answers any more."""
        self.crashed = True
        life = self.ft._lives.life
        life.consensus.stop()
        life.donor.forget()
        session = life.plane.session
        assert session is not None and session.group is not None
        session.group.abort()
        self.ft._call_lock.departed = True
        life.plane.stop(LeftError("crashed"))

    def digest(self) -> str:
        found = xxhash.xxh3_128()
        for parameter in self.model.parameters():
            found.update(parameter.detach().numpy().tobytes())
            for value in self.optimizer.state[parameter].values():
                found.update(torch.as_tensor(value).numpy().tobytes())
        return found.hexdigest()

    def train(self, over: threading.Event) -> None:
        try:
            while not over.is_set() and self.step():
                pass
        except FTLibError as error:
            self.error = error
        except SystemExit as end:  # the job has ended, and it was never in it
            assert end.code == 0  # noqa: PT017 - nobody calls this who could expect it


class School:
    """Founders that train in threads of their own until it is over, and whoever comes later."""

    def __init__(self, crew: Company, make: Any = Pupil, **made: Any) -> None:
        """``make``: of an ``FTLib``, a seed and what is ``made``."""
        self.crew = crew
        self.make = make
        self.over = threading.Event()
        self.threads: list[threading.Thread] = []
        self.pupils: list[Any] = at_once(*[functools.partial(make, ft, seed, **made) for seed, ft in enumerate(crew.members)])
        for pupil in self.pupils:
            self.train(pupil)

    def enrol(self, seed: int = 99, make: Any = None, **settings: Any) -> Any:
        """One more, training."""
        pupil = (make or self.make)(self.crew.init(**settings), seed)
        self.pupils.append(pupil)
        self.train(pupil)
        return pupil

    def train(self, pupil: Pupil) -> None:
        """From now on."""
        self.threads.append(in_thread(functools.partial(pupil.train, self.over)))

    def end(self) -> None:
        """All stop after the same step, or when they are told that the others have left."""
        self.over.set()
        at_once(*[ft.close for ft in self.crew.members])
        for thread in self.threads:
            thread.join(TIMEOUT)
            assert not thread.is_alive()


def steps(pupil: Pupil, count: int) -> None:
    """Wait until it has finished so many more steps."""
    before = len(pupil.hashes)
    eventually(lambda: len(pupil.hashes) >= before + count or pupil.error is not None, f"{count} more steps")
    assert pupil.error is None


def assert_equal(*pupils: Pupil) -> int:
    """What they had after the same step was the same, down to the bit. How many steps they have in common.

    Who has crashed may have been the only one that had finished its last call. Then the others have redone that without it.
    """
    common = set.intersection(*(set(sorted(pupil.hashes)[: -1 if pupil.crashed else None]) for pupil in pupils))
    for step in sorted(common):
        assert len({pupil.hashes[step] for pupil in pupils}) == 1, f"after step {step}"
    return len(common)
