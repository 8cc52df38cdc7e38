"""The phases of a member's data plane, and their transition table, which the code obeys and the diagram is drawn from."""

from __future__ import annotations

from enum import Enum

from consensus.transitions import Table


class Phase(Enum):
    """Whether this member averages."""

    WAITING = "waiting for a first view"
    ACTIVE = "active"
    FROZEN = "frozen for a view change"
    STOPPED = "stopped"


class Switch(Enum):
    """What changes the phase."""

    ACTIVATE = "every member is ready"
    FREEZE = "an order, a failure, or a trailer"
    STOP = "this lifetime is over"


PLANE: Table[Phase, Switch] = Table(
    "data plane",
    Phase.WAITING,
    {
        Phase.WAITING: {Switch.ACTIVATE: Phase.ACTIVE, Switch.STOP: Phase.STOPPED},
        Phase.ACTIVE: {Switch.FREEZE: Phase.FROZEN, Switch.STOP: Phase.STOPPED},
        Phase.FROZEN: {Switch.ACTIVATE: Phase.ACTIVE, Switch.STOP: Phase.STOPPED},
    },
)
