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


class News(Enum):
    """What moves a view on."""

    INSTALL = "INSTALL: all reports"
    BUILT = "the group is built: READY"
    ACTIVATE = "ACTIVATE: all are ready"
    NEWER = "a newer view is chosen"


STANDING: Table[Standing, News] = Table(
    "standing",
    Standing.CHOSEN,
    {
        Standing.CHOSEN: {News.INSTALL: Standing.INSTALLED, News.NEWER: Standing.SUPERSEDED},
        Standing.INSTALLED: {News.BUILT: Standing.READY, News.NEWER: Standing.SUPERSEDED},
        Standing.READY: {
            News.BUILT: Standing.READY,
            News.ACTIVATE: Standing.ACTIVE,
            News.NEWER: Standing.SUPERSEDED,
        },
        Standing.ACTIVE: {News.BUILT: Standing.ACTIVE, News.NEWER: Standing.SUPERSEDED},
    },
)
