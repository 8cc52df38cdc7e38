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
    """Ask the shared store; report ``Answered``, whatever comes of it. Several may be under way at once."""

    request: StoreOp


@dataclass(frozen=True, slots=True)
class Check:
    """Find out at once whether ``member`` still lives: connect to it; report ``Checked``."""

    member: Member


@dataclass(frozen=True, slots=True)
class Tether:
    """Keep a control connection to exactly these members; when one closes, behave as for ``Check``."""

    members: tuple[Member, ...]


@dataclass(frozen=True, slots=True)
class Fence:
    """Ask the supervisor of ``member``, if it has one, to kill it; report an ``Accusation`` once it was reaped.

    ``command``: have ``fence_command`` do so, too.
    """

    member: Member
    reason: str
    command: bool = False


@dataclass(frozen=True, slots=True)
class Quit:
    """Let go of every socket after what was sent: this member has said that it is dead."""


@dataclass(frozen=True, slots=True)
class Note:
    """Something worth a log line or an entry in ``explain``. ``kind`` is a short word, ``level`` a logging level.

    ``about``: the id of the member that it is about, where there is one.
    """

    level: int
    kind: str
    text: str
    about: str = ""


Effect = Send | Ask | Check | Tether | Fence | Quit | Note | Order


class Outbox:
    """Where a machine's parts leave what is to be done: effects in order, and messages of this member to itself.

    The latter never touch the network: they queue here.
    """

    def __init__(self, member: Member) -> None:
        self._member = member
        self._effects: list[Effect] = []
        self._own: deque[Message] = deque()
        self._closed = False
        self.witness: Callable[[Message], None] | None = None
        """Sees what this member sends to itself, just before it is handled (for simulations)."""

    def show(self, witness: Callable[[Message], None] | None) -> None:
        """From now on ``witness`` sees those messages; None: nobody does."""
        self.witness = witness

    def close(self) -> None:
        """Take nothing more: the last word has been said."""
        self._closed = True
        self._own.clear()

    def send(self, to: Member, message: Message) -> None:
        """Send to a member, oneself included."""
        if to.id != self._member.id:
            self.emit(Send(to.address, message))
        elif not self._closed:
            self._own.append(message)

    def send_to(self, address: Address, message: Message) -> None:
        """Send to whoever lives at ``address``."""
        self.emit(Send(address, message))

    def emit(self, effect: Effect) -> None:
        """Ask the driver for something."""
        if not self._closed:
            self._effects.append(effect)

    def note(self, level: int, kind: str, text: str, about: str = "") -> None:
        """Leave a remark for the log, ``about`` a member where it is about one."""
        self.emit(Note(level, kind, text, about))

    def take_own(self) -> Message | None:
        """The oldest message to oneself, None when there is none."""
        message = self._own.popleft() if self._own else None
        if message is not None and self.witness is not None:
            self.witness(message)
        return message

    def drain(self) -> list[Effect]:
        """All effects since the last call."""
        effects, self._effects = self._effects, []
        return effects
