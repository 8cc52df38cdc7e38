"""What a call does in a session: the whole table of ``decide``."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from consensus import Member, View
from ftlib.core.calls.call import Call, Kind
from ftlib.core.calls.salvage import SalvagePlan
from ftlib.core.calls.session import Session
from ftlib.core.engine.engine import LEVEL, Facts, Next, decide
from ftlib.core.engine.inquiry import Entered
from ftlib.core.tensors.layout import lay_out

VIEW = View(3, "parent", (Member("a", "127.0.0.1", 1), Member("b", "127.0.0.1", 2)))
LAYOUT = lay_out("average", [(torch.float32, (3,))], "SUM", 1 << 20)
NUMBER = 8


def call() -> Call:
    made = Call(Kind.AVERAGE, LAYOUT, [torch.ones(3)], divide=True)
    made.enter(NUMBER, 0.0)
    return made


def session(*, finished: int, alike: bool = True, lacks: bool = True, keeps: bool = False) -> Session:
    """Of member "a"; ``finished``: the newest call that "b" has finished, and "a" has not where it ``lacks`` it."""
    signature = LAYOUT.signature if alike else b"another"
    plan = SalvagePlan(
        finished, finished, signature, adoptions=(("a", "b"),) if lacks else (), current_state_id="b", holders=("b",)
    )
    group: Any = object()
    return Session(VIEW, plan, "a", {"a": 0, "b": 1}, group, keeps=keeps)


OPEN = session(finished=NUMBER - 1, lacks=False)
"""Nobody has finished the call."""
FINISHED = session(finished=NUMBER)
FINISHED_ANOTHER = session(finished=NUMBER, alike=False)
KEPT = session(finished=NUMBER, lacks=False, keeps=True)
"""All finish the call, and this member holds its result, which its replica had not agreed on."""
FORMER = session(finished=NUMBER - 1)
"""The others have finished the call before, which this member takes from one of them first."""


@pytest.mark.parametrize("level", [True, False])
def test_who_was_there_before_adopts_what_is_finished_and_else_attempts(level: bool) -> None:
    """Whatever was finished: were it another call than its own, its signature would have told, and the plan be a fault."""
    facts = Facts(level)
    assert decide(call(), FINISHED, facts) is decide(call(), FINISHED_ANOTHER, facts) is Next.ADOPT
    assert decide(call(), OPEN, facts) is decide(call(), FORMER, facts) is (Next.ATTEMPT if level else Next.LOAD)


def test_a_result_that_was_held_is_kept_whoever_it_is() -> None:
    for level, newcomer, follows in itertools.product([False, True], repeat=3):
        assert decide(call(), KEPT, Facts(level, newcomer, follows)) is Next.KEEP
        accompanied = Facts(level, newcomer, follows, accompanied=True)
        assert decide(call(), KEPT, accompanied) is Next.ACCOMPANY, "that was no call of its program's"


def test_who_can_get_the_state_beside_the_others_follows_them() -> None:
    for newcomer, others in itertools.product([False, True], [None, *Entered]):
        assert decide(call(), OPEN, Facts(False, newcomer, True, others)) is Next.FOLLOW


@pytest.mark.parametrize(
    ("where", "facts", "expected"),
    [
        (FINISHED, Facts(True, True), Next.ADOPT),  # it had the state, and the call looks like its own
        (FINISHED, Facts(True, True, True), Next.ADOPT),
        (FINISHED, Facts(False, True), Next.ACCOMPANY),  # it was in another one
        (FINISHED, Facts(False, True, True), Next.FOLLOW),
        (FINISHED_ANOTHER, Facts(True, True), Next.ACCOMPANY),
        (FINISHED_ANOTHER, Facts(False, True), Next.ACCOMPANY),
        (FINISHED_ANOTHER, Facts(False, True, True), Next.FOLLOW),
        (OPEN, Facts(False, True), Next.ASK),
        (OPEN, Facts(True, True), Next.ASK),
        (OPEN, Facts(False, True, others=Entered.UNKNOWN), Next.WAIT),
        (OPEN, Facts(False, True, others=Entered.OTHER), Next.ACCOMPANY),
        (OPEN, Facts(True, True, others=Entered.OTHER), Next.ACCOMPANY),
        (OPEN, Facts(False, True, others=Entered.FOREIGN), Next.ACCOMPANY),
        (OPEN, Facts(False, True, others=Entered.OWN), Next.LOAD),
        (OPEN, Facts(True, True, others=Entered.OWN), Next.ATTEMPT),
    ],
)
def test_a_newcomer_finds_out_where_it_comes_in(where: Session, facts: Facts, expected: Next) -> None:
    assert decide(call(), where, facts) is expected


def test_every_case_has_an_answer_and_every_answer_a_case() -> None:
    found = set()
    for where, level, newcomer, follows, others in itertools.product(
        [OPEN, FINISHED, FINISHED_ANOTHER, FORMER, KEPT], [True, False], [True, False], [True, False], [None, *Entered]
    ):
        found.add(decide(call(), where, Facts(level, newcomer, follows, others)))
    assert found == set(Next)
    assert decide(call(), OPEN, LEVEL) is Next.ATTEMPT
