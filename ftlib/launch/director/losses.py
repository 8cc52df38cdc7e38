"""What the words of a command say that led to no agent, or of one that ended."""

from __future__ import annotations

import re

from .decisions.hosts import Loss

_AWAY = re.compile(
    "timed out|no route|unreachable|connection (refused|reset|closed)|temporary failure|nothing came",
    re.IGNORECASE,
)
"""In the words of ssh and of ``Link``: nobody answered, or nobody who had the time to say no."""
_ENDED = re.compile("slurm job \\S+ has expired|invalid job id|job/step already complet", re.IGNORECASE)
"""In the words of srun: the allocation is no more."""


def loss_of(why: str) -> Loss:
    """How a host was lost at which no agent of ours has spoken."""
    return Loss.OVER if _ENDED.search(why) else Loss.AWAY if _AWAY.search(why) else Loss.REFUSED
