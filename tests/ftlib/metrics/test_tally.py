"""Durations in buckets."""

from __future__ import annotations

from ftlib.common.counters import CALLS, PAUSES, Tally


def test_counting() -> None:
    tally = Tally((0.25, 1.0))
    for seconds in (0.25, 0.125, 0.5, 8.0, 0.5):
        tally.add(seconds)
    assert tally.as_dict() == {"count": 5, "sum": 9.375, "last": 0.5, "max": 8.0, "buckets": [[0.25, 2], [1.0, 4]]}


def test_bounds_rise() -> None:
    assert list(PAUSES) == sorted(set(PAUSES))
    assert list(CALLS) == sorted(set(CALLS))
