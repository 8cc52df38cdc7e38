"""The events that an agent and its data plane exchange, each one a frozen value.

The agent may live in another process; the values are sent to it unchanged. ``DataPlane.handle`` takes the orders,
``Machine.handle`` the reports.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .errors import StoppedError
from .view import View

# Orders, from the agent to the data plane. The order of a change: Freeze, Installed, Activated.


@dataclass(frozen=True, slots=True)
class Freeze:
    """Stop for the change to ``epoch``: at once, or with ``after_call`` when that call has ended or failed.

    Answer with ``Flushed`` once nothing of the old group can complete any more. A repeated order for the same epoch gets the
    same report.
    """

    epoch: int
    after_call: int | None


@dataclass(frozen=True, slots=True)
class Expected:
    """``view`` may be installed soon: its group may be built ahead, for no other view. Only a hint; nothing is answered.

    It comes while the data plane acts, is frozen, or (at a joiner) has no view yet. Often that view is never installed.
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
    """True if a member that is not in ``view`` any more left because its program had ended."""


@dataclass(frozen=True, slots=True)
class Activated:
    """Every member of ``view`` is ready: act in it."""

    view: View


@dataclass(frozen=True, slots=True)
class BoundaryRequest:
    """The coordinator asks its data plane to stop at the end of a call (True), or withdraws that request (False).

    Joins or leaves wait for that boundary. While True: flag the next call so that every member freezes after it, then answer
    with ``Boundary``. Only the coordinator asks.
    """

    wanted: bool


@dataclass(frozen=True, slots=True)
class PeerProgress:
    """The latest ``Consensus.progress`` of another member."""

    member_id: str
    finished: int
    current: int
    inner: int = 0


@dataclass(frozen=True, slots=True)
class Stalled:
    """The others have waited ``waited`` seconds in ``call``, which this member has not entered: ``Stopped`` follows.

    Log where the training thread is: no other member can.
    """

    call: int
    waited: float


@dataclass(frozen=True, slots=True)
class Stopped:
    """This lifetime is over (left, excluded, quorum lost, join failed). Final; only farewells are sent afterwards."""

    error: StoppedError


Order = Freeze | Expected | Installed | Activated | BoundaryRequest | PeerProgress | Stalled | Stopped
"""What an agent sends to its data plane."""

# Reports, from the data plane to the agent.


@dataclass(frozen=True, slots=True)
class Hint:
    """The data plane of this member failed and froze itself; ``suspects`` are checked at once (empty: every member).

    A member that suspects itself asks for a new epoch at once: nobody has died, its own group has ended.
    """

    suspects: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Flushed:
    """Answer to ``Freeze``."""

    epoch: int
    report: bytes


@dataclass(frozen=True, slots=True)
class Built:
    """Answer to ``Installed``: the group of that view is built."""

    view_id: str


@dataclass(frozen=True, slots=True)
class Boundary:
    """The data plane froze after ``call``: the answer to ``BoundaryRequest``, or because another member's trailer asked for it.

    ``leavers``: ids of the members whose own trailer announced that they leave.
    """

    call: int
    leavers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SeekAdmission:
    """A joiner is ready to take part."""


@dataclass(frozen=True, slots=True)
class Leave:
    """This member leaves of its own accord. ``ended``: because its program has ended; if no member is left, waiting joiners
    are told so.
    """

    after_call: int | None
    ended: bool = False


Report = Hint | Flushed | Built | Boundary | SeekAdmission | Leave
"""What a data plane sends to its agent."""
