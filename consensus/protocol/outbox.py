"""Where a machine's parts leave what is to be done. Messages to oneself never touch the network: they queue here."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from ..member import Address, Member
from ..messages import Message
from .effects import Effect, Note, Send

__all__ = ["Outbox"]


class Outbox:
    """Effects in order, and messages of this member to itself."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._effects: list[Effect] = []
        self._own: deque[Message] = deque()
        self._closed = False
        self.witness: Callable[[Message], None] | None = None
        """Sees what this member sends to itself, just before it is handled (for simulations)."""

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
