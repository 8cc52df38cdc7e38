"""A program that uses any combination of features: what each of them is, is here."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from contextlib import nullcontext
from pathlib import Path

import torch

from ftlib import ConfigError, FTLibError, LocalSGD, RebuildTimeout, Status
from ftlib.ftlib import FTLib
from tests.ftlib.crews.scholars import Scholar
from tests.ftlib.crews.workers import Worker

BATCH, EPOCHS = 2, 2
WITHOUT_SAMPLER = 1
"""Samples of a dataset that nobody reads."""


class Student(Scholar):
    """A scholar whose program has more than an average in it."""

    def __init__(self, features: Collection[str], steps: int, founders: int, folder: Path) -> None:
        """``steps``: about as many an epoch; without a sampler twice as many in all. ``folder``: of checkpoints."""
        self.features = features
        self.samples = bool({"sampler", "look-ahead"} & set(features))
        size = steps * BATCH * founders if self.samples else WITHOUT_SAMPLER
        super().__init__(size, BATCH, EPOCHS, depth=3 if "look-ahead" in features else 0)
        self.unit = "execute" in features
        self.steps = EPOCHS * steps
        self.folder = folder
        self.states: dict[int, bytes] = {}
        """The parameters after each step that it made itself."""
        self.spoils: Callable[[], bool] = lambda: False
        """Asked before each call: whether its gradient is not finite."""
        self.declines: Callable[[], bool] = lambda: False
        """Asked before each step: whether it declines the average."""
        self.declined: list[Status] = []
        """What became of these."""
        self.refusals: list[ConfigError] = []
        """Of calls that are none, where the job goes on."""
        self.stays: Callable[[], None] = lambda: None
        """Called before it leaves."""
        self._declining = False
        self.lacked = 0
        """Calls that came to nothing as fewer than ``min_size`` members were there."""
        self.local: LocalSGD | None = None
        self.error: BaseException | None = None

    def register(self, ft: FTLib) -> None:
        extra = self if "extra" in self.features else None
        if "local-SGD" in self.features:
            self.local = LocalSGD(ft, self.model, sync_every=2, inner=self.optimizer)
            ft.register_state(model=self.local, sampler=self.sampler if self.samples else None, extra=extra)
            return
        ft.register_state(self.model, self.optimizer, self.sampler if self.samples else None, extra)

    def state_dict(self) -> dict[str, int]:
        """Registered as ``extra``."""
        return {"size": self.size}

    def load_state_dict(self, state: dict[str, int]) -> None:
        assert state == self.state_dict()

    @property
    def shared(self) -> torch.Tensor:
        """The parameters that are alike at all."""
        return self.model.weight if self.local is None else next(self.local.global_model.parameters())

    def learn(self, worker: Worker) -> Scholar:
        ft, self.name = worker.ft, worker.name
        try:
            self.register(ft)
            with nullcontext() if self.local is None else self.local:
                stayed = self._epochs(ft) if self.samples else self._steps(ft)
            if stayed:
                stayed = ft.barrier() is not Status.ABORT  # who leaves at once has the last call redone without it
            if self.local is not None:
                self.local.load_global()
            self.ending = "done" if stayed else "left"
            self.stays()
            ft.leave()
        except SystemExit:
            self.ending = "left"
        except FTLibError as error:
            self.ending, self.error = type(error).__name__, error
        return self

    def _epochs(self, ft: FTLib) -> bool:
        for _ in self.sampler.epochs(self.epochs):
            for batch in self._load(self.sampler):
                if not self._one(ft, batch):
                    return False
            self.last = ft.step
            self._note()
            self._between(ft)
        return True

    def _steps(self, ft: FTLib) -> bool:
        while ft.step < self.steps:
            if not self._one(ft, []):
                return False
        self.last = ft.step
        self._between(ft)
        return True

    def _one(self, ft: FTLib, batch: list[int]) -> bool:
        self.hook()
        before = ft.step
        self._declining = self.declines()
        status = self._execute(ft, batch) if self.unit else self.step(ft, batch)
        if status is Status.ABORT:
            return False
        if ft.step > before and ft._plane.level:  # a joiner in a call that was given up knows the step, and has no state yet
            self.states[ft.step] = self.shared.detach().numpy().tobytes()
            if "checkpoint" in self.features and ft.step % 4 == 0:
                ft.save(self.folder)
        return True

    def _execute(self, ft: FTLib, batch: list[int]) -> Status:
        while True:
            try:
                return ft.execute(self.step, ft, batch)
            except ConfigError as refusal:  # the others wait in that unit
                self.refusals.append(refusal)
                self._declining = False
                if self.local is not None:
                    self.unit = False
                    return self.step(ft, batch)
            except RebuildTimeout:  # it has no status to say so
                if ft.size >= ft.settings.min_size:
                    raise
                self.lacked += 1

    def _lacking(self, ft: FTLib, status: Status) -> Status:
        if status is Status.FAIL and ft.size < ft.settings.min_size:
            self.lacked += 1
        return status

    def step(self, ft: FTLib, batch: list[int]) -> Status:
        syncs = 0 if self.local is None else self.local.syncs
        if self._declining and (declined := self._decline(ft)) is not None:
            status = declined
        elif self.local is not None:
            status = self._train(ft, self.local)
        else:
            status = self._average(ft, batch)
        if self.local is not None and self.local.syncs == syncs:
            return status
        if "evaluation" in self.features and status is not Status.ABORT:  # a second kind of call in each step
            self._lacking(ft, ft.allreduce(torch.zeros(2)))
        return status

    def _decline(self, ft: FTLib) -> Status | None:
        """None if that is refused, and the sync is to be made."""
        try:
            status = self._lacking(ft, ft.decline(batches=int(self.samples)))
        except ConfigError as refusal:
            if self.unit:
                raise
            self.refusals.append(refusal)
            return None
        self.declined.append(status)
        return status

    def _train(self, ft: FTLib, local: LocalSGD) -> Status:
        """One inner step, and a sync perhaps."""
        weight = self.model.weight
        weight.grad = torch.full_like(weight, 1.0 / (1 + local.inner_steps + len(self.name)))
        if self.spoils():
            weight.grad[0, 0] = torch.nan
        self.optimizer.step()
        status = Status.NO_NEED if local.status is None else local.status
        if status is Status.FAIL and not torch.isfinite(weight).all():
            local.load_global()
        return self._lacking(ft, status)

    def _average(self, ft: FTLib, batch: list[int]) -> Status:
        weight = self.model.weight
        weight.grad = torch.zeros_like(weight)
        for index in batch:
            weight.grad[0, index] += 1.0 / len(batch)
        if not self.samples:
            weight.grad.fill_(1.0 / (1 + ft.step + len(self.name)))
        if self.spoils():
            weight.grad[0, 0] = torch.nan
        status = self._lacking(ft, ft.allreduce_average(self.model))
        if status:
            if self.samples and not self.unit:
                self._check(ft, weight.grad[0].double())
            self.optimizer.step()
        return status

    def _between(self, ft: FTLib) -> None:
        """After a loop."""
        if "evaluation" in self.features:
            time.sleep(0.002 * len(self.name))
            self._lacking(ft, ft.allreduce(torch.ones(3), "MAX"))
        if "barrier" in self.features:
            self._lacking(ft, ft.barrier())
