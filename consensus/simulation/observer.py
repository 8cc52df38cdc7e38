"""What there is to see in a simulated world. Checkers, recorders and pictures are observers; none changes anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errands import Answer, Errand
from ..messages import Message
from ..protocol.effects import Effect

if TYPE_CHECKING:
    from .host import Host
    from .shelf import Deed
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
        """A process was stopped, or its agent is held up (one may add to the other)."""

    def resumed(self, host: Host) -> None:
        """One of these is over; what the process missed has not reached it yet."""

    def jumped(self, host: Host, seconds: float) -> None:
        """A process's clock steps."""

    def sent(self, host: Host, target: Host | None, message: Message) -> None:
        """``host`` sends to whoever is at the address (nobody: None), whether it will arrive or not.

        What a member sends to itself is shown by ``told_itself``.
        """

    def told_itself(self, host: Host, message: Message) -> None:
        """``host`` handles a message of its own next."""

    def lost(self, host: Host, target: Host, message: Message) -> None:
        """The network swallows what ``host`` just sent to ``target``."""

    def refused(self, host: Host, target: Host) -> None:
        """A firewall refuses ``host``'s connection to ``target``, which lives."""

    def late(self, host: Host, target: Host, message: Message) -> None:
        """The network delivers what ``host`` just sent to ``target`` later than a healthy one would."""

    def asked(self, host: Host, errand: Errand) -> None:
        """``host`` wants something of the store that all share."""

    def answered(self, host: Host, errand: Errand, answer: Answer) -> None:
        """``host`` is told what came of that, and handles it next."""

    def stored(self, host: Host | None, deed: Deed) -> None:
        """The store is changed for ``host``, which may be dead by now (None: by the script)."""

    def withheld(self, host: Host | None) -> None:
        """The store, or the way to it, fails ``host`` (None: somebody)."""

    def delivered(self, host: Host, sender: Host, message: Message) -> None:
        """A message arrives at ``host``, which handles it next."""

    def effect(self, host: Host, effect: Effect) -> None:
        """``host``'s machine wants something done; it is carried out next."""

    def settled(self, host: Host) -> None:
        """``host`` has handled something, and all its effects were carried out."""
