"""A joiner follows the others, and ends up with what they have."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from ftlib import ConfigError, FTLib, Status
from ftlib.core.calls.follow import FollowedAttempt
from ftlib.core.calls.learner import NoFollowing
from ftlib.errors import GroupError
from ftlib.recovery.catchup import Catchup
from ftlib.recovery.donor import donor
from ftlib.recovery.joiner.limits import RecoveryLimits
from ftlib.recovery.joiner.round import Round
from ftlib.recovery.layout import shards
from tests.ftlib.recovery.pupils import WIDTH, Pupil, School, assert_equal, steps
from tests.harness.basics import eventually
from tests.harness.company import at_once, company

MAKE = Pupil
SLOW = {"recovery_bandwidth": 100_000}
"""The state takes part of a second, so that averages have to be replayed."""


@contextmanager
def school(founders: int, make: Any = MAKE, backend: str = "gloo", **settings: Any) -> Iterator[School]:
    with company(founders, backend, **settings) as crew:
        made = School(crew, make)
        try:
            eventually(lambda: made.pupils[0].ft.step > 3, "they train")
            yield made
        finally:
            made.end()


def join(made: School, count: int = 5) -> Pupil:
    """One more comes and takes so many steps; then all end."""
    joiner = made.enrol()
    steps(joiner, count)
    made.end()
    return joiner


def followed(caplog: pytest.LogCaptureFixture) -> bool:
    """Whether nobody had to wait for a joiner."""
    return not any(getattr(record, "ftlib_event", "") == "no_following" for record in caplog.records)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"recovery_transport": "group"},
        {"secret": "a secret of more than thirty-two characters"},
        {"recovery_bandwidth": 40_000_000},
    ],
    ids=["http", "group", "sealed", "large and slow"],
)
def test_a_joiner_ends_up_with_what_the_others_have(settings: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    wide = 1500 if "recovery_bandwidth" in settings else WIDTH  # a state of 27 MB, in four shards
    with school(3, functools.partial(Pupil, width=wide), **settings) as made:
        joiner = join(made)
    assert followed(caplog)
    assert assert_equal(*made.pupils) >= 4
    assert joiner.ft.metrics()["state_loads"] == 1
    assert joiner.ft.metrics()["state_bytes"] > 0
    assert joiner.statuses[0], "its first call is finished like everybody's"


@pytest.mark.parametrize("settings", [{}, SLOW, {"recovery_transport": "group"}], ids=["http", "slow", "group"])
def test_a_large_state_comes_in_chunks(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each of a later version than the one before: the donors copy one at a time."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(shards, "LARGE", 1)
    rounds: list[Round] = []
    begin = Round.begin
    monkeypatch.setattr(Round, "begin", lambda self: (rounds.append(self), begin(self))[1])
    with school(3, **settings) as made:
        founders = list(made.pupils)
        joiner = made.enrol()
        steps(joiner, 5)
        made.end()
    assert followed(caplog)
    assert assert_equal(*founders, joiner) >= 4
    [round_] = rounds
    versions = [shard.version for shard in round_.shards]
    assert len(versions) > 3 and versions == sorted(set(versions))
    assert joiner.ft.metrics()["state_bytes"] == round_.progress().total
    assert round_.progress().replayed >= versions[-1] - versions[0], "between them"


class Clipping(Pupil):
    """It does more with an average than its optimizer."""

    def apply(self) -> None:
        nn.utils.clip_grad_norm_(self.model.parameters(), 1e-3)
        self.optimizer.step()


class Told(Clipping):
    """It says so."""

    def __init__(self, ft: FTLib, seed: int) -> None:
        super().__init__(ft, seed, apply=self.apply)


class Zeroing(Pupil):
    """What it registers drops the gradients, as a training loop does."""

    def __init__(self, ft: FTLib, seed: int) -> None:
        super().__init__(ft, seed, apply=self.apply)

    def apply(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()


class Scheduled(Pupil):
    """Its learning rate follows from ``ft.step``, and is written into the optimizer as a part of the step."""

    def __init__(self, ft: FTLib, seed: int) -> None:
        self.rates: list[tuple[int, bool]] = []
        """The steps that it applied, and whether the average came to its program."""
        super().__init__(ft, seed, apply=self.apply)

    def apply(self) -> None:
        self.rates.append((self.ft.step, threading.current_thread().name.startswith("ftlib")))
        for group in self.optimizer.param_groups:
            group["lr"] = 1e-3 * (1 + self.ft.step % 7)  # no two steps in a row have the same
        self.optimizer.step()


class Wrong(Zeroing):
    """And leaves out what the program does besides."""

    def step(self) -> Any:
        status = super().step()
        with torch.no_grad():
            self.model[2].bias.mul_(0.5)  # type: ignore[index,union-attr]
        return status


class Small(Pupil):
    """Its state is what two functions of its own make of it: no tensor of it is streamed."""

    def register(self, **registered: Any) -> None:
        self.ft.register_state(state_dict=self.save, load_state_dict=self.load, apply=self.apply, **registered)

    def save(self) -> Any:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load(self, state: Any) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])


def test_a_state_of_which_nothing_is_streamed(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with school(2, Small) as made:
        joiner = join(made)
    assert followed(caplog)
    assert joiner.ft.metrics()["state_bytes"] == 0
    assert assert_equal(*made.pupils) >= 4


def test_whoever_cannot_follow_loads_in_the_same_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where the reason is none for later calls: it does not begin to follow again and again."""
    tried: list[int] = []

    def enter(_catchup: Catchup, _session: Any, number: int) -> bool:
        tried.append(number)
        raise NoFollowing("not this time")

    monkeypatch.setattr(Catchup, "enter", enter)
    with school(2) as made:
        join(made)
    assert len(tried) == 1
    assert assert_equal(*made.pupils) >= 4


