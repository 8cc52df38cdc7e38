"""``ft.catch_up``: a member that lacks the state gets it at a border between two calls, before its program computes.

``CatchUp`` stands for a call while it waits, and is none: it is not finished, and nobody waits for it. The state is valid on
entry to the others' next call, which cannot finish without this member. With that call the program comes in, as its first.

The processes of a replica of several come in with the same call: each says where it is (``Agree``), and waits for the others.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from enum import Enum

from consensus import LeftError

from ...errors import RebuildTimeout
from ..calls.attempt import BARE
from ..calls.call import Call, Kind
from ..calls.session import Session
from ..plane.plane import Plane
from ..tensors.layout import Layout

_LAYOUT = Layout(b"", "", "catch_up", (BARE,))


class Obtained(Enum):
    """What became of one attempt to get the state."""

    HERE = "the state is here, as of the border before the next call"
    MIDWAY = "the others are in a call in the middle of their loop: take part in that one first"
    APART = "the state is here, but private state at another process of this replica is another donor's: get it again"
    OVER = "the session has ended, or this worker has to leave"


class CatchUp(Call):
    """The program waits for the state, outside of calls."""

    foreign = True  # it uses up no samples, and says nothing about the job's calls

    def __init__(self) -> None:
        super().__init__(Kind.BARRIER, _LAYOUT, ())
        self.present = False  # the others are to wait for nothing, and the agent blames nobody for not being in it
        self.donor = 0
        """A checksum of the replica whose private state was loaded; 0: none."""
        self._turns = (0, 0)
        """An epoch, and how often this replica has had private state of different donors in its view."""

    def given(self, donor: str, *, private: bool) -> None:
        """The state is here, from the replica of that name; ``private``: with its private state."""
        self.donor = (zlib.crc32(donor.encode()) or 1) if private else 0

    def apart(self, epoch: int) -> None:
        """In the view of ``epoch`` this replica has got private state of different donors."""
        self._turns = epoch, self.turn(epoch) + 1

    def turn(self, epoch: int) -> int:
        """How often that was so in the view of ``epoch``: all of the replica begin with the next donor each time."""
        return self._turns[1] if self._turns[0] == epoch else 0


Obtain = Callable[[CatchUp, Session, float], Obtained]
"""Gets the state as of the border before the call, in the session, until a moment on the plane's clock."""
Agree = Callable[[CatchUp, Session, Obtained], Obtained]
"""What became of it in the whole replica, in the same session."""


def caught_up(
    own: CatchUp,
    plane: Plane,
    timeout: float,
    *,
    session_for: Callable[[Call], Session | None],
    obtain: Obtain,
    agree: Agree | None,
    accompany: Callable[[CatchUp], object],
) -> bool:
    """Wait until this member has the state; False if it had it already.

    ``session_for``: waits for a session to act in; None if too few members are there. ``agree``: None if this member is a
    replica by itself. ``accompany``: takes part in one call of the others.
    RebuildTimeout if nothing comes within ``timeout`` seconds, LeftError if this worker has to leave before.
    """
    came = False
    while True:
        if plane.leaving():
            raise LeftError("asked to leave before it had the state")
        session = session_for(own)
        if session is None:
            raise RebuildTimeout(f"catch_up: too few members were there for {timeout:g} s, so there is no state to be had")
        deadline = plane.since(own.began) + timeout
        if session.gives(own.number):  # this member was in that call, and left it by an exception
            accompany(own)
            continue
        if plane.level and agree is None:  # known once there is a session
            return came
        found = Obtained.HERE if plane.level else obtain(own, session, deadline)
        if agree is not None and found is not Obtained.OVER:
            found = agree(own, session, found)
            if found is Obtained.HERE:
                return True
        came = found is Obtained.HERE
        if found is Obtained.APART:
            own.apart(session.view.epoch)
        if found is Obtained.MIDWAY:
            if plane.threads.now() > deadline:
                raise RebuildTimeout(
                    f"catch_up: for {timeout:g} s the others have come to calls, but not to the beginning of their loop, where "
                    "they call catch_up: call it in every step, or only once before the loop"
                )
            accompany(own)
