"""max - (max - min) * ln(C + 1) / ln(k + 1), with C distinct confirmers."""

from __future__ import annotations

import math

import pytest

from consensus.protocol.state.lifeguard import ENOUGH, Suspicion


def test_starts_at_the_maximum() -> None:
    suspicion = Suspicion("a", 3, 1.0, 5.0, 10.0)
    assert suspicion.timeout == 5.0
    assert suspicion.deadline == 15.0


def test_shrinks_with_distinct_confirmers_down_to_the_minimum() -> None:
    suspicion = Suspicion("a", 3, 1.0, 5.0, 0.0)
    seen = [suspicion.timeout]
    for by in "bcd":
        assert suspicion.confirm(by)
        seen.append(suspicion.timeout)
    assert seen == pytest.approx([5 - 4 * math.log(c + 1) / math.log(4) for c in range(4)])
    assert seen[-1] == pytest.approx(1.0)


def test_the_same_accuser_counts_once() -> None:
    suspicion = Suspicion("a", 3, 1.0, 5.0, 0.0)
    assert not suspicion.confirm("a")
    assert suspicion.confirm("b")
    assert not suspicion.confirm("b")
    assert suspicion.accusers == ("a", "b")


def test_more_than_needed_are_no_news() -> None:
    suspicion = Suspicion("a", 1, 1.0, 5.0, 0.0)
    assert suspicion.confirm("b")
    assert not suspicion.confirm("c")
    assert suspicion.timeout == pytest.approx(1.0)


def test_nobody_to_confirm_means_the_minimum() -> None:
    assert Suspicion("a", 0, 1.0, 5.0, 0.0).timeout == 1.0


def test_the_maximum_is_never_below_the_minimum() -> None:
    assert Suspicion("a", 3, 2.0, 1.0, 0.0).timeout == 2.0


@pytest.mark.parametrize(("needed", "accusers"), [(0, 1), (1, 1), (2, 2), (3, ENOUGH), (6, ENOUGH)])
def test_a_few_accusers_convict_and_no_more_than_there_may_be(needed: int, accusers: int) -> None:
    """Where few could confirm it nobody would ever be convicted otherwise; where many could, most do not ping the accused."""
    suspicion, found = Suspicion("a", needed, 1.0, 5.0, 0.0), 1
    for by in "bcdefg":
        if suspicion.confirmed:
            break
        assert suspicion.confirm(by)
        found += 1
    assert suspicion.confirmed and found == accusers


def test_time_in_which_nothing_could_arrive_does_not_count() -> None:
    suspicion = Suspicion("a", 3, 1.0, 5.0, 10.0)
    suspicion.postpone(60.0)
    assert (suspicion.deadline, suspicion.unanswered) == (75.0, None)
    suspicion.unanswered = 70.0
    suspicion.postpone(2.0)
    assert (suspicion.deadline, suspicion.unanswered) == (77.0, 72.0)
