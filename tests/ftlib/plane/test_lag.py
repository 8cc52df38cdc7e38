"""Where a program is among the calls: behind its backup worker, and at a border."""

from __future__ import annotations

from ftlib.core.plane.lag import Borders, Lag


def test_a_program_catches_up_call_by_call() -> None:
    lag = Lag()
    for granted in (1, 0, 1):
        lag.grow(granted)
    places = [(lag.calls, lag.steps)]
    for granted in (1, 0, 1):
        lag.shrink(granted)
        places.append((lag.calls, lag.steps))
    assert places == [(3, 2), (2, 1), (1, 1), (0, 0)]


def test_what_healing_has_removed_is_not_taken_over_again() -> None:
    lag = Lag()
    lag.shrink(1)
    assert (lag.calls, lag.steps) == (0, 0)


def test_a_program_comes_to_borders_in_its_loop_if_steps_were_granted_between_two() -> None:
    """Neither the steps before its first one count, as those of a job that it has joined, nor two before one step."""
    borders, told = Borders(), []
    for number, step in ((8, 7), (9, 7), (10, 8), (11, 8)):
        borders.come(number, step)
        told.append(borders.told)
        assert (borders.before, borders.step) == (number, step)
    assert told == [False, False, True, True]
