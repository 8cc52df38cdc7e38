"""Every two features together, and random threes: whole, or refused. ``SEED=7 pytest -k one_again`` plays a three again."""

from __future__ import annotations

import itertools
import os
import random

import pytest

from tests.documents.pages import ROOT, section
from tests.ftlib.combinations.drive import drive
from tests.ftlib.combinations.table import CELLS, FEATURES, rendered

PAGE = ROOT / "docs" / "consensus.md"
THREES = 24
MANY = 1000


def test_no_cell_is_left_out() -> None:
    assert set(CELLS) == set(itertools.combinations(FEATURES, 2))


def test_the_page_shows_the_table() -> None:
    assert rendered() in section(PAGE, "What goes together"), f"{PAGE.name} should have:\n{rendered()}"


@pytest.mark.parametrize(("first", "second"), CELLS)
def test_two(first: str, second: str) -> None:
    drive((first, second), len(first) + len(second))


@pytest.mark.parametrize("seed", [*range(THREES), *(pytest.param(n, marks=pytest.mark.soak) for n in range(THREES, MANY))])
def test_three(seed: int) -> None:
    drive(three(seed), seed)


def test_one_again() -> None:
    seed = int(os.environ.get("SEED", "7"))
    drive(three(seed), seed)


def three(seed: int) -> list[str]:
    """Some three features."""
    return random.Random(seed).sample(list(FEATURES), 3)
