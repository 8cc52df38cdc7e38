"""All faults that a random history may contain, as one struct, and as one line of text.

A number is a weight: how often a fault is drawn, compared to the others (0: never). ``Menu.parse("crash,halves=3,-pause")`` and
``str(menu)`` are inverse to each other. How strong a fault is (which loss, how long a pause) is drawn by ``history``.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

__all__ = ["ALL", "NONE", "ClockMenu", "MembershipMenu", "Menu", "NetworkMenu", "ProcessMenu", "StoreMenu"]


@dataclass(frozen=True)
class ProcessMenu:
    """What happens to processes."""

    crash: float = 3.0
    """SIGKILL of one to three."""

    restart: float = 1.0
    """Killed, and another lifetime starts at the same address: old packets reach it."""

    pause: float = 2.0
    """SIGSTOP, shorter or longer than suspicion; sometimes never continued before the network heals."""

    stall: float = 1.0
    """The agent handles nothing for a while, though the process lives."""

    trap: float = 2.0
    """A member, mostly the coordinator, dies right before or after its k-th message of some kind."""

    majority: float = 0.5
    """More than half are killed at once."""

    survivor: float = 0.5
    """All but one are killed at once."""


@dataclass(frozen=True)
class NetworkMenu:
    """What happens to messages."""

    one_way: float = 1.0
    """A few links lose everything in one direction."""

    isolate: float = 1.0
    halves: float = 1.0
    three_way: float = 0.5
    bridge: float = 0.5
    """Two groups that only one member can reach both of."""

    loss: float = 1.0
    """Up to 0.3 everywhere, or up to 0.8 at a few members or on a few links."""

    duplication: float = 0.5
    reordering: float = 0.5
    clog: float = 1.0
    """Some member's links hold everything back, and release it in a burst."""

    slow: float = 0.5
    """Everything from and to some member is late."""

    latency: float = 0.5
    """Another distribution of latencies: wide areas, long tails."""

    flap: float = 0.5
    """Somebody comes and goes, with a period from 0.2 to 20 s."""

    replay: float = 0.5
    """Old packets arrive again, later lifetimes and views included."""

    heal: float = 3.0
    """Not a fault: the network is perfect again, until the next one."""


@dataclass(frozen=True)
class ClockMenu:
    """What is wrong with clocks; 0 or 1: whether it is. All within what the protocol is promised."""

    skew: float = 1.0
    drift: float = 1.0
    jump: float = 0.5
    """Clocks step forward by what the drift leaves over."""


@dataclass(frozen=True)
class MembershipMenu:
    """Who comes, who goes, and false alarms."""

    join: float = 2.0
    """One to four at once, through several members."""

    join_and_crash: float = 1.0
    leave: float = 1.0
    reset: float = 1.0
    """Data planes fail and blame healthy neighbours, one after the other."""

    refuse: float = 0.5
    """A firewall refuses the connections of living members; ``trust_refused`` is off in histories that contain it."""


@dataclass(frozen=True)
class StoreMenu:
    """What happens to the store that all share, in histories that have one; wiped it is by scripts alone."""

    store_away: float = 2.0
    """Nobody reaches it for a while, or one does not."""

    store_slow: float = 1.0
    store_lost: float = 1.5
    """Answers are lost: what was asked for is done at once, late, or never."""

    store_fails: float = 1.0
    store_deaf: float = 0.5
    """Nobody is told of changes."""

    store_blind: float = 1.0
    """Some of what is read cannot be opened, as if its writer had another secret."""

    store_strange: float = 1.5
    """Somebody without a secret writes garbage: over leases and old records, and where the next ones belong."""

    store_race: float = 1.5
    """Somebody sleeps in the middle of what it asks of the store, while others go on."""


_PARTS = (
    ("process", ProcessMenu),
    ("network", NetworkMenu),
    ("clock", ClockMenu),
    ("membership", MembershipMenu),
    ("store", StoreMenu),
)


@dataclass(frozen=True)
class Menu:
    """Weights of all faults; the default has every fault."""

    process: ProcessMenu = field(default_factory=ProcessMenu)
    network: NetworkMenu = field(default_factory=NetworkMenu)
    clock: ClockMenu = field(default_factory=ClockMenu)
    membership: MembershipMenu = field(default_factory=MembershipMenu)
    store: StoreMenu = field(default_factory=StoreMenu)

    def weights(self) -> dict[str, float]:
        """Every fault by name, in a fixed order."""
        return {item.name: getattr(getattr(self, part), item.name) for part, kind in _PARTS for item in fields(kind)}

    @classmethod
    def of(cls, weights: dict[str, float]) -> Menu:
        """Exactly these faults; ValueError for a name that there is not, or a negative weight."""
        for name, weight in weights.items():
            if name not in NAMES:
                raise ValueError(f"no fault is called {name!r}: choose from all, none, {', '.join(NAMES)}")
            if not 0.0 <= weight < float("inf"):
                raise ValueError(f"{name}={weight:g}: a weight is a number of at least 0")
        parts: dict[str, Any] = {
            part: kind(**{item.name: float(weights.get(item.name, 0.0)) for item in fields(kind)}) for part, kind in _PARTS
        }
        return cls(**parts)

    @classmethod
    def parse(cls, text: str) -> Menu:
        """``all``, ``none``, or names separated by commas: ``crash``, ``loss=3`` (a weight), ``-pause`` (not that).

        Starts from nothing, unless the first word is ``all`` or takes something away.
        """
        words = [word.strip() for word in text.split(",") if word.strip()]
        weights = ALL.weights() if words and words[0].startswith("-") else {}
        for word in words:
            name, _, number = word.removeprefix("-").partition("=")
            name = name.strip().replace("-", "_")
            if name in ("all", "none"):
                weights = ALL.weights() if name == "all" else {}
            elif word.startswith("-"):
                if name not in NAMES:
                    raise ValueError(f"no fault is called {name!r}: choose from all, none, {', '.join(NAMES)}")
                weights[name] = 0.0
            else:
                try:
                    weights[name] = float(number) if number else ALL.weights().get(name, 1.0)
                except ValueError:
                    raise ValueError(f"{word!r} is no weight: write {name}=2") from None
        return cls.of(weights)

    def without(self, *names: str) -> Menu:
        """The same without some faults."""
        return Menu.of({name: 0.0 if name in names else weight for name, weight in self.weights().items()})

    def __str__(self) -> str:
        weights = self.weights()
        if weights == ALL.weights():
            return "all"
        usual = ALL.weights()
        words = [name if weights[name] == usual[name] else f"{name}={weights[name]:g}" for name in NAMES if weights[name]]
        return ",".join(words) or "none"


NAMES: tuple[str, ...] = tuple(item.name for _, kind in _PARTS for item in fields(kind))
ALL = Menu()
NONE = Menu.of({})
