"""Without planted bugs the histories that show them are clean."""

from __future__ import annotations

import pytest

from .bug import Tell
from .catalogue import BUGS
from .losses import late_news, stale_votes

SEEDS = 5
"""Beyond the very seeds that show a bug, which each test of a bug plays again without it."""


@pytest.mark.parametrize("tell", dict.fromkeys(bug.tell for bug in BUGS), ids=lambda tell: tell.__name__)
def test_histories_without_bugs_are_clean(tell: Tell) -> None:
    for seed in range(1 if tell in (late_news, stale_votes) else SEEDS):
        tell(seed)
