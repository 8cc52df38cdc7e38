"""Donors that die while a joiner gets the state from them."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from ftlib.core.calls.session import Session
from ftlib.recovery.catchup import Catchup
from ftlib.recovery.donor import read_hold as hold
from ftlib.recovery.joiner.limits import RateLimit
from ftlib.recovery.joiner.round import Round
from ftlib.recovery.layout import shards
from tests.ftlib.recovery.pupils import Pupil, assert_equal
from tests.ftlib.recovery.test_following import School, followed, school, steps
from tests.harness.basics import eventually


class Punctual(Pupil):
    """It enters no call before the joiner, and before what the joiner asks about that call is there: so all are donors."""

    school: School | None = None
    entered = 0
    """The joiner's newest call, with its requests made."""

    def compute(self) -> None:
        super().compute()
        eventually(lambda: self._asked(self.ft._plane.finished + 1), "the joiner's question arrives")

    def _asked(self, number: int) -> bool:
        made = self.school
        joiner = None if made is None or made.over.is_set() else made.crew.members[-1]
        if joiner is None or joiner is self.ft:
            return True
        recovery = joiner._lives.life.engine._arrival._recovery
        session = joiner._plane.session
        if not isinstance(recovery, Catchup) or session is None or recovery._last_session is not session:
            return True  # it does not follow, or not yet in this view
        if session.view.epoch == self.ft.epoch and self.entered < number:
            return False
        prefetch = recovery._prefetch
        if prefetch is None or prefetch.version != number or prefetch._answer.done():
            return True
        return self.ft._lives.life.donor._read_hold._open[number] > 0


def noting(enter: Any) -> Any:
    """``Catchup.enter``, and the pupils learn of it."""

    def noted(self: Catchup, session: Session, number: int) -> Any:
        going = enter(self, session, number)
        Punctual.entered = number
        return going

    return noted


class Gate:
    """In the place of ``RateLimit.take``: a third of the state passes, the rest once ``opened`` is set."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self._left, self._lock = 600_000, threading.Lock()

    def take(self, count: int, go_on: Callable[[], bool]) -> bool:
        with self._lock:
            self._left -= count
            free = self._left > 0
        while not free and not self.opened.wait(0.02):
            if not go_on():
                return False
        return True


@contextmanager
def halfway(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[School, Pupil, Round, threading.Event]]:
    """Three donors, and a joiner that has some of its many shards, and gets the rest once that event is set."""
    monkeypatch.setattr(shards, "SMALLEST", 128 << 10)
    for name in ("PATIENCE", "GRACE"):
        monkeypatch.setattr(hold, name, 15.0)  # in which a busy machine asks again
    with school(3, functools.partial(Punctual, width=400), "memory") as made:
        monkeypatch.setattr(Punctual, "school", made)
        monkeypatch.setattr(Punctual, "entered", 0)
        monkeypatch.setattr(Catchup, "enter", noting(Catchup.enter))
        gate = Gate()
        monkeypatch.setattr(RateLimit, "take", lambda limit, count, go_on: not limit.rate or gate.take(count, go_on))
        joiner = made.enrol(recovery_bandwidth=250_000)  # which sets the size of a piece, of 1.9 MB
        eventually(lambda: joiner.ft.metrics()["state_bytes"] > 0, "a stripe has arrived")
        recovery = joiner.ft._lives.life.engine._arrival._recovery
        eventually(lambda: recovery._round is not None, "whoever began the round has come back")
        round_ = recovery._round
        assert {len(shard.donors) for shard in round_.shards} == {2}
        yield made, joiner, round_, gate.opened


def lose(made: School, name: str) -> None:
    """The member dies, and the others go on."""
    [victim] = [pupil for pupil in made.pupils if pupil.ft._plane.member_id == name]
    made.pupils.remove(victim)
    victim.crash()
    steps(made.pupils[0], 5)
    assert made.pupils[0].ft.size == len(made.pupils)


def restarts(caplog: pytest.LogCaptureFixture) -> int:
    return [getattr(record, "ftlib_event", "") for record in caplog.records].count("recovery_restarts")


def test_one_donor_dies_and_nothing_comes_twice(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with halfway(monkeypatch) as (made, joiner, round_, opened):
        lose(made, round_.shards[-1].donors[0])
        assert round_.progress().got < round_.progress().total, "it happens on the way"
        opened.set()
        steps(joiner, 5)
        made.end()
    assert followed(caplog) and not restarts(caplog)
    assert joiner.ft.metrics()["state_bytes"] == round_.progress().total
    assert assert_equal(*made.pupils) >= 4


def test_both_donors_of_a_shard_die_and_all_begins_anew(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What is there already is of an older version than what the donor that is left can give."""
    caplog.set_level(logging.INFO)
    with halfway(monkeypatch) as (made, joiner, round_, opened):
        first, second = round_.shards[-1].donors
        lose(made, first)
        assert not restarts(caplog)
        assert round_.progress().got < round_.progress().total, "the last stripe has not arrived"
        lose(made, second)
        opened.set()
        steps(joiner, 5)
        made.end()
    assert followed(caplog) and restarts(caplog) == 1
    got, total = round_.progress().got, round_.progress().total
    assert joiner.ft.metrics()["state_bytes"] == got + total, "what had arrived, and then everything"
    assert 0 < got < total
    assert assert_equal(*made.pupils) >= 4
