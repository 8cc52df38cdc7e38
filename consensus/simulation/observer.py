"""What there is to see in a simulated world. Checkers, recorders and pictures are observers; none changes anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..messages import Message
from ..protocol.effects import Effect

if TYPE_CHECKING:
    from .host import Host
    from .world import World

__all__ = ["Observer"]


class Observer:
    """Every hook does nothing here. A violated invariant is an AssertionError raised by the hook that sees it."""

    world: World
    """Set when the observer is added to a world."""

    def started(self, host: Host) -> None:
        """A process begins; its machine has not been started yet."""

    def killed(self, host: Host) -> None:
        """A process is gone."""

    def paused(self, host: Host) -> None:
        """A process was stopped."""

    def resumed(self, host: Host) -> None:
        """A process goes on; what it missed has not reached it yet."""

    def sent(self, host: Host, target: Host | None, message: Message) -> None:
        """``host`` sends to whoever is at the address (nobody: None), whether it will arrive or not.

        What a member sends to itself is never seen.
        """

    def delivered(self, host: Host, sender: Host, message: Message) -> None:
        """A message arrives at ``host``, which handles it next."""

    def effect(self, host: Host, effect: Effect) -> None:
        """``host``'s machine wants something done; it is carried out next."""

    def settled(self, host: Host) -> None:
        """``host`` has handled something, and all its effects were carried out."""
