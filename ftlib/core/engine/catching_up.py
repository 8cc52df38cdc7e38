"""``ft.catch_up``: a member that lacks the state gets it at a border between two calls, before its program computes.

``CatchUp`` stands for a call while it waits, and is none: it is not finished, and nobody waits for it. The state is valid on
entry to the others' next call, which cannot finish without this member. With that call the program comes in, as its first.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from consensus import LeftError

from ...errors import RebuildTimeout
from ..calls.attempt import BARE
from ..calls.call import Call, Kind
from ..calls.session import Session
from ..plane.plane import Plane
from ..tensors.layout import Layout

__all__ = ["CatchUp", "Obtain", "Obtained", "caught_up"]

_LAYOUT = Layout(b"", "", "catch_up", (BARE,))


class Obtained(Enum):
    """What became of one attempt to get the state."""

    HERE = "the state is here, as of the border before the next call"
    MIDWAY = "the others are in a call in the middle of their loop: take part in that one first"
    OVER = "the session has ended, or this worker has to leave"


Obtain = Callable[[Call, Session, float], Obtained]
"""Gets the state as of the border before the call, in the session, until a moment on the plane's clock."""


class CatchUp(Call):
    """The program waits for the state, outside of calls."""

    foreign = True  # it uses up no samples, and says nothing about the job's calls

    def __init__(self) -> None:
        super().__init__(Kind.BARRIER, _LAYOUT, ())
        self.present = False  # the others are to wait for nothing, and the agent blames nobody for not being in it


def caught_up(
    own: CatchUp,
    plane: Plane,
    timeout: float,
    *,
    session_for: Callable[[Call], Session | None],
    obtain: Obtain,
    accompany: Callable[[CatchUp], object],
) -> bool:
    """Wait until this member has the state; False if it had it already.

    ``session_for``: waits for a session to act in; None if too few members are there. ``accompany``: takes part in one call of
    the others. RebuildTimeout if nothing comes within ``timeout`` seconds, LeftError if this worker has to leave before.
    """
    deadline = own.began + timeout
    came = False
    while True:
        if plane.leaving():
            raise LeftError("asked to leave before it had the state")
        session = session_for(own)
        if session is None:
            raise RebuildTimeout(f"catch_up: too few members were there for {timeout:g} s, so there is no state to be had")
        if plane.level:  # known once there is a session
            return came
        found = obtain(own, session, deadline)
        came = found is Obtained.HERE
        if found is Obtained.MIDWAY:
            if plane.threads.now() > deadline:
                raise RebuildTimeout(
                    f"catch_up: for {timeout:g} s the others have come to calls, but not to the beginning of their loop, where "
                    "they call catch_up: call it in every step, or only once before the loop"
                )
            accompany(own)
