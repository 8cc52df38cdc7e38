"""A worker that missed steps of an ``Optimizer`` applies them as the others did: clipped and scaled, to the same bits."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from ftlib import DistributedDataParallel, Optimizer, Status
from ftlib.core.backup.pattern import WINDOW
from ftlib.state.live import separable
from ftlib.state.registry import Registered
from ftlib.state.replay import replay, replaying, why_not
from tests.ftlib.crews.latecomers import Latecomer, late, steps
from tests.ftlib.crews.workers import Worker, workers
from tests.ftlib.recovery.pupils import Pupil, School, assert_equal
from tests.harness.basics import eventually
from tests.harness.cluster import Cluster
from tests.harness.company import company
from tests.harness.nursery import Nursery
from tests.harness.program import Program, ftlib_run
from tests.harness.verdict import Verdict

# --- what is registered ------------------------------------------------------------------------------------------------


@workers(1, nonfinite="pass")
def test_the_parts_are_registered(worker: Worker) -> None:
    model, scaler = nn.Linear(3, 2), torch.amp.GradScaler("cpu")
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    plain, clipping = Optimizer(worker.ft, inner), Optimizer(worker.ft, inner, clip_norm=0.1, scaler=scaler)
    by_itself = Registered({"model": model, "optimizer": inner})
    as_before = Registered({"model": model, "optimizer": plain})
    wrapped = Registered({"model": model, "optimizer": clipping})
    twice = Registered({"model": model, "optimizer": [clipping], "extra": [scaler]})
    assert as_before.tree(0).keys() == by_itself.tree(0).keys()
    assert wrapped.tree(0)["optimizer"] == by_itself.tree(0)["optimizer"], "an optimizer's state has no new keys"
    assert wrapped.tree(0)["scaler"] == [scaler.state_dict()]
    assert twice.tree(0)["extra"] == [], "the wrapper has registered it"
    for registered in (by_itself, as_before, wrapped, twice):
        assert list(registered.of(torch.optim.Optimizer).values()) == [inner]
        assert why_not(registered) == "", "averages can be replayed"
    assert separable(by_itself) and separable(as_before)
    assert not separable(wrapped), "the norm is that of all gradients together"
    scaler.scale(torch.ones(()))
    tree = wrapped.tree(0)
    tree["scaler"][0]["scale"] = 3.0
    wrapped.load(tree)
    assert scaler.get_scale() == 3.0


@workers(1)
def test_a_step_within_apply_averages_nothing(worker: Worker) -> None:
    """So ``apply=`` may be the function that the program steps with."""
    weight = nn.Parameter(torch.zeros(2))
    optimizer = Optimizer(worker.ft, torch.optim.SGD([weight], lr=1.0), clip_norm=1.0)
    scheduler = lr_scheduler.ConstantLR(optimizer, 0.5, total_iters=100)
    told: list[Any] = []

    def apply() -> None:
        told.append((replaying(), optimizer.step()))
        scheduler.step()

    registered = Registered({"optimizer": optimizer, "extra": scheduler}, apply=apply)
    weight.grad = torch.tensor([3.0, 4.0])
    replay(registered)
    assert told == [(True, Status.SUCCESS)]
    assert torch.allclose(weight, torch.tensor([-0.3, -0.4]))
    assert worker.ft.step == 0 and not replaying() and optimizer.status is None
    weight.grad = torch.tensor([3.0, 4.0])
    apply()
    assert told[1:] == [(False, Status.NO_NEED)]
    assert worker.ft.step == 1


def test_a_replay_that_fails_is_over() -> None:
    weight = nn.Parameter(torch.zeros(2))

    def apply() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        replay(Registered({"optimizer": torch.optim.SGD([weight], lr=1.0)}, apply=apply))
    assert not replaying()


# --- in threads of one process -----------------------------------------------------------------------------------------


class Wrapping(Pupil):
    """Its steps are those of a wrapper that clips and scales."""

    BOUND = 1e-2

    def register(self, **registered: Any) -> None:
        self.scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=5)
        self.wrapper = Optimizer(self.ft, self.optimizer, clip_norm=self.BOUND, scaler=self.scaler)
        self.ft.register_state(model=self.model, optimizer=self.wrapper, **registered)

    def gradients(self) -> None:
        self.wrapper.zero_grad()
        features = self.model[0].in_features
        loss = self.model(torch.randn(8, features, generator=self._random)).square().mean()
        self.scaler.scale(loss).backward()
        if self.ft.step % 9 == 8:
            self.model[0].bias.grad[0] = math.inf

    def step(self) -> Status:
        self.compute()
        status = self.wrapper.step()
        self.statuses.append(status)
        if status:
            self.note()
        return status

    def digest(self) -> str:
        return f"{super().digest()} {sorted(self.scaler.state_dict().items())}"


class LateWrapping(Wrapping, Latecomer):
    """It may be late, too."""

    def step(self) -> Status:
        return Wrapping.step(self)


class Clipping(Pupil):
    """Its steps are those of a wrapper that clips, and mostly knows the norms without computing them."""

    BOUND = 1e-2

    def register(self, **registered: Any) -> None:
        self.wrapper = Optimizer(self.ft, self.optimizer, clip_norm=self.BOUND)
        self.ft.register_state(model=self.model, optimizer=self.wrapper, **registered)

    def step(self) -> Status:
        self.compute()
        status = self.wrapper.step()
        self.statuses.append(status)
        if status:
            self.note()
        return status


class Scheduling(Clipping):
    """The wrapper has a schedule, too."""

    def register(self, **registered: Any) -> None:
        self.asked: list[int] = []
        self.wrapper = Optimizer(self.ft, self.optimizer, clip_norm=self.BOUND, schedule=self.rate)
        self.ft.register_state(model=self.model, optimizer=self.wrapper, **registered)

    def rate(self, done: int) -> float:
        self.asked.append(done)
        return 1e-3 * (1 + done % 7)


class ClippingViews(Clipping):
    """Its gradients are views of the averages."""

    def register(self, **registered: Any) -> None:
        super().register(**registered)
        self.wrapped = DistributedDataParallel(self.ft, self.model)

    def gradients(self) -> None:
        self.wrapper.zero_grad()
        self.wrapped(torch.randn(8, self.model[0].in_features, generator=self._random)).square().mean().backward()


class LateClipping(Clipping, Latecomer):
    """It may be late, too."""

    def step(self) -> Status:
        return Clipping.step(self)


@pytest.mark.parametrize("make", [Clipping, ClippingViews])
def test_a_joiner_clips_by_norms_that_it_has_to_compute(make: type[Pupil], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with company(2, "gloo") as crew:
        made = School(crew, make)
        try:
            eventually(lambda: made.pupils[0].ft.step > 3, "they train")
            joiner = made.enrol()
            steps(joiner, 12)
        finally:
            made.end()
    assert not [record for record in caplog.records if getattr(record, "ftlib_event", "") == "no_following"], "nobody waited"
    assert assert_equal(*made.pupils) >= 10


def test_a_joiner_schedules_the_averages_that_it_missed(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with company(2, "gloo", recovery_bandwidth=100_000) as crew:
        made = School(crew, Scheduling)
        try:
            eventually(lambda: made.pupils[0].ft.step > 3, "they train")
            joiner = made.enrol()
            steps(joiner, 12)
        finally:
            made.end()
    assert not [record for record in caplog.records if getattr(record, "ftlib_event", "") == "no_following"], "nobody waited"
    assert assert_equal(*made.pupils) >= 10
    for pupil in made.pupils:
        assert pupil.asked == list(range(pupil.asked[0], pupil.asked[0] + len(pupil.asked))), "each step once, in order"
    assert made.pupils[0].asked[0] == 0
    assert joiner.asked[0] > 0


def test_a_late_worker_clips_by_norms_that_it_has_to_compute() -> None:
    with late(make=LateClipping) as made:
        first, _, last = made.pupils
        last.stay_away()
        steps(first, 12)
        last.come()
        assert last.ft.metrics()["stood_in"] > 3
        made.end()
    assert assert_equal(*made.pupils) > WINDOW // 4
    assert set(first.hashes) - set(last.hashes), "it has missed some"


@pytest.mark.parametrize("settings", [{}, {"recovery_bandwidth": 100_000}], ids=["quick", "slow"])
def test_a_joiner_replays_what_the_wrapper_does(settings: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with company(2, "gloo", nonfinite="pass", **settings) as crew:
        made = School(crew, Wrapping)
        try:
            eventually(lambda: made.pupils[0].ft.step > 3, "they train")
            joiner = made.enrol()
            steps(joiner, 12)
        finally:
            made.end()
    assert not [record for record in caplog.records if getattr(record, "ftlib_event", "") == "no_following"], "nobody waited"
    assert assert_equal(*made.pupils) >= 10
    assert joiner.ft.metrics()["state_loads"] == 1
    assert len({digest.rpartition("[")[2] for digest in joiner.hashes.values()}) > 2, "the scale has changed"


def test_a_late_worker_replays_what_the_wrapper_does() -> None:
    with late(make=LateWrapping, nonfinite="pass") as made:
        first, _, last = made.pupils
        last.stay_away()
        steps(first, 12)
        last.come()
        assert last.ft.metrics()["stood_in"] > 3
        made.end()
    assert assert_equal(*made.pupils) > WINDOW // 4
    assert set(first.hashes) - set(last.hashes), "it has missed some"


# --- real processes ----------------------------------------------------------------------------------------------------


@pytest.fixture
def cluster(nursery: Nursery, tmp_path: Path) -> Iterator[Cluster]:
    settings = {"agent": "thread", "nonfinite": "pass", "recovery_bandwidth": 3e6}
    with Cluster(tmp_path, nursery, program="tests.train.learner:learn", settings=settings) as cluster:
        yield cluster


@pytest.mark.process
def test_a_process_that_joins_has_what_the_others_have(cluster: Cluster) -> None:
    """Parameters, the optimizer's state and the scaler's, bit by bit after every step; also if one is killed meanwhile."""
    task = {"sizes": [200, 199_600, 200]}
    workers = cluster.found(3, **task)
    cluster.training(3)
    cluster.advanced()
    joiner = cluster.join(**task)
    cluster.until("it counts", lambda: joiner.last.get("who", 0) >> joiner.task.slot & 1)
    workers[0].kill()
    cluster.training(3)
    for _ in range(3):
        cluster.advanced()
    verdict = Verdict()
    verdict.check(cluster.workers)
    assert not [*verdict.violations, *cluster.faults()]
    assert len(joiner.calls) > 3
    assert "the others wait" not in joiner.output(), "it followed"


@pytest.mark.process
@pytest.mark.parametrize("style", [[], ["--wrapped"]], ids=["plain", "wrapped"])
def test_what_is_vetoed_is_applied_by_no_process(nursery: Nursery, tmp_path: Path, style: list[str]) -> None:
    with Program(nursery, tmp_path, *ftlib_run("-n", 2, Path(__file__).with_name("vetoing.py"), *style)) as launcher:
        assert launcher.wait(100.0) == 0, launcher.stdout + launcher.stderr
        assert "rank 0 of 2: 8 steps" in launcher.stdout and "rank 1 of 2: 8 steps" in launcher.stdout
