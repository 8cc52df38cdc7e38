"""What there is to see in a simulated world. Checkers, recorders and pictures are observers; none changes anything.

An observer overrides the hooks that it needs, and only those are called. Messages may be asked for by type: an observer that
wants ACCEPT costs nothing at a ping.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from ...border import Activated, Freeze, Installed, Stopped
from ...config import Config
from ...errors import StoppedError
from ...messages import Message
from ...protocol.state.effects import Effect, KeepConnections, Note
from ...store_requests import StoreOp, StoreReply
from ...view import View
from .faults import Faults
from .host import Host
from .in_memory_store import Change

Sees = Mapping[type, Callable[[Host, Host | None, Any], None]]
"""By type of message: ``(sender, receiver, message)``."""

Hears = Mapping[type, Callable[[Host, Host, Any], None]]
"""By type of message: ``(receiver, sender, message)``."""

Thinks = Mapping[type, Callable[[Host, Any], None]]
"""By type of message: ``(host, message)``."""

Hook = Callable[..., None]


class ObservedWorld(Protocol):
    """What an observer may look at."""

    now: float
    config: Config
    faults: Faults
    hosts: dict[str, Host]


class Observer:
    """Every hook does nothing here. A violated invariant is an AssertionError raised by the hook that sees it."""

    world: ObservedWorld
    """What is looked at, from ``attach`` on."""

    def attach(self, world: ObservedWorld) -> None:
        """``world`` is looked at from now on."""
        self.world = world

    @property
    def now(self) -> float:
        """True time."""
        return self.world.now

    def parts(self) -> Sequence[Observer]:
        """Observers that look on together with this one, in the order in which they are shown things."""
        return ()

    # Processes

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

    # Messages

    def sees(self) -> Sees:
        """Messages of interest as they are sent, whether they arrive or not."""
        return {}

    def hears(self) -> Hears:
        """Messages of interest as they arrive, just before they are handled."""
        return {}

    def thinks(self) -> Thinks:
        """Messages of interest that a member sends to itself, just before it handles them."""
        return {}

    def sent(self, host: Host, target: Host | None, message: Message) -> None:
        """``host`` sends to whoever is at the address (nobody: None), whether it will arrive or not.

        What a member sends to itself is shown by ``told_itself``.
        """

    def delivered(self, host: Host, sender: Host, message: Message) -> None:
        """A message arrives at ``host``, which handles it next."""

    def told_itself(self, host: Host, message: Message) -> None:
        """``host`` handles a message of its own next."""

    def lost(self, host: Host, target: Host, message: Message) -> None:
        """The network swallows what ``host`` just sent to ``target``."""

    def late(self, host: Host, target: Host, message: Message) -> None:
        """The network delivers what ``host`` just sent to ``target`` later than a healthy one would."""

    def refused(self, host: Host, target: Host) -> None:
        """A firewall refuses ``host``'s connection to ``target``, which lives."""

    # The shared store

    def asked(self, host: Host, request: StoreOp) -> None:
        """``host`` wants something of the store."""

    def answered(self, host: Host, request: StoreOp, answer: StoreReply) -> None:
        """``host`` is told what came of that, and handles it next."""

    def stored(self, host: Host | None, change: Change) -> None:
        """The store is changed for ``host``, which may be dead by now (None: by the script)."""

    def withheld(self, host: Host | None) -> None:
        """The store, or the way to it, fails ``host`` (None: somebody)."""

    # What a machine decides

    def effect(self, host: Host, effect: Effect) -> None:
        """``host``'s machine wants something done; it is carried out next."""

    def adopted(self, host: Host, view: View) -> None:
        """``host`` follows a newer chosen view."""

    def froze(self, host: Host, epoch: int) -> None:
        """The data plane of ``host`` is to freeze, for that epoch."""

    def installed(self, host: Host, view: View, reports: Mapping[str, bytes]) -> None:
        """``host`` builds the group of ``view`` from everybody's reports."""

    def activated(self, host: Host, view: View) -> None:
        """``host`` acts in ``view`` from now on."""

    def stopped(self, host: Host, error: StoppedError) -> None:
        """The lifetime of ``host`` is over though its process may live."""

    def noted(self, host: Host, note: Note) -> None:
        """``host`` leaves a remark in its log."""

    def settled(self, host: Host) -> None:
        """``host`` has handled something, and all its effects were carried out.

        Called after every event: spend nothing here.
        """


