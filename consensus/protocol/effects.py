"""What the protocol asks of its driver. ``Machine.drain()`` returns these in order; the driver carries them out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..errands import Errand
from ..errors import StoppedError
from ..member import Address, Member
from ..messages import Message
from ..view import View

__all__ = [
    "Activated",
    "Ask",
    "Check",
    "Effect",
    "Expected",
    "Fence",
    "Freeze",
    "Installed",
    "Note",
    "PeerProgress",
    "Plane",
    "Quit",
    "Send",
    "Stalled",
    "Stopped",
    "Tether",
    "Wish",
]


@dataclass(frozen=True, slots=True)
class Send:
    """Send ``message`` to ``address``; it may get lost."""

    address: Address
    message: Message


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask the shared store; report with ``Machine.answered``, whatever comes of it. Several may be under way at once."""

    errand: Errand


@dataclass(frozen=True, slots=True)
class Check:
    """Find out at once whether ``member`` still lives: connect to it; report with ``Machine.checked``."""

    member: Member


@dataclass(frozen=True, slots=True)
class Tether:
    """Keep a control connection to exactly these members; when one closes, behave as for ``Check``."""

    members: tuple[Member, ...]


@dataclass(frozen=True, slots=True)
class Fence:
    """Ask the supervisor of ``member``, if it has one, to kill it; report with ``Machine.evidence`` once it was reaped.

    ``command``: have ``fence_command`` do so, too.
    """

    member: Member
    reason: str
    command: bool = False


@dataclass(frozen=True, slots=True)
class Freeze:
    """``DataPlane.freeze``."""

    epoch: int
    after_call: int | None


@dataclass(frozen=True, slots=True)
class Expected:
    """``DataPlane.expect``."""

    view: View


@dataclass(frozen=True, slots=True)
class Installed:
    """``DataPlane.install``."""

    view: View
    reports: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class Activated:
    """``DataPlane.activate``."""

    view: View


@dataclass(frozen=True, slots=True)
class Wish:
    """``DataPlane.wish``."""

    wanted: bool


@dataclass(frozen=True, slots=True)
class PeerProgress:
    """``DataPlane.peer_progress``."""

    member_id: str
    finished: int
    current: int


@dataclass(frozen=True, slots=True)
class Stalled:
    """``DataPlane.stalled``."""

    call: int
    waited: float


@dataclass(frozen=True, slots=True)
class Quit:
    """Let go of every socket after what was sent: this member has said that it is dead."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """``DataPlane.stopped``; the machine sends nothing more afterwards but farewells."""

    error: StoppedError


@dataclass(frozen=True, slots=True)
class Note:
    """Something worth a log line or an entry in ``explain``. ``kind`` is a short word, ``level`` a logging level.

    ``about``: the id of the member that it is about, where there is one.
    """

    level: int
    kind: str
    text: str
    about: str = ""


Plane = Freeze | Expected | Installed | Activated | Wish | PeerProgress | Stalled
"""What is the data plane's."""

Effect = Send | Ask | Check | Tether | Fence | Plane | Stopped | Quit | Note
