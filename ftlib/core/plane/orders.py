"""What a member's data plane is told to do, and what comes of a finished call."""

from __future__ import annotations

from dataclasses import dataclass

from consensus.border import Freeze

__all__ = ["FINISHED", "Finish", "Order"]


Order = Freeze
"""A freeze asked for by the consensus: for the change to ``epoch``, at once or when ``after_call`` has ended."""


@dataclass(frozen=True, slots=True)
class Finish:
    """What a finished call leads to. ``frozen``: its trailer asked for a freeze, which has happened."""

    frozen: bool
    order: Order | None
    """A freeze that waited for this call."""


FINISHED = Finish(frozen=False, order=None)
"""And nothing else: the next call follows."""
