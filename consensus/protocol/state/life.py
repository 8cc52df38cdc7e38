"""A member's own life, from the search for a cluster to its end: one process lifetime, which never starts again."""

from __future__ import annotations

from enum import Enum

from ...errors import (
    ExcludedError,
    FoundedApartError,
    JobEndedError,
    JoinError,
    LeftError,
    OvertakenError,
    QuorumLostError,
    StoppedError,
)
from ...transitions import Table


class Life(Enum):
    """The state of a lifetime. A member that leaves a view by the trailer of a call goes straight from MEMBER to LEFT."""

    SEARCHING = "searching"
    MEMBER = "member"
    LEAVING = "leaving"
    TURNED_AWAY = "turned away"
    LEFT = "left"
    EXCLUDED = "excluded"
    BLOCKED = "blocked"
    DEAD = "dead"


class Turn(Enum):
    """The events that change a life."""

    FOUNDED = "founds"
    ADMITTED = "a view with it is chosen"
    LEAVE_REQUESTED = "asks to leave"
    NOT_ADMITTED = "refused, or join_timeout"
    WENT = "gone on its own wish"
    EXCLUDED = "a view without it is chosen"
    OVERTAKEN = "another side goes on"
    QUORUM_LOST = "quorum_timeout"
    DIED = "says that it is dead"


LIFE: Table[Life, Turn] = Table(
    "life",
    Life.SEARCHING,
    {
        Life.SEARCHING: {
            Turn.FOUNDED: Life.MEMBER,
            Turn.ADMITTED: Life.MEMBER,
            Turn.NOT_ADMITTED: Life.TURNED_AWAY,
            Turn.WENT: Life.LEFT,
            Turn.DIED: Life.DEAD,
        },
        Life.MEMBER: {
            Turn.LEAVE_REQUESTED: Life.LEAVING,
            Turn.WENT: Life.LEFT,
            Turn.EXCLUDED: Life.EXCLUDED,
            Turn.OVERTAKEN: Life.EXCLUDED,
            Turn.QUORUM_LOST: Life.BLOCKED,
            Turn.DIED: Life.DEAD,
        },
        Life.LEAVING: {
            Turn.LEAVE_REQUESTED: Life.LEAVING,
            Turn.WENT: Life.LEFT,
            Turn.OVERTAKEN: Life.EXCLUDED,
            Turn.QUORUM_LOST: Life.BLOCKED,
            Turn.DIED: Life.DEAD,
        },
    },
)

_TURNS = {
    JoinError: Turn.NOT_ADMITTED,
    JobEndedError: Turn.NOT_ADMITTED,
    LeftError: Turn.WENT,
    ExcludedError: Turn.EXCLUDED,
    OvertakenError: Turn.OVERTAKEN,
    FoundedApartError: Turn.OVERTAKEN,
    QuorumLostError: Turn.QUORUM_LOST,
}


def turn_of(error: StoppedError) -> Turn:
    """The event that ended a life with ``error``."""
    return _TURNS.get(type(error), Turn.DIED)
