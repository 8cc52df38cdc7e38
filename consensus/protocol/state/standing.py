"""How far the newest chosen view has come at one member."""

from __future__ import annotations

from enum import Enum

from ...transitions import Table


class Standing(Enum):
    """CHOSEN: its reports are being collected. Members act in it only once it is ACTIVE."""

    CHOSEN = "chosen"
    INSTALLED = "installed"
    READY = "ready"
    ACTIVE = "active"
    SUPERSEDED = "superseded"


class StandingEvent(Enum):
    """The events that move a view on."""

    INSTALL = "INSTALL: all reports"
    BUILT = "the group is built: READY"
    ACTIVATE = "ACTIVATE: all are ready"
    NEWER = "a newer view is chosen"


STANDING: Table[Standing, StandingEvent] = Table(
    "standing",
    Standing.CHOSEN,
    {
        Standing.CHOSEN: {StandingEvent.INSTALL: Standing.INSTALLED, StandingEvent.NEWER: Standing.SUPERSEDED},
        Standing.INSTALLED: {StandingEvent.BUILT: Standing.READY, StandingEvent.NEWER: Standing.SUPERSEDED},
        Standing.READY: {
            StandingEvent.BUILT: Standing.READY,
            StandingEvent.ACTIVATE: Standing.ACTIVE,
            StandingEvent.NEWER: Standing.SUPERSEDED,
        },
        Standing.ACTIVE: {StandingEvent.BUILT: Standing.ACTIVE, StandingEvent.NEWER: Standing.SUPERSEDED},
    },
)
