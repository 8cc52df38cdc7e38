from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ftlib.recovery.layout.shards import (
    EACH,
    LARGE,
    MOST,
    MOST_CHUNKS,
    SMALLEST,
    Shard,
    chunks,
    cut,
    single_donor_shards,
    surviving,
)

MIB = 1 << 20

holder_lists = st.integers(1, 12).map(lambda count: [f"m{i}" for i in range(count)])
sizes = st.one_of(
    st.integers(0, 200 * MIB),
    st.integers(0, 20_000 * MIB),
    st.sampled_from([1, SMALLEST, MOST * SMALLEST, MOST * SMALLEST + 1]),
)
turns = st.integers(0, 40)
versions = st.integers(0, 2**40)


def length(shard: Shard) -> int:
    return shard.stop - shard.start


def longest(shards: Sequence[Shard]) -> int:
    return max(map(length, shards), default=0)


def given_by(shards: Sequence[Shard], holders: Sequence[str]) -> dict[str, int]:
    return {holder: sum(length(shard) for shard in shards if shard.donors[0] == holder) for holder in holders}


def pinned_by(shards: Sequence[Shard], holders: Sequence[str]) -> dict[str, int]:
    return {holder: sum(length(shard) for shard in shards if holder in shard.donors) for holder in holders}


def difference(loads: dict[str, int]) -> int:
    return max(loads.values()) - min(loads.values())


@given(sizes, holder_lists, turns, versions)
def test_the_shards_are_the_whole_state_once(nbytes: int, holders: list[str], turn: int, version: int) -> None:
    shards = cut(nbytes, holders, turn, version)
    assert [shard.index for shard in shards] == list(range(len(shards)))
    assert [shard.start for shard in shards] == [0, *(shard.stop for shard in shards)][: len(shards)]
    assert (shards[-1].stop if shards else 0) == nbytes
    most = min(MOST, EACH * len(holders))
    assert len(shards) <= most
    assert len({length(shard) for shard in shards[:-1]}) <= 1
    assert all(length(shard) % SMALLEST == 0 for shard in shards[:-1])
    assert {shard.version for shard in shards} <= {version}
    assert all(0 < length(shard) <= longest(shards[:1]) for shard in shards)
    assert nbytes > most * SMALLEST or longest(shards) <= SMALLEST, "no longer than they must be"


@given(sizes, holder_lists, turns, versions)
def test_two_donors_each_and_all_alike(nbytes: int, holders: list[str], turn: int, version: int) -> None:
    shards = cut(nbytes, holders, turn, version)
    for shard in shards:
        assert len(set(shard.donors)) == len(shard.donors) == min(2, len(holders))
        assert set(shard.donors) <= set(holders)
    assert difference(given_by(shards, holders)) <= longest(shards)
    assert difference(pinned_by(shards, holders)) <= 2 * longest(shards)


@given(sizes, holder_lists, turns, versions)
def test_everybody_cuts_alike(nbytes: int, holders: list[str], turn: int, version: int) -> None:
    assert cut(nbytes, holders, turn, version) == cut(nbytes, tuple(holders), turn, version)


@given(sizes.filter(bool), holder_lists, st.integers(1, 24))
@example(61 * SMALLEST, ["m0", "m1", "m2", "m3"], 2)
@example(41 * SMALLEST + 1, ["m0", "m1", "m2", "m3"], 7)
def test_joiners_that_come_at_once_ask_different_donors(nbytes: int, holders: list[str], joiners: int) -> None:
    cuts = [cut(nbytes, holders, turn, 0) for turn in range(joiners)]
    assert len(holders) == 1 or all(one[0].donors[0] != other[0].donors[0] for one, other in pairwise(cuts))
    together = [shard for shards in cuts for shard in shards]
    most, least = longest(together), min(map(length, together))
    even = len(cuts[0]) % len(holders) == 0
    assert difference(given_by(together, holders)) <= (0 if even else most) + (most - least), "one stripe, one short one"


@given(st.integers(3, 12), st.integers(0, 5))
def test_all_others_stand_in_for_a_donor_that_dies(count: int, turn: int) -> None:
    holders = [f"m{i}" for i in range(count)]
    shards = cut(EACH * count * SMALLEST, holders, turn, 0)
    for dead in holders:
        seconds = Counter(shard.donors[1] for shard in shards if shard.donors[0] == dead)
        assert set(seconds) == set(holders) - {dead}
        assert max(seconds.values()) - min(seconds.values()) <= 1


def test_nothing_needs_no_shards() -> None:
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
    for shard in cut(nbytes, holders, turn, 7)[:20]:
        found = surviving(shard, left)
        assert found == replace(shard, donors=tuple(donor for donor in shard.donors if donor in left))


def test_the_second_gives_what_the_first_cannot() -> None:
    shard = Shard(3, 5, 9, 1, ("a", "b"))
    assert surviving(shard, ["c", "b", "a"]) is shard
    assert surviving(shard, ["c", "b"]).donors == ("b",)
    assert surviving(shard, ["c"]).donors == ()


@given(sizes, holder_lists, turns, st.integers(0, 2**40), st.integers(0, 1000))
def test_a_chunk_is_cut_like_a_state(nbytes: int, holders: list[str], turn: int, start: int, first: int) -> None:
    moved = cut(nbytes, holders, turn, 7, start=start, first_index=first)
    for shard, there in zip(cut(nbytes, holders, turn, 7), moved, strict=True):
        assert there == replace(shard, index=first + shard.index, start=start + shard.start, stop=start + shard.stop)


@given(st.lists(st.integers(1, 200 * MIB), max_size=60))
def test_chunks_are_the_whole_state_once_and_end_at_borders(lengths: list[int]) -> None:
    ends = list(accumulate(lengths))
    nbytes = ends[-1] if ends else 0
    found = chunks(ends[:-1], nbytes)
    assert [start for start, _ in found] == [0, *(stop for _, stop in found)][:-1]
    assert found[-1][1] == nbytes
    assert all(stop in ends for _, stop in found[:-1])
    most = max(LARGE, nbytes // MOST_CHUNKS)
    sizes_found = [stop - start for start, stop in found]
    assert all(size <= most or size in lengths for size in sizes_found), "larger ones cannot be cut"
    assert all(one + other > most for one, other in pairwise(sizes_found)), "and none is smaller than it has to be"
    assert chunks((), nbytes) == ((0, nbytes),)


def test_a_spare_has_one_donor_for_each_shard() -> None:
    holders = ["a", "b", "c"]
    shards = single_donor_shards(10 * MIB, holders, 1, 7)
    assert [shard.donors for shard in shards] == [each.donors[:1] for each in cut(10 * MIB, holders, 1, 7)]
    assert all(len(shard.donors) == 1 for shard in shards)
