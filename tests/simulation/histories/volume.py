"""How many of the drawn histories ``make test`` plays. ``make soak`` plays the others, too."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def mostly_soak(values: Iterable[Any], count: int) -> list[Any]:
    """``values`` for ``parametrize``, of which ``make test`` takes the first ``count``."""
    return [value if index < count else pytest.param(value, marks=pytest.mark.soak) for index, value in enumerate(values)]
