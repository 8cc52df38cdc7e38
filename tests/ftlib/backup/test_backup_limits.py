"""What a backup worker does not do, and what becomes of its worker where it cannot go on."""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn

from ftlib import ConfigError, FTLib, Status, StepMismatch
from ftlib.core.backup.backlog import Backlog
from ftlib.core.backup.backup_worker import BackupWorker
from ftlib.core.backup.pattern import WINDOW
from ftlib.errors import Excluded
from tests.ftlib.crews.latecomers import DEADLINE, Latecomer, arrive, awaiting, events, late, punctual, steps, tardy
from tests.ftlib.recovery.pupils import Pupil, assert_equal
from tests.harness.basics import TIMEOUT, eventually
from tests.harness.company import at_once, company, in_thread


def missing(first: Pupil, last: Pupil) -> None:
    """Both make the steps that a call pattern is seen in; then the first makes three more, and the last one misses them."""
    punctual(first.ft)
    for _ in range(WINDOW):
        at_once(first.step, last.step)
    for _ in range(3):
        assert first.step()


@contextmanager
def two(make: Any = Pupil) -> Iterator[list[Any]]:
    """They have backup workers, and do what the test has them do."""
    with company(2, straggler_deadline=DEADLINE) as crew:
        yield at_once(*[functools.partial(make, ft, seed) for seed, ft in enumerate(crew.members)])


def test_it_keeps_no_more_than_it_may(caplog: pytest.LogCaptureFixture) -> None:
    with late(recovery_pending_mb=0.1) as made:
        first, _, last = made.pupils
        last.gate.clear()
        eventually(lambda: "deputy_retires" in events(caplog), "it stops")
        backlog, nbytes = last.backlog, sum(p.numel() * 4 for p in last.model.parameters())
        assert nbytes * backlog <= 0.1 * 2**20 < nbytes * (backlog + 1)
        one, two = first.ft._plane, last.ft._plane
        eventually(lambda: one.current is not None and one.finished == two.finished, "the others wait")
        assert "recovery_pending_mb" in str(caplog.messages)
        last.come()
        made.end()
    assert assert_equal(*made.pupils) > WINDOW


def test_a_program_that_hangs_is_not_covered_for_ever(caplog: pytest.LogCaptureFixture) -> None:
    with late(stall_timeout=4.0) as made:
        first, second, last = made.pupils
        last.gate.clear()
        eventually(lambda: "deputy_retires" in events(caplog), "the backup worker stops")
        assert "in compute" in str(caplog.messages), "where it hangs"
        eventually(lambda: first.ft.size == 2, "it is given up")
        steps(first, 5)
        last.gate.set()
        eventually(lambda: isinstance(last.error, Excluded), "it is told")
        made.end()
    assert assert_equal(first, second) > WINDOW