def test_patience_with_a_request_begins_when_its_call_has_ended() -> None:
    """Until then nobody waits, however long the others' steps take."""
    now = 0.0
    threads = SimpleNamespace(now=lambda: now)
    plane: Any = SimpleNamespace(threads=threads, finished=4, acting_in=lambda _: True, leaving=lambda: False)
    nothing: Any = None
    catchup = Catchup(plane, nothing, nothing, RecoveryLimits(patience=10.0, pending=0))
    go_on = catchup._while_acting(nothing, 5)
    now = 100.0
    assert go_on()
    plane.finished = 5
    now = 109.0
    assert go_on()
    now = 111.0
    assert not go_on()


@pytest.mark.parametrize(
    ("make", "follows"), [(Told, True), (Clipping, False), (Zeroing, True), (Scheduled, True), (Wrong, False)]
)
def test_what_a_step_does_besides(make: Any, follows: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Where ``apply`` leaves something out, the digests tell, and the others wait for a whole load instead.

    The gradients that it drops are there again after it.
    """
    caplog.set_level(logging.INFO)
    with school(2, make, **SLOW) as made:
        join(made)
    assert followed(caplog) is follows
    assert assert_equal(*made.pupils) >= 4


def test_within_apply_the_step_is_the_one_that_is_applied_again() -> None:
    """So a schedule that follows from it needs no clock that is registered."""
    with school(2, Scheduled, **SLOW) as made:
        joiner: Any = join(made)
    replayed = [step for step, again in joiner.rates if again]
    own = [step for step, again in joiner.rates if not again]
    assert replayed and replayed == list(range(replayed[0], replayed[-1] + 1))
    assert own == list(range(replayed[-1] + 1, own[-1] + 1))
    assert not [step for pupil in made.pupils[:2] for step, again in pupil.rates if again]
    assert assert_equal(*made.pupils) >= 4


class Reporting(Pupil):
    """Two calls a step: the second is of another kind."""

    def compute(self) -> None:
        super().compute()
        loss = torch.ones(3)
        if self.statuses and self.ft.allreduce(loss, "MAX"):
            assert torch.equal(loss, torch.ones(3))


def test_a_joiner_finds_the_call_that_is_its_own(caplog: pytest.LogCaptureFixture) -> None:
    """The founders' calls alternate, and the joiner may come at either."""
    caplog.set_level(logging.INFO)
    with school(2, Reporting) as made:
        joiner = made.enrol()
        steps(joiner, 5)
        another = made.enrol(100)
        steps(another, 5)
        made.end()
    assert followed(caplog)
    assert assert_equal(*made.pupils) >= 3


class Vetoed(Pupil):
    """Once ``spoilt`` is set its averages hold inf, and are applied by nobody. It trains on."""

    spoilt: threading.Event

    def compute(self) -> None:
        super().compute()
        if self.spoilt.is_set():
            self.model[2].bias.grad.fill_(torch.inf)  # type: ignore[index,union-attr,operator]

    def train(self, over: threading.Event) -> None:
        while not over.is_set() and self.step() is not Status.ABORT:
            pass


class Keeping(Pupil):
    """It keeps what its first backward left in its gradients, but for one parameter, which had none."""

    spoilt: threading.Event

    def __init__(self, ft: FTLib, seed: int) -> None:
        self.kept: list[torch.Tensor | None] = []
        self.replayed = 0
        super().__init__(ft, seed, apply=self.apply)

    def compute(self) -> None:
        super().compute()
        self.model[2].bias.grad = None  # type: ignore[index,union-attr]
        self.kept = [None if each.grad is None else each.grad.clone() for each in self.model.parameters()]

    def apply(self) -> None:
        self.replayed += threading.current_thread().name.startswith("ftlib")
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.spoilt.set()


def test_a_first_call_without_a_result_leaves_the_gradients_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    """Averages were put into them meanwhile, to be replayed."""
    monkeypatch.setattr(Vetoed, "spoilt", spoilt := threading.Event(), raising=False)
    monkeypatch.setattr(Keeping, "spoilt", spoilt, raising=False)
    with school(2, Vetoed, "memory", **SLOW) as made:
        joiner = Keeping(made.crew.init(), 99)
        assert joiner.step() is Status.FAIL and joiner.replayed
        found = [each.grad for each in joiner.model.parameters()]
        assert [each is None for each in found] == [each is None for each in joiner.kept]
        for now, before in zip(found, joiner.kept, strict=True):
            assert now is None or before is None or torch.equal(now, before)


def test_two_joiners_at_once() -> None:
    with school(2) as made:
        joiners = at_once(lambda: made.enrol(98), lambda: made.enrol(99))
        for joiner in joiners:
            steps(joiner, 5)
        made.end()
    assert assert_equal(*made.pupils) >= 3


def test_a_joiner_of_another_shape_is_refused_and_the_others_go_on() -> None:
    with school(2) as made:
        founders = list(made.pupils)
        joiner = made.enrol(make=functools.partial(Pupil, width=WIDTH + 1))
        eventually(lambda: joiner.error is not None, "it is refused")
        assert isinstance(joiner.error, ConfigError)
        assert "shape" in str(joiner.error)
        assert not joiner.hashes, "not one step"
        joiner.ft.close()
        steps(founders[0], 5)
        made.end()
    assert assert_equal(*founders) > 5


def test_the_others_wait_where_they_are_asked_to(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with school(2, recovery="wait") as made:
        joiner = join(made)
        assert joiner.ft._lives.life.engine._limits.held == 0, "buffers for nothing"
    assert assert_equal(*made.pupils) >= 4
    assert joiner.ft.metrics()["state_bytes"] > 0


def test_pins_are_given_back() -> None:
    with school(2) as made:
        donors = [pupil.ft._lives.life.donor for pupil in made.pupils]
        joiner = made.enrol()
        steps(joiner, 3)
        eventually(lambda: all(donor._snapshots.nbytes == 0 for donor in donors), "nothing is kept for it")


def test_donors_that_compute_for_long_are_waited_for(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """They answer "ask again" meanwhile."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(donor, "POLL", 0.05)
    with school(2, functools.partial(Pupil, pace=0.25)) as made:
        join(made, 3)
    assert followed(caplog)
    assert assert_equal(*made.pupils) >= 2


def test_a_call_that_only_the_others_finished(caplog: pytest.LogCaptureFixture) -> None:
    """The joiner's first: it counts as finished there too, but its average is missing, so all begins anew."""
    caplog.set_level(logging.INFO)
    with school(3) as made:
        joining: list[Any] = []
        attempt = FollowedAttempt.run

        def broken(self: FollowedAttempt, *given: Any) -> Any:
            result = attempt(self, *given)
            if not joining:
                joining.append(self)
                raise GroupError("the last operation failed here alone")
            return result

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(FollowedAttempt, "run", broken)
            join(made)
    assert joining
    assert followed(caplog)
    assert assert_equal(*made.pupils) >= 4
