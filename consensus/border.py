"""What passes between an agent and its data plane: one frozen value for each thing that happens.

The agent may live in another process. These values cross that border as they are: ``DataPlane.handle`` takes the orders, and
``Machine.handle`` takes the reports.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .errors import StoppedError
from .view import View

# Orders, from the agent to the data plane. The order of a change: Freeze, Installed, Activated.


@dataclass(frozen=True, slots=True)
class Freeze:
    """Stop for the change to ``epoch``: at once, or (``after_call``) when that call has ended or failed.

    Answer with ``Flushed`` once nothing of the old group can complete any more. Asked again for the same epoch, answer with
    the same report.
    """

    epoch: int
    after_call: int | None


@dataclass(frozen=True, slots=True)
class Expected:
    """``view`` may be installed soon: its group may be built ahead, for no other view. Only a hint; nothing is answered.

    It comes while the data plane acts, is frozen, or (at a joiner) has no view yet, and often comes to nothing.
    """

    view: View


@dataclass(frozen=True, slots=True)
class Installed:
    """``view`` was chosen; ``reports`` holds the flush report of each continuing member (joiners have none).

    Build the group for it, off the training thread, and answer with ``Built``.
    """

    view: View
    reports: Mapping[str, bytes]
    ended: bool = False
    """Whether somebody whom it is without left since its program had come to its end."""


@dataclass(frozen=True, slots=True)
class Activated:
    """Every member of ``view`` is ready: act in it."""

    view: View


@dataclass(frozen=True, slots=True)
class Wish:
    """Joins or leaves wait (True) or no longer wait (False) for a call boundary.

    While True: flag the next call so that every member freezes after it, then answer with ``Boundary``. Only the coordinator
    is asked.
    """

    wanted: bool


@dataclass(frozen=True, slots=True)
class PeerProgress:
    """What another member's ``Consensus.progress`` said last."""

    member_id: str
    finished: int
    current: int


@dataclass(frozen=True, slots=True)
class Stalled:
    """The others have waited ``waited`` seconds in ``call``, which this member has not entered: ``Stopped`` follows.

    Say where the training thread is: nobody else can.
    """

    call: int
    waited: float


@dataclass(frozen=True, slots=True)
class Stopped:
    """This lifetime is over (left, excluded, quorum lost, join failed). Final; only farewells are sent afterwards."""

    error: StoppedError


Order = Freeze | Expected | Installed | Activated | Wish | PeerProgress | Stalled | Stopped
"""What a data plane is told."""

# Reports, from the data plane to the agent.


@dataclass(frozen=True, slots=True)
class Hint:
    """The data plane failed here and froze itself; ``suspects`` are checked at once (empty: everybody)."""

    suspects: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Flushed:
    """Answer to ``Freeze``."""

    epoch: int
    report: bytes


@dataclass(frozen=True, slots=True)
class Built:
    """Answer to ``Installed``: the group of that view is there."""

    view_id: str


@dataclass(frozen=True, slots=True)
class Boundary:
    """Answer to ``Wish``, or what another member's trailer asked for: frozen after ``call``.

    ``leavers``: ids of those whose own trailer said that they leave.
    """

    call: int
    leavers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SeekAdmission:
    """A joiner is ready to take part."""


@dataclass(frozen=True, slots=True)
class Leave:
    """Leave on the own wish. ``ended``: since the program has come to its end; whoever waits to be let in is told, should
    nobody be left.
    """

    after_call: int | None
    ended: bool = False


Report = Hint | Flushed | Built | Boundary | SeekAdmission | Leave
"""What a data plane says."""