_OTHERS = ("attach", "now", "parts", "sees", "hears", "thinks")
_HOOKS = tuple(name for name in vars(Observer) if name[0] != "_" and name not in _OTHERS)


class Observers:
    """All observers of one world, and what each of them wants to be shown."""

    def __init__(self) -> None:
        self._all: list[Observer] = []
        self._hooks: dict[str, list[Hook]] = {name: [] for name in _HOOKS}
        self._seen: dict[type, list[Hook]] = {}
        self._heard: dict[type, list[Hook]] = {}
        self._thought: dict[type, list[Hook]] = {}
        self._sent, self._delivered, self._told = (self._hooks[name] for name in ("sent", "delivered", "told_itself"))
        self._effect, self._settled = self._hooks["effect"], self._hooks["settled"]
        self._views: dict[str, View] = {}
        """What each process follows, as far as it was shown."""

    def __iter__(self) -> Iterator[Observer]:
        return iter(self._all)

    def add(self, observer: Observer) -> None:
        """Show it everything from now on."""
        self._all.append(observer)
        for name, hooks in self._hooks.items():
            if getattr(type(observer), name) is not getattr(Observer, name):
                hooks.append(getattr(observer, name))
        tables: tuple[tuple[dict[type, list[Hook]], Mapping[type, Hook]], ...] = (
            (self._seen, observer.sees()),
            (self._heard, observer.hears()),
            (self._thought, observer.thinks()),
        )
        for known, table in tables:
            for kind, hook in table.items():
                known.setdefault(kind, []).append(hook)

    def show(self, hook: str, *what: Any) -> None:
        """Call a hook of every observer that overrides it."""
        for each in self._hooks[hook]:
            each(*what)

    def sent(self, host: Host, target: Host | None, message: Message) -> None:
        """See ``Observer``."""
        for hook in self._seen.get(type(message), ()):
            hook(host, target, message)
        for hook in self._sent:
            hook(host, target, message)

    def delivered(self, host: Host, sender: Host, message: Message) -> None:
        """See ``Observer``."""
        for hook in self._heard.get(type(message), ()):
            hook(host, sender, message)
        for hook in self._delivered:
            hook(host, sender, message)

    def told_itself(self, host: Host, message: Message) -> None:
        """See ``Observer``."""
        for hook in self._thought.get(type(message), ()):
            hook(host, message)
        for hook in self._told:
            hook(host, message)

    def effect(self, host: Host, effect: Effect) -> None:
        """See ``Observer``: ``effect``, and the hook that stands for this kind of effect."""
        match effect:
            case KeepConnections():  # a machine asks for new connections whenever it follows a new view
                self._look(host)
            case Freeze(epoch, _):
                self.show("froze", host, epoch)
            case Installed(view, reports):
                self._look(host)
                self.show("installed", host, view, reports)
            case Activated(view):
                self._look(host)
                self.show("activated", host, view)
            case Stopped(error):
                self.show("stopped", host, error)
            case Note():
                self.show("noted", host, effect)
        for hook in self._effect:
            hook(host, effect)

    def settled(self, host: Host) -> None:
        """See ``Observer``."""
        for hook in self._settled:
            hook(host)

    def _look(self, host: Host) -> None:
        view = host.machine.view
        if view is not None and self._views.get(host.id) is not view:
            self._views[host.id] = view
            self.show("adopted", host, view)
