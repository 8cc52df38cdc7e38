"""Which making of a group here belongs to which there: cases, and random histories of two sides."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ftlib.collective.pairing import Fate, Place

HERE, THERE, LATER = "here", "there", "later"


@pytest.mark.parametrize(
    ("before", "known", "number", "whose", "is_open", "free", "fate", "after"),
    [
        (1, THERE, 1, THERE, True, True, Fate.TAKE, 1),
        (1, THERE, 1, THERE, True, False, Fate.DROP, 1),
        (1, THERE, 1, THERE, False, False, Fate.CLOSED, 1),
        (2, THERE, 1, THERE, True, True, Fate.CLOSED, 2),
        (1, THERE, 2, THERE, False, False, Fate.KEEP, 1),
        (1, THERE, 2, THERE, True, True, Fate.KEEP, 1),
        # The first word of that peer about this group: the higher number counts.
        (0, "", 1, THERE, False, False, Fate.KEEP, 0),
        (0, "", 7, THERE, False, False, Fate.KEEP, 6),
        (1, "", 7, THERE, True, True, Fate.TAKE, 7),
        (7, "", 1, THERE, True, True, Fate.TAKE, 7),
        (1, "", 1, THERE, False, False, Fate.CLOSED, 1),
        # Another collective of the same member: it counts anew.
        (5, THERE, 1, LATER, False, False, Fate.KEEP, 0),
        (5, THERE, 1, LATER, True, True, Fate.TAKE, 5),
    ],
)
def test_what_becomes_of_a_stream(
    before: int, known: str, number: int, whose: str, is_open: bool, free: bool, fate: Fate, after: int
) -> None:
    place = Place(before, known)
    assert place.judge(number, whose, is_open=is_open, free=free) is fate
    assert (place.number, place.known) == (after, whose)


def test_the_other_side_says_what_is_next() -> None:
    place = Place(3, THERE)
    place.made()
    assert place.number == 4
    assert place.next(is_open=True) == 4 and place.next(is_open=False) == 5
    place.closed(9, THERE)
    assert place.number == 8
    place.agreed(4, THERE)
    assert place.number == 8


class Side:
    def __init__(self, name: str) -> None:
        self.name = name
        self.place = Place()
        self.made = 0
        self.open = False


@example([("make", False), ("close", False), ("make", False), ("dial", False), ("make", True)])
@given(st.lists(st.tuples(st.sampled_from(["make", "close", "dial"]), st.booleans()), max_size=60))
def test_a_stream_joins_makings_of_one_number(history: list[tuple[str, bool]]) -> None:
    """Two sides that have heard of each other: whatever is closed before it has a stream, only equal makings get one."""
    a, b = Side(HERE), Side(THERE)
    a.place.known, b.place.known = b.name, a.name
    kept: dict[str, list[int]] = {HERE: [], THERE: []}
    for what, second in history:
        side, other = (b, a) if second else (a, b)
        if what == "make" and not side.open:
            side.place.made()
            kept[side.name] = [number for number in kept[side.name] if number > side.place.number]
            side.made, side.open = side.made + 1, True
            assert side.place.number == side.made, "nobody skips one"
        elif what == "close":
            side.open = False
        elif what == "dial" and side.open:
            fate = other.place.judge(side.place.number, side.name, is_open=other.open, free=other.open)
            if fate is Fate.TAKE:
                assert side.made == other.made
            elif fate is Fate.KEEP:
                kept[other.name].append(side.place.number)
                assert side.made > other.made
                other.open = False
            else:
                assert fate is Fate.CLOSED and other.made + (not other.open) > side.made
                side.open = False
