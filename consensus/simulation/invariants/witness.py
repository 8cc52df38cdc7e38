"""Whoever is shown a world through the jury: fine hooks, of which one overrides those that it needs.

The jury calls only what is overridden, and messages and effects only by their type: a witness that wants ACCEPT costs nothing
at a ping.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ...errands import Answer, Errand
from ...errors import StoppedError
from ...messages import Message
from ...protocol.effects import Note
from ...view import View

if TYPE_CHECKING:
    from ..host import Host
    from ..shelf import Deed
    from ..world import World
    from .jury import Jury

__all__ = ["Hears", "Sees", "Thinks", "Witness"]

Sees = Mapping[type, Callable[["Host", "Host | None", Any], None]]
"""By type of message: ``(sender, receiver, message)``."""

Hears = Mapping[type, Callable[["Host", "Host", Any], None]]
"""By type of message: ``(receiver, sender, message)``."""

Thinks = Mapping[type, Callable[["Host", Any], None]]
"""By type of message: ``(host, message)``."""


class Witness:
    """Every hook does nothing here."""

    def __init__(self, jury: Jury) -> None:
        self.jury = jury

    @property
    def world(self) -> World:
        """What is looked at."""
        return self.jury.world

    @property
    def now(self) -> float:
        """True time."""
        return self.jury.world.now

    def sees(self) -> Sees:
        """Messages of interest as they are sent, whether they arrive or not."""
        return {}

    def hears(self) -> Hears:
        """Messages of interest as they arrive, just before they are handled."""
        return {}

    def thinks(self) -> Thinks:
        """Messages of interest that a member sends to itself, just before it handles them."""
        return {}

    def started(self, host: Host) -> None:
        """A process begins."""

    def killed(self, host: Host) -> None:
        """A process is gone."""

    def paused(self, host: Host) -> None:
        """A process was stopped."""

    def resumed(self, host: Host) -> None:
        """A process goes on."""

    def jumped(self, host: Host, seconds: float) -> None:
        """A process's clock stepped."""

    def refused(self, host: Host, target: Host) -> None:
        """A firewall refuses ``host``'s connection to ``target``, which lives."""

    def asked(self, host: Host, errand: Errand) -> None:
        """A process wants something of the shared store."""

    def answered(self, host: Host, errand: Errand, answer: Answer) -> None:
        """It learns what came of that."""

    def stored(self, host: Host | None, deed: Deed) -> None:
        """The store is changed for a process, dead or alive (None: by the script)."""

    def froze(self, host: Host, epoch: int) -> None:
        """Its data plane is to freeze, for that epoch."""

    def withheld(self, host: Host | None) -> None:
        """The store, or the way to it, fails a process (None: somebody's)."""

    def lost(self, host: Host, target: Host, message: Message) -> None:
        """The network swallows what ``host`` sends to ``target``."""

    def late(self, host: Host, target: Host, message: Message) -> None:
        """The network delivers it later than usual."""

    def adopted(self, host: Host, view: View) -> None:
        """``host`` follows a newer chosen view."""

    def installed(self, host: Host, view: View, reports: Mapping[str, bytes]) -> None:
        """``host`` builds the group of ``view`` from everybody's reports."""

    def activated(self, host: Host, view: View) -> None:
        """``host`` acts in ``view`` from now on."""

    def stopped(self, host: Host, error: StoppedError) -> None:
        """``host``'s lifetime is over though its process may live."""

    def noted(self, host: Host, note: Note) -> None:
        """``host`` leaves a remark in its log."""

    def settled(self, host: Host) -> None:
        """``host`` has handled something. Called after every event: spend nothing here."""
