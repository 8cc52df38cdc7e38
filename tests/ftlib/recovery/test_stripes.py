from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftlib.recovery.stripes import MOST, SMALLEST, Stripe, cut, renewed

MIB = 1 << 20

holder_lists = st.integers(1, 12).map(lambda count: [f"m{i}" for i in range(count)])
sizes = st.one_of(
    st.integers(0, 200 * MIB),
    st.integers(0, 20_000 * MIB),
    st.sampled_from([1, SMALLEST, MOST * SMALLEST, MOST * SMALLEST + 1]),
)
windows = st.one_of(st.just(0), st.integers(1, 100 * MIB))
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


def at_once(stripes: Sequence[Stripe]) -> int:
    """Bytes of one version that some donor pins, at most."""
    pins: Counter[tuple[str, int]] = Counter()
    for stripe in stripes:
        for donor in stripe.donors:
            pins[donor, stripe.version] += length(stripe)
    return max(pins.values(), default=0)


@given(sizes, holder_lists, turns, versions, windows)
def test_the_stripes_are_the_whole_state_once(nbytes: int, holders: list[str], turn: int, version: int, window: int) -> None:
    stripes = cut(nbytes, holders, turn, version, window)
    assert [stripe.index for stripe in stripes] == list(range(len(stripes)))
    assert [stripe.start for stripe in stripes] == [0, *(stripe.stop for stripe in stripes)][: len(stripes)]
    assert (stripes[-1].stop if stripes else 0) == nbytes
    assert len(stripes) <= MOST
    assert len({length(stripe) for stripe in stripes[:-1]}) <= 1
    assert all(length(stripe) % SMALLEST == 0 for stripe in stripes[:-1])
    assert all(0 < length(stripe) <= longest(stripes[:1]) for stripe in stripes)
    assert nbytes > MOST * SMALLEST or longest(stripes) <= SMALLEST, "no longer than they must be"


@given(sizes, holder_lists, turns, versions, windows)
def test_two_donors_each_and_all_alike(nbytes: int, holders: list[str], turn: int, version: int, window: int) -> None:
    stripes = cut(nbytes, holders, turn, version, window)
    for stripe in stripes:
        assert len(set(stripe.donors)) == len(stripe.donors) == min(2, len(holders))
        assert set(stripe.donors) <= set(holders)
    assert difference(given_by(stripes, holders)) <= longest(stripes)
    assert difference(pinned_by(stripes, holders)) <= 2 * longest(stripes)


@given(sizes, holder_lists, turns, versions, windows)
def test_no_donor_pins_more_at_once_than_the_window(
    nbytes: int, holders: list[str], turn: int, version: int, window: int
) -> None:
    stripes = cut(nbytes, holders, turn, version, window)
    if not window:
        assert {stripe.version for stripe in stripes} <= {version}
        return
    assert at_once(stripes) <= max(window, longest(stripes))
    assert all(later.version - earlier.version in (0, 1) for earlier, later in pairwise(stripes))
    assert not stripes or stripes[0].version == version


@given(sizes, holder_lists, turns, versions, windows)
def test_everybody_cuts_alike(nbytes: int, holders: list[str], turn: int, version: int, window: int) -> None:
    assert cut(nbytes, holders, turn, version, window) == cut(nbytes, tuple(holders), turn, version, window)


@given(st.integers(1, 64), holder_lists, st.integers(1, 6))
def test_joiners_that_come_at_once_ask_different_donors(count: int, holders: list[str], joiners: int) -> None:
    cuts = [cut(count * SMALLEST, holders, turn, 0, 0) for turn in range(joiners)]
    assert len(holders) == 1 or all(one[0].donors[0] != other[0].donors[0] for one, other in pairwise(cuts))
    together = [stripe for stripes in cuts for stripe in stripes]
    assert difference(given_by(together, holders)) <= SMALLEST * (1 if count % len(holders) else 0)


@given(st.integers(3, 12), st.integers(0, 5))
def test_all_others_stand_in_for_a_donor_that_dies(count: int, turn: int) -> None:
    holders = [f"m{i}" for i in range(count)]
    stripes = cut(MOST * SMALLEST, holders, turn, 0, 0)
    for dead in holders:
        seconds = Counter(stripe.donors[1] for stripe in stripes if stripe.donors[0] == dead)
        assert set(seconds) == set(holders) - {dead}
        assert max(seconds.values()) - min(seconds.values()) <= 1


