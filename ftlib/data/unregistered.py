"""Elastic samplers read by this process without being registered, so that no job deals their samples: fine alone, a mistake
with other members.
"""

from __future__ import annotations

import weakref
from typing import Any

READ: weakref.WeakSet[Any] = weakref.WeakSet()
"""Unregistered samplers over which there was a loop, as long as they exist."""


def read(sampler: object) -> None:
    """Note that a loop begins over ``sampler``, which is not registered."""
    READ.add(sampler)


def bound(sampler: object) -> None:
    """Note that ``sampler`` is registered now."""
    READ.discard(sampler)
