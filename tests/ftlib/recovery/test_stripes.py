from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ftlib.recovery.stripes import EACH, LARGE, MOST, SMALLEST, WAVES, Stripe, cut, portions, surviving

MIB = 1 << 20

holder_lists = st.integers(1, 12).map(lambda count: [f"m{i}" for i in range(count)])
sizes = st.one_of(
    st.integers(0, 200 * MIB),
    st.integers(0, 20_000 * MIB),
    st.sampled_from([1, SMALLEST, MOST * SMALLEST, MOST * SMALLEST + 1]),
)
turns = st.integers(0, 40)
versions = st.integers(0, 2**40)


def length(stripe: Stripe) -> int:
    return stripe.stop - stripe.start


def longest(stripes: Sequence[Stripe]) -> int:
    return max(map(length, stripes), default=0)


def given_by(stripes: Sequence[Stripe], holders: Sequence[str]) -> dict[str, int]:
    return {holder: sum(length(stripe) for stripe in stripes if stripe.donors[0] == holder) for holder in holders}


def pinned_by(stripes: Sequence[Stripe], holders: Sequence[str]) -> dict[str, int]:
    return {holder: sum(length(stripe) for stripe in stripes if holder in stripe.donors) for holder in holders}


def difference(loads: dict[str, int]) -> int:
    return max(loads.values()) - min(loads.values())


@given(sizes, holder_lists, turns, versions)
def test_the_stripes_are_the_whole_state_once(nbytes: int, holders: list[str], turn: int, version: int) -> None:
    stripes = cut(nbytes, holders, turn, version)
    assert [stripe.index for stripe in stripes] == list(range(len(stripes)))
    assert [stripe.start for stripe in stripes] == [0, *(stripe.stop for stripe in stripes)][: len(stripes)]
    assert (stripes[-1].stop if stripes else 0) == nbytes
    most = min(MOST, EACH * len(holders))
    assert len(stripes) <= most
    assert len({length(stripe) for stripe in stripes[:-1]}) <= 1
    assert all(length(stripe) % SMALLEST == 0 for stripe in stripes[:-1])
    assert {stripe.version for stripe in stripes} <= {version}
    assert all(0 < length(stripe) <= longest(stripes[:1]) for stripe in stripes)
    assert nbytes > most * SMALLEST or longest(stripes) <= SMALLEST, "no longer than they must be"


@given(sizes, holder_lists, turns, versions)
def test_two_donors_each_and_all_alike(nbytes: int, holders: list[str], turn: int, version: int) -> None:
    stripes = cut(nbytes, holders, turn, version)
    for stripe in stripes:
        assert len(set(stripe.donors)) == len(stripe.donors) == min(2, len(holders))
        assert set(stripe.donors) <= set(holders)
    assert difference(given_by(stripes, holders)) <= longest(stripes)
    assert difference(pinned_by(stripes, holders)) <= 2 * longest(stripes)


@given(sizes, holder_lists, turns, versions)
def test_everybody_cuts_alike(nbytes: int, holders: list[str], turn: int, version: int) -> None:
    assert cut(nbytes, holders, turn, version) == cut(nbytes, tuple(holders), turn, version)


@given(sizes.filter(bool), holder_lists, st.integers(1, 24))
@example(61 * SMALLEST, ["m0", "m1", "m2", "m3"], 2)
@example(41 * SMALLEST + 1, ["m0", "m1", "m2", "m3"], 7)
def test_joiners_that_come_at_once_ask_different_donors(nbytes: int, holders: list[str], joiners: int) -> None:
    cuts = [cut(nbytes, holders, turn, 0) for turn in range(joiners)]
    assert len(holders) == 1 or all(one[0].donors[0] != other[0].donors[0] for one, other in pairwise(cuts))
    together = [stripe for stripes in cuts for stripe in stripes]
    most, least = longest(together), min(map(length, together))
    even = len(cuts[0]) % len(holders) == 0
    assert difference(given_by(together, holders)) <= (0 if even else most) + (most - least), "one stripe, one short one"


@given(st.integers(3, 12), st.integers(0, 5))
def test_all_others_stand_in_for_a_donor_that_dies(count: int, turn: int) -> None:
    holders = [f"m{i}" for i in range(count)]
    stripes = cut(EACH * count * SMALLEST, holders, turn, 0)
    for dead in holders:
        seconds = Counter(stripe.donors[1] for stripe in stripes if stripe.donors[0] == dead)
        assert set(seconds) == set(holders) - {dead}
        assert max(seconds.values()) - min(seconds.values()) <= 1


def test_nothing_needs_no_stripes() -> None:
    assert cut(0, ["a"], 0, 1) == ()


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        (lambda: cut(1, [], 0, 0), "nobody holds"),
        (lambda: cut(-1, ["a"], 0, 0), "nbytes=-1"),
        (lambda: cut(1, ["a"], -1, 0), "turn=-1"),
        (lambda: cut(1, ["a"], 0, -1), "version=-1"),
    ],
)
def test_what_cannot_be_cut_is_refused(wrong: Callable[[], object], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        wrong()


@given(sizes, holder_lists, turns, st.data())
def test_donors_that_are_left_keep_their_order(nbytes: int, holders: list[str], turn: int, data: st.DataObject) -> None:
    left = data.draw(st.lists(st.sampled_from([*holders, "n0", "n1"]), unique=True))
    for stripe in cut(nbytes, holders, turn, 7)[:20]:
        found = surviving(stripe, left)
        assert found == replace(stripe, donors=tuple(donor for donor in stripe.donors if donor in left))


def test_the_second_gives_what_the_first_cannot() -> None:
    stripe = Stripe(3, 5, 9, 1, ("a", "b"))
    assert surviving(stripe, ["c", "b", "a"]) is stripe
    assert surviving(stripe, ["c", "b"]).donors == ("b",)
    assert surviving(stripe, ["c"]).donors == ()


@given(sizes, holder_lists, turns, st.integers(0, 2**40), st.integers(0, 1000))
def test_a_portion_is_cut_like_a_state(nbytes: int, holders: list[str], turn: int, start: int, first: int) -> None:
    moved = cut(nbytes, holders, turn, 7, start=start, first_index=first)
    for stripe, there in zip(cut(nbytes, holders, turn, 7), moved, strict=True):
        assert there == replace(stripe, index=first + stripe.index, start=start + stripe.start, stop=start + stripe.stop)


@given(st.lists(st.integers(1, 200 * MIB), max_size=60))
def test_portions_are_the_whole_state_once_and_end_at_borders(lengths: list[int]) -> None:
    ends = list(accumulate(lengths))
    nbytes = ends[-1] if ends else 0
    found = portions(ends[:-1], nbytes)
    assert [start for start, _ in found] == [0, *(stop for _, stop in found)][:-1]
    assert found[-1][1] == nbytes
    assert all(stop in ends for _, stop in found[:-1])
    most = max(LARGE, nbytes // WAVES)
    sizes_found = [stop - start for start, stop in found]
    assert all(size <= most or size in lengths for size in sizes_found), "larger ones cannot be cut"
    assert all(one + other > most for one, other in pairwise(sizes_found)), "and none is smaller than it has to be"
    assert portions((), nbytes) == ((0, nbytes),)
