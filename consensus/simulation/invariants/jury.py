"""All checkers of one world, as one observer: it finds out what happened, and asks whoever is concerned."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from ...errands import Answer, Errand
from ...messages import Message
from ...protocol.effects import Activated, Effect, Freeze, Installed, Note, Stopped, Tether
from ...view import View
from ..observer import Observer
from . import standard
from .ground import Ground
from .invariant import Invariant
from .ledger import Ledger
from .record import Record
from .story import Story
from .witness import Witness

if TYPE_CHECKING:
    from ..host import Host
    from ..shelf import Deed

__all__ = ["Jury"]

I = TypeVar("I", bound=Invariant)  # noqa: E741
Hook = Callable[..., None]


class Jury(Observer):
    """Asks the checkers of ``kinds`` (``STANDARD`` where not given)."""

    def __init__(self, kinds: Sequence[type[Invariant]] | None = None) -> None:
        self.story = Story(self)
        self.ground = Ground(self)
        self.record = Record(self)
        self.ledger = Ledger(self)
        self.invariants = [kind(self) for kind in (standard.STANDARD if kinds is None else kinds)]
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._asked = 0
        self._views: dict[str, View] = {}
        everybody: list[Witness] = [self.ground, self.record, self.ledger, self.story, *self.invariants]
        self._sent = _by_type(witness.sees() for witness in everybody)
        self._heard = _by_type(witness.hears() for witness in everybody)
        self._thought = _by_type(witness.thinks() for witness in everybody)
        self._hooks = {name: _overridden(name, everybody) for name in _NAMES}
        self._settled = self._hooks["settled"]
        self._adopted = self._hooks["adopted"]

    def of(self, kind: type[I]) -> I:
        """The checker of that class; KeyError where it is not asked."""
        for invariant in self.invariants:
            if isinstance(invariant, kind):
                return invariant
        raise KeyError(kind.__name__)

    def at(self, time: float, action: Callable[[], None]) -> None:
        """Call ``action`` with the first event at ``time`` or later. The world does not notice."""
        self._asked += 1
        heapq.heappush(self._due, (time, self._asked, action))

    # What the world shows

    def started(self, host: Host) -> None:
        """See ``Observer``."""
        self._call("started", host)

    def killed(self, host: Host) -> None:
        """See ``Observer``."""
        self._call("killed", host)

    def paused(self, host: Host) -> None:
        """See ``Observer``."""
        self._call("paused", host)

    def resumed(self, host: Host) -> None:
        """See ``Observer``."""
        self._call("resumed", host)

    def jumped(self, host: Host, seconds: float) -> None:
        """See ``Observer``."""
        self._call("jumped", host, seconds)

    def refused(self, host: Host, target: Host) -> None:
        """See ``Observer``."""
        self._call("refused", host, target)

    def asked(self, host: Host, errand: Errand) -> None:
        """See ``Observer``."""
        self._call("asked", host, errand)

    def answered(self, host: Host, errand: Errand, answer: Answer) -> None:
        """See ``Observer``."""
        self._call("answered", host, errand, answer)

    def stored(self, host: Host | None, deed: Deed) -> None:
        """See ``Observer``."""
        self._call("stored", host, deed)

    def withheld(self, host: Host | None) -> None:
        """See ``Observer``."""
        self._call("withheld", host)

    def lost(self, host: Host, target: Host, message: Message) -> None:
        """See ``Observer``."""
        self._call("lost", host, target, message)

    def late(self, host: Host, target: Host, message: Message) -> None:
        """See ``Observer``."""
        self._call("late", host, target, message)

    def sent(self, host: Host, target: Host | None, message: Message) -> None:
        """See ``Observer``."""
        for hook in self._sent.get(type(message), ()):
            hook(host, target, message)

    def delivered(self, host: Host, sender: Host, message: Message) -> None:
        """See ``Observer``."""
        for hook in self._heard.get(type(message), ()):
            hook(host, sender, message)

    def told_itself(self, host: Host, message: Message) -> None:
        """See ``Observer``."""
        for hook in self._thought.get(type(message), ()):
            hook(host, message)

    def effect(self, host: Host, effect: Effect) -> None:
        """See ``Observer``."""
        match effect:
            case Tether():  # a machine asks for new connections whenever it follows a new view
                self._look(host)
            case Freeze(epoch, _):
                self._call("froze", host, epoch)
            case Installed(view, reports):
                self._look(host)
                self._call("installed", host, view, reports)
            case Activated(view):
                self._look(host)
                self._call("activated", host, view)
            case Stopped(error):
                self._call("stopped", host, error)
            case Note():
                self._call("noted", host, effect)

    def settled(self, host: Host) -> None:
        """See ``Observer``."""
        if self._due and self._due[0][0] <= self.world.now:
            self._ask_due()
        for hook in self._settled:
            hook(host)

    def _look(self, host: Host) -> None:
        view = host.machine.view
        if view is not None and self._views.get(host.id) is not view:
            self._views[host.id] = view
            self.follows(host, view)

    def follows(self, host: Host, view: View) -> None:
        """``host`` follows ``view`` from now on."""
        for hook in self._adopted:
            hook(host, view)

    def _ask_due(self) -> None:
        while self._due and self._due[0][0] <= self.world.now:
            heapq.heappop(self._due)[2]()

    def _call(self, name: str, *args: Any) -> None:
        for hook in self._hooks[name]:
            hook(*args)


_NAMES = (
    "started",
    "killed",
    "paused",
    "resumed",
    "jumped",
    "refused",
    "asked",
    "answered",
    "stored",
    "withheld",
    "lost",
    "late",
    "adopted",
    "froze",
    "installed",
    "activated",
    "stopped",
    "noted",
    "settled",
)


def _overridden(name: str, witnesses: list[Witness]) -> tuple[Hook, ...]:
    """The hooks called ``name`` that do something."""
    nothing = getattr(Witness, name)
    return tuple(getattr(witness, name) for witness in witnesses if getattr(type(witness), name) is not nothing)


def _by_type(tables: Any) -> dict[type, tuple[Hook, ...]]:
    found: dict[type, list[Hook]] = {}
    for table in tables:
        for kind, hook in table.items():
            found.setdefault(kind, []).append(hook)
    return {kind: tuple(hooks) for kind, hooks in found.items()}