def test_a_backup_worker_that_fails_is_waited_for_and_nothing_is_lost(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with late() as made:
        first, _, last = made.pupils
        with monkeypatch.context() as patch:
            patch.setattr(BackupWorker, "_session", lambda *_: 1 / 0)
            last.gate.clear()
            eventually(lambda: "deputy_failed" in events(caplog), "it fails")
        eventually(lambda: first.ft._plane.current is not None, "the others wait")
        last.come()
        last.stay_away()
        last.come()
        made.end()
    assert assert_equal(*made.pupils) > WINDOW


def test_what_cannot_be_kept_costs_the_membership(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that all have finished, and this worker has lost the result of: it must not go on."""
    with late() as made:
        first, second, last = made.pupils
        keep = Backlog.keep

        def broken(self: Backlog, *given: Any, **named: Any) -> None:
            if self is last.ft._lives.life.backup_worker._backlog:  # type: ignore[union-attr]
                raise MemoryError
            keep(self, *given, **named)

        monkeypatch.setattr(Backlog, "keep", broken)
        last.gate.clear()
        eventually(lambda: first.ft.size == 2, "the others go on without it")
        last.gate.set()
        eventually(lambda: isinstance(last.error, Excluded), "it is told")
        assert "could not be delivered" in str(last.error)
        made.end()
    assert assert_equal(first, second) > WINDOW


class Moody(Latecomer):
    """Its ``apply`` fails when it is told to."""

    def __init__(self, ft: FTLib, seed: int) -> None:
        super().__init__(ft, seed, apply=self.apply)
        self.broken = False

    def apply(self) -> None:
        if self.broken:
            raise RuntimeError("no mood")
        super().apply()


def test_an_apply_that_raises_costs_the_membership() -> None:
    with two(Moody) as (first, last):
        missing(first, last)
        last.broken = True
        over = threading.Event()
        training = in_thread(lambda: first.train(over))
        with pytest.raises(RuntimeError, match="no mood"):
            last.step()
        with pytest.raises(Excluded, match="could not be delivered"):
            last.step()
        eventually(lambda: first.ft.size == 1, "the other one goes on without it")
        over.set()
        training.join(TIMEOUT)


def test_a_last_call_that_came_to_nothing() -> None:
    """FAIL, as everywhere; the averages before it are applied, and the gradients are what they were."""
    with two() as (first, last):
        missing(first, last)
        awaiting(last.ft, first.ft)
        last.compute()
        own = [parameter.grad.clone() for parameter in last.model.parameters()]
        first.compute()
        next(first.model.parameters()).grad[0] = float("nan")  # type: ignore[index]
        thread, told = arrive(last.ft, lambda: last.ft.allreduce_average(last.model))
        assert first.ft.allreduce_average(first.model) is Status.FAIL
        thread.join(TIMEOUT)
        assert told == [Status.FAIL]
        assert last.ft.step == first.ft.step == WINDOW + 3
        assert last.digest() == first.digest()
        assert all(torch.equal(parameter.grad, was) for parameter, was in zip(last.model.parameters(), own, strict=True))
        at_once(first.step, last.step)
        assert last.digest() == first.digest()


def test_a_program_that_does_something_else_than_the_others_is_told() -> None:
    with two() as (first, last):
        missing(first, last)

        over = threading.Event()
        training = in_thread(lambda: first.train(over))
        with pytest.raises(StepMismatch, match="while this worker was late"):
            last.ft.barrier()
        with pytest.raises(Excluded):
            last.ft.barrier()
        eventually(lambda: first.ft.size == 1, "the other one goes on without it")
        over.set()
        training.join(TIMEOUT)


def test_nobody_stands_in_within_a_unit() -> None:
    """It is a call, and the program is inside."""
    with two() as (first, last):
        punctual(first.ft)
        punctual(last.ft)
        for _ in range(WINDOW):
            at_once(first.step, last.step)
        gate = threading.Event()
        units = [
            in_thread(lambda: first.ft.execute(first.step)),
            in_thread(lambda: last.ft.execute(lambda: gate.wait(TIMEOUT) and last.step())),
        ]
        eventually(lambda: first.ft._plane.current is not None and last.ft._plane.current is not None, "they are inside")
        tardy(last.ft)  # only now: it may be late for the unit
        time.sleep(3 * DEADLINE)  # nothing happens
        assert not last.ft._plane.lag.calls
        gate.set()
        for unit in units:
            unit.join(TIMEOUT)
        assert first.ft.step == last.ft.step == WINDOW + 1
        assert first.digest() == last.digest()


def test_a_unit_of_the_others_waits_for_the_program(caplog: pytest.LogCaptureFixture) -> None:
    with two() as (first, last):
        punctual(first.ft)
        for _ in range(WINDOW):
            at_once(first.step, last.step)
        assert first.step()
        unit = in_thread(lambda: first.ft.execute(first.step))
        eventually(lambda: "deputy_retires" in events(caplog), "the backup worker finds out, and stops")
        assert "execute" in str(caplog.messages)
        assert last.step()  # what it missed
        last.ft.execute(last.step)
        unit.join(TIMEOUT)
        assert first.ft.step == last.ft.step == WINDOW + 2
        assert first.digest() == last.digest()


class Twins(nn.Module):
    """Two models of equal shapes; each has an optimizer and an average of its own."""

    def __init__(self, ft: FTLib, *, trunk: bool) -> None:
        """``trunk``: the first parameter of each average is that of both."""
        super().__init__()
        self.ft = ft
        self.both = nn.ParameterList(torch.zeros(4) for _ in range(2))
        self.trunk = nn.ParameterList([torch.zeros(4)] * trunk)
        self.optimizers = [torch.optim.SGD([weight], lr=1.0) for weight in self.both]
        ft.register_state(model=self, optimizer=self.optimizers)

    def step(self) -> None:
        for number, (weight, optimizer) in enumerate(zip(self.both, self.optimizers, strict=True)):
            weight.grad = torch.full((4,), 1.0 + 10 * number)
            if self.ft.allreduce_average([*self.trunk, weight]):
                optimizer.step()
            optimizer.zero_grad()


@pytest.mark.parametrize("trunk", [False, True], ids=["two models", "with a trunk of both"])
def test_who_averages_two_models_of_equal_shapes_is_waited_for(trunk: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Else what it missed of one would be applied to the other."""
    caplog.set_level(logging.INFO, logger="ftlib")
    with company(2, straggler_deadline=DEADLINE) as crew:
        first, last = at_once(*[functools.partial(Twins, ft, trunk=trunk) for ft in crew.members])
        punctual(first.ft)
        for _ in range(WINDOW):
            at_once(first.step, last.step)
        training = in_thread(lambda: [first.step() for _ in range(3)])
        eventually(lambda: "averages of different tensors" in str(caplog.messages), "the backup worker stays out")
        assert not last.ft._plane.lag.calls
        for _ in range(3):
            last.step()
        training.join(TIMEOUT)
        for pair in zip(first.both, last.both, strict=True):
            assert torch.equal(*pair)
        assert torch.equal(first.both[1], torch.full((4,), -11.0 * (WINDOW + 3)))


def test_what_is_needed_for_it() -> None:
    with company(1, straggler_deadline=1.0) as crew, pytest.raises(ConfigError, match=r"straggler_deadline is set.*apply="):
        crew.members[0].register_state(state_dict=dict, load_state_dict=lambda _: None)
    with pytest.raises(ConfigError, match="straggler_deadline=2 is not below stall_timeout=1"):
        FTLib.init(config={}, straggler_deadline=2, stall_timeout=1)
