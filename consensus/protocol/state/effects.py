"""What the protocol asks of its driver. ``Machine.drain()`` returns these in order; the driver carries them out."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from ...border import Order
from ...member import Address, Member
from ...messages import Message
from ...store_requests import StoreOp


@dataclass(frozen=True, slots=True)
class Send:
    """Send ``message`` to ``address``; it may get lost."""

    address: Address
    message: Message


@dataclass(frozen=True, slots=True)
class Ask:
    """Send a request to the shared store; report ``Answered`` in any case. Several may be under way at once."""

    request: StoreOp


@dataclass(frozen=True, slots=True)
class Check:
    """Connect to ``member`` at once to find out whether it still lives; report ``Checked``."""

    member: Member


@dataclass(frozen=True, slots=True)
class KeepConnections:
    """Keep a liveness connection to exactly these members; when one closes, do as for ``Check``."""

    members: tuple[Member, ...]


@dataclass(frozen=True, slots=True)
class Fence:
    """Ask the supervisor of ``member``, if it has one, to kill it; report an ``Accusation`` once its process was reaped.

    ``command``: also run ``fence_command``.
    """

    member: Member
    reason: str
    command: bool = False


@dataclass(frozen=True, slots=True)
class Quit:
    """Close every socket after the earlier effects: this member has announced that it is dead."""


@dataclass(frozen=True, slots=True)
class Note:
    """A line for the log or an entry in ``explain``. ``kind`` is a short word, ``level`` a logging level.

    ``about``: the id of the member concerned, if any.
    """

    level: int
    kind: str
    text: str
    about: str = ""


Effect = Send | Ask | Check | KeepConnections | Fence | Quit | Note | Order


class Outbox:
    """Collects the effects of a machine's parts in order, and the messages of this member to itself.

    The latter never touch the network: they queue here.
    """

    def __init__(self, member: Member) -> None:
        self._member = member
        self._effects: list[Effect] = []
        self._own: deque[Message] = deque()
        self._closed = False
        self.witness: Callable[[Message], None] | None = None
        """Gets each message of this member to itself just before it is handled (for simulations)."""

    def show(self, witness: Callable[[Message], None] | None) -> None:
        """From now on ``witness`` gets these messages; None: no witness."""
        self.witness = witness

    def close(self) -> None:
        """Drop all later effects: this member has sent its last message."""
        self._closed = True
        self._own.clear()

    def send(self, to: Member, message: Message) -> None:
        """Send to a member, which may be this one."""
        if to.id != self._member.id:
            self.emit(Send(to.address, message))
        elif not self._closed:
            self._own.append(message)

    def send_to(self, address: Address, message: Message) -> None:
        """Send to the member at ``address``, whatever its id."""
        self.emit(Send(address, message))

    def emit(self, effect: Effect) -> None:
        """Add an effect for the driver to carry out."""
        if not self._closed:
            self._effects.append(effect)

    def note(self, level: int, kind: str, text: str, about: str = "") -> None:
        """Add a line for the log; ``about``: the member concerned, if any."""
        self.emit(Note(level, kind, text, about))

    def take_own(self) -> Message | None:
        """The oldest message of this member to itself, None if there is none."""
        message = self._own.popleft() if self._own else None
        if message is not None and self.witness is not None:
            self.witness(message)
        return message

    def drain(self) -> list[Effect]:
        """All effects since the last call."""
        effects, self._effects = self._effects, []
        return effects
