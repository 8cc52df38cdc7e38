"""How many calls of the others a joiner with a small state follows."""

from __future__ import annotations

import logging

import pytest

from ftlib import FTLib
from ftlib.recovery.catchup import Catchup
from ftlib.recovery.joiner.round import Round
from tests.ftlib.recovery.pupils import Pupil, assert_equal
from tests.ftlib.recovery.test_following import School, followed, join, school
from tests.harness.basics import eventually


class Polite(Pupil):
    """It enters no call before the joiner has done there what it can, so that nothing depends on who is quick."""

    school: School | None = None
    passed: set[int]

    def compute(self) -> None:
        super().compute()
        made, joiner = self.school, None if self.school is None else self.school.crew.members[3:]
        if made is not None and joiner and joiner[0] is not self.ft:
            number = self.ft._plane.finished + 1
            eventually(
                lambda: made.over.is_set() or self._goes_on(made, joiner[0], number), f"the joiner is ready for call {number}"
            )

    def _goes_on(self, made: School, joiner: FTLib, number: int) -> bool:
        session, recovery = self.ft._plane.session, joiner._lives.life.engine._arrival._recovery
        assert isinstance(recovery, Catchup)
        if joiner._plane.state_id or session is None or joiner._plane.member_id not in session.view or number in self.passed:
            return True
        call, prefetch, verification, round_ = (
            joiner._plane.current,
            recovery._prefetch,
            recovery._verification,
            recovery._round,
        )
        if call is None or call.number != number:
            return False
        asked = [ft._lives.life.donor._read_hold._open[number] for ft in made.crew.members[:3]]
        expected = 3 if prefetch is not None and prefetch.version == number else 0
        expected += 2 if verification is not None and verification.number == number else 0
        ready = expected if round_ is None or round_.level_with(number) else -1
        if expected and sum(asked) == ready:
            self.passed.add(number)
        return number in self.passed


def test_a_small_state_takes_two_calls(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """In one it is pinned and fetched, in the next one it is compared. That one is the view's first, if the others still
    compute when they are asked; else its second.
    """
    caplog.set_level(logging.INFO)
    rounds: list[Round] = []
    begin = Round.begin
    monkeypatch.setattr(Round, "begin", lambda self: (rounds.append(self), begin(self))[1])
    monkeypatch.setattr(Polite, "passed", set(), raising=False)
    with school(3, Polite) as made:
        monkeypatch.setattr(Polite, "school", made)
        joiner = join(made)
    assert followed(caplog)
    assert assert_equal(*made.pupils) >= 4
    [round_] = rounds
    session = round_.session
    assert session is not None
    assert round_.begins in (session.plan.call + 1, session.plan.call + 2)
    assert joiner.ft.metrics()["averages_replayed"] == 1
