"""Elastic samplers that this process reads although no job deals their samples: fine alone, and a mistake with others."""

from __future__ import annotations

import weakref
from typing import Any

__all__ = ["any_is_read", "bound", "read"]

_read: weakref.WeakSet[Any] = weakref.WeakSet()


def read(sampler: object) -> None:
    """A loop over ``sampler`` begins, which is not registered."""
    _read.add(sampler)


def bound(sampler: object) -> None:
    """It is registered now."""
    _read.discard(sampler)


def any_is_read() -> bool:
    """Whether there was such a loop, over a sampler that still is."""
    return len(_read) > 0
