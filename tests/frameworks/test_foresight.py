"""Guesses at the next operation: equal histories give equal guesses, repetition is recognised, at most one of two is right."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from ftlib.frameworks.foresight import _KEPT, Foresight

if TYPE_CHECKING:
    from collections.abc import Sequence


def feed(operations: Sequence[object]) -> tuple[Foresight, list[bool]]:
    foresight = Foresight()
    return foresight, [foresight.foresaw(operation) for operation in operations]


def test_a_period_is_recognised_after_one_round() -> None:
    period = ["a", "a", "a", "b", "a", "c"]
    _, right = feed(period * 4)
    assert not any(right[:2])
    assert right[len(period) :].count(False) <= 2
    assert all(right[2 * len(period) :])


def test_an_exception_costs_little() -> None:
    period = ["x"] * 5 + ["y"]
    _, right = feed(period * 5 + ["eval"] + period * 5)
    assert right[5 * 6 :].count(False) <= 2


def test_the_same_again() -> None:
    assert feed(["a"] * 5)[1] == [False, False, True, True, True]


def test_memory_is_bounded_and_guesses_go_on() -> None:
    period = ["a", "a", "b"]
    foresight, right = feed(period * _KEPT)
    assert len(foresight) <= _KEPT
    assert all(right[2 * len(period) :])


@given(st.lists(st.integers(0, 3), max_size=60), st.integers(0, 3), st.integers(0, 3))
def test_of_two_different_operations_at_most_one_is_foreseen(history: list[int], one: int, other: int) -> None:
    left, right_of_left = feed(history)
    right, right_of_right = feed(history)
    assert right_of_left == right_of_right
    assert one == other or not (left.foresaw(one) and right.foresaw(other))


def test_it_costs_little() -> None:
    foresight, _ = feed(["a", "b", "c"] * 10)
    begin = time.perf_counter()
    for _ in range(2000):
        for operation in ("a", "b", "c"):
            foresight.foresaw(operation)
    assert (time.perf_counter() - begin) / 6000 < 100e-6


def test_the_unforeseeable_does_not_get_slower() -> None:
    begin = time.perf_counter()
    feed([number * number % 7919 for number in range(3000)])
    assert time.perf_counter() - begin < 20.0
