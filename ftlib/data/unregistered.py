"""Elastic samplers that this process reads although no job deals their samples: fine alone, and a mistake with others."""

from __future__ import annotations

import weakref
from typing import Any

READ: weakref.WeakSet[Any] = weakref.WeakSet()
"""Those over which there was a loop, as long as they are."""


def read(sampler: object) -> None:
    """A loop over ``sampler`` begins, which is not registered."""
    READ.add(sampler)


def bound(sampler: object) -> None:
    """It is registered now."""
    READ.discard(sampler)
