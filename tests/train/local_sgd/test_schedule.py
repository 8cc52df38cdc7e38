"""When which fragment is averaged, as a table; how a model is cut in fragments."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from ftlib import ConfigError
from ftlib.train.local_sgd.fragments import balanced, fragments_of
from ftlib.train.local_sgd.schedule import Move, Schedule

MOVES = {Move.NOTHING: ".", Move.BEGIN: "b", Move.END: "e", Move.WHOLE: "w"}


def course(schedule: Schedule, steps: int) -> str:
    """One sign for each inner step: a small letter for fragment 0, a capital one for fragment 1, and so on by turns."""
    since, sync, begun, signs = 0, 0, False, ""
    for _ in range(steps):
        since += 1
        move = schedule.move(since, begun=begun)
        sign = MOVES[move]
        signs += sign.upper() if schedule.fragment(sync) % 2 else sign
        begun |= move is Move.BEGIN
        if move in (Move.END, Move.WHOLE):
            since, sync, begun = 0, sync + 1, False
    return signs


@pytest.mark.parametrize(
    ("sync_every", "fragments", "delay", "expected"),
    [
        (1, 1, 0, "wwww"),
        (3, 1, 0, "..w..w..w"),
        (6, 2, 0, "..w..W..w..W"),
        (6, 2, 1, ".be.BE.be.BE"),
        (6, 2, 2, "b.eB.Eb.eB.E"),
        (4, 4, 0, "wWwWw"),
        (8, 4, 1, "beBEbeBE"),
        (5, 1, 4, "b...eb...e"),
    ],
)
def test_the_course(sync_every: int, fragments: int, delay: int, expected: str) -> None:
    assert course(Schedule(sync_every, fragments, delay), len(expected)) == expected


def test_who_is_behind_its_schedule_catches_up_at_once() -> None:
    """It had no part in the last sync, as too few members were there."""
    schedule = Schedule(6, 2, 1)
    assert schedule.move(4, begun=False) is Move.WHOLE
    assert schedule.move(4, begun=True) is Move.END


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ((0, 1, 0), "sync_every=0 must be a whole number of at least 1"),
        ((2.0, 1, 0), "sync_every=2.0 must"),
        ((10, 3, 0), "sync_every=10 cannot be divided among 3 fragments: choose a multiple of 3, such as 12"),
        ((6, 2, 3), "delay=3 must be below 3"),
        ((6, 2, -1), "delay=-1 must"),
        ((6, 0, 0), "fragments=0 must"),
    ],
)
def test_numbers_that_do_not_fit(numbers: tuple[int, int, int], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        Schedule(*numbers)


@given(st.lists(st.integers(1, 20), min_size=1, max_size=8), st.data())
def test_fragments_are_as_even_as_can_be(sizes: list[int], data: st.DataObject) -> None:
    count = data.draw(st.integers(1, len(sizes)))

    def largest(starts: list[int]) -> int:
        return max(sum(sizes[start:stop]) for start, stop in itertools.pairwise([*starts, len(sizes)]))

    found = balanced(sizes, count)
    assert len(found) == count and found[0] == 0 and found == sorted(set(found))
    others = itertools.combinations(range(1, len(sizes)), count - 1)
    assert largest(found) == min(largest([0, *starts]) for starts in others)


def test_fragments_by_modules() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.BatchNorm1d(2))
    model[1].weight.requires_grad_(requires_grad=False)
    names = [[name for name, _ in part] for part in fragments_of(model, [nn.ModuleList([model[0], model[2]]), model[1]])]
    assert names == [["0.weight", "0.bias", "2.weight", "2.bias"], ["1.bias"]]
    with pytest.raises(ConfigError, match=r"parameter 2\.weight is in none of the fragments"):
        fragments_of(model, [model[0], model[1]])
    with pytest.raises(ConfigError, match=r"parameter 0\.weight is in several fragments"):
        fragments_of(model, [model, model[0]])
    with pytest.raises(ConfigError, match="fragment 1 has no trained parameter"):
        fragments_of(model, [model, nn.ReLU()])
    with pytest.raises(ConfigError, match=r"fragments=6 must be\s+1 to 5"):
        fragments_of(model, 6)
    with pytest.raises(ConfigError, match="a whole number, or a list of modules"):
        fragments_of(model, [])
    for parameter in model.parameters():
        parameter.requires_grad_(requires_grad=False)
    with pytest.raises(ConfigError, match="nothing to average"):
        fragments_of(model, 1)
    with pytest.raises(ConfigError, match="has no shape yet"):
        fragments_of(nn.LazyLinear(2), 1)


def test_tied_parameters_count_once() -> None:
    model = nn.ModuleDict({"in": nn.Linear(3, 3, bias=False), "out": nn.Linear(3, 3, bias=False)})
    model["out"].weight = model["in"].weight
    assert [[name for name, _ in part] for part in fragments_of(model, 1)] == [["in.weight"]]
    assert torch.equal(model["in"].weight, model["out"].weight)
