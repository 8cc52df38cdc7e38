"""An order to a member's data plane, the answer to it, and the outcome of a finished call."""

from __future__ import annotations

from dataclasses import dataclass

from consensus.border import Freeze

from ..tensors.layout import Layout

Order = Freeze
"""A freeze that the consensus orders for the change to ``epoch``, at once or when ``after_call`` has ended."""


@dataclass(frozen=True, slots=True)
class Reported:
    """The newest answer to an order."""

    epoch: int
    data: bytes
    """The flush report."""
    opening: Layout | None
    """The layout of the call that it names, if a session may begin with expecting that one."""


@dataclass(frozen=True, slots=True)
class Finish:
    """The outcome of a finished call, after which its trailer may have asked for a freeze: that has happened by now."""

    order: Order | None
    """A freeze that waited for this call."""


FINISHED = Finish(order=None)
"""No freeze waited for the call."""