def test_a_window_is_made_use_of() -> None:
    holders = [f"m{i}" for i in range(8)]
    stripes = cut(MOST * SMALLEST, holders, 0, 7, 16 * SMALLEST)
    assert stripes[-1].version == 7 + 3, "8 donors pin 64 stripes twice at once"


def test_nothing_needs_no_stripes() -> None:
    assert cut(0, ["a"], 0, 1, 0) == ()


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        (lambda: cut(1, [], 0, 0, 0), "nobody holds"),
        (lambda: cut(-1, ["a"], 0, 0, 0), "nbytes=-1"),
        (lambda: cut(1, ["a"], -1, 0, 0), "turn=-1"),
        (lambda: cut(1, ["a"], 0, -1, 0), "version=-1"),
        (lambda: cut(1, ["a"], 0, 0, -1), "window=-1"),
        (lambda: renewed(cut(1, ["a"], 0, 0, 0), [], [], 1), "1 of 1 stripes"),
    ],
)
def test_what_cannot_be_cut_is_refused(wrong: Callable[[], object], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        wrong()


@st.composite
def changes(draw: st.DrawFn) -> tuple[tuple[Stripe, ...], list[int], list[str], int, int]:
    """A cut, what has arrived of it, who is left or has come since, the version now, and the window."""
    before = draw(holder_lists)
    window = draw(windows)
    stripes = cut(draw(sizes), before, draw(turns), draw(st.integers(0, 100)), window)
    have = draw(st.lists(st.sampled_from(stripes or [Stripe(0, 0, 0, 0, ())]).map(lambda stripe: stripe.index), unique=True))
    left = [holder for holder in before if draw(st.booleans())]
    come = [f"n{i}" for i in range(draw(st.integers(0 if left else 1, 3)))]
    return stripes, have, left + come, draw(st.integers(0, 120)), window


def is_lost(stripe: Stripe, have: Sequence[int], holders: Sequence[str]) -> bool:
    return stripe.index not in have and not set(stripe.donors) & set(holders)


@given(changes())
def test_what_has_arrived_or_is_still_held_stays(change: tuple[tuple[Stripe, ...], list[int], list[str], int, int]) -> None:
    stripes, have, holders, version, window = change
    after = renewed(stripes, have, holders, version, window)
    assert len(after) == len(stripes)
    for old, new in zip(stripes, after, strict=True):
        assert (new.index, new.start, new.stop) == (old.index, old.start, old.stop)
        if old.index in have:
            assert new == old
        elif not is_lost(old, have, holders):
            assert new.version == old.version
            assert new.donors == tuple(donor for donor in old.donors if donor in holders)


@given(changes())
def test_what_is_lost_begins_anew(change: tuple[tuple[Stripe, ...], list[int], list[str], int, int]) -> None:
    stripes, have, holders, version, window = change
    after = renewed(stripes, have, holders, version, window)
    lost = [new for old, new in zip(stripes, after, strict=True) if is_lost(old, have, holders)]
    for new in lost:
        assert len(set(new.donors)) == len(new.donors) == min(2, len(holders))
        assert set(new.donors) <= set(holders)
        assert new.version >= max(version, stripes[new.index].version)
        assert window or new.version == max(version, stripes[new.index].version)
    assert not window or at_once(after) <= max(window, longest(stripes))
    missing = [new for new in after if new.index not in have]
    if len(lost) == len(missing) and lost:
        assert difference(given_by(lost, holders)) <= longest(stripes)
        assert difference(pinned_by(lost, holders)) <= 2 * longest(stripes)


@given(changes())
def test_nothing_lost_is_nothing_to_renew(change: tuple[tuple[Stripe, ...], list[int], list[str], int, int]) -> None:
    stripes, have, holders, version, window = change
    after = renewed(stripes, have, holders, version, window)
    assert renewed(after, have, holders, version + 5, window) == after
    assert renewed(after, range(len(after)), [], version + 5, window) == after
    everybody = sorted({donor for stripe in stripes for donor in stripe.donors})
    assert not everybody or renewed(stripes, have, everybody, version, window) == stripes


def test_the_lost_go_to_those_who_have_less_to_give() -> None:
    holders = ["a", "b", "c", "d"]
    stripes = cut(24 * SMALLEST, holders, 0, 3, 0)
    after = renewed(stripes, [], ["c", "d", "e"], 9)
    lost = [stripe for stripe in after if set(stripes[stripe.index].donors) == {"a", "b"}]
    assert {stripe.version for stripe in lost} == {9}
    assert {stripe.donors[0] for stripe in lost} == {"e"}, "the others give the rest already"
