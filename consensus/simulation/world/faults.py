"""What is wrong in a simulated world right now. Probabilities are per message, times in seconds.

This is what the commands of a script set, and what the network and the store look at.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from random import Random

Link = tuple[str, str]
"""(from, to): member ids. Links have a direction."""


class Spread(Enum):
    """How the time of a message lies between its bounds ``low`` and ``high``."""

    UNIFORM = "uniform"
    EXPONENTIAL = "exponential"
    """``low`` and then an exponential time with mean ``high - low``: few are much later."""

    HEAVY = "heavy"
    """A Pareto tail (shape 1.5) above ``low``, cut at 1000 times ``high - low``: one in a thousand takes 100 times as long."""

    def draw(self, low: float, high: float, rng: Random) -> float:
        """Seconds for one message."""
        if self is Spread.UNIFORM:
            return low + (high - low) * rng.random()
        if self is Spread.EXPONENTIAL:
            return low + rng.expovariate(1.0) * (high - low)
        return low + (high - low) * min(1000.0, rng.paretovariate(1.5) - 1.0)


@dataclass
class StoreFaults:
    """What is wrong with the store that all processes share, and with the ways to it. Probabilities are per step at it."""

    latency: tuple[float, float] = (0.0002, 0.001)
    """Bounds of the way there, and of the way back."""

    slow: float = 0.0
    """Each way takes up to so many seconds more."""

    away: bool = False
    """For everybody."""

    cut: set[str] = field(default_factory=set)
    """Those (ids) that do not reach it."""

    refuses: float = 0.5
    """How often whoever does not reach it learns that at once. Else it hears nothing, and what it asked for may come late."""

    lost: float = 0.0
    """No answer comes: what was asked for was done, or will be, perhaps later than anybody waits."""

    fails: float = 0.0
    """Nothing is done, and it says so."""

    deaf: float = 0.0
    """A change is not told of."""

    blind: float = 0.0
    """A value that is read cannot be opened: it may be there for others all the same."""

    def reaches(self, member_id: str) -> bool:
        """Whether that process and the store hear each other."""
        return not self.away and member_id not in self.cut

    def heal(self) -> None:
        """Nothing is wrong any more. What was under way late is still to come."""
        self.slow = self.lost = self.fails = self.deaf = self.blind = 0.0
        self.away = False
        self.cut.clear()


@dataclass
class Faults:
    """The state of the network and of the clocks of those who start; processes are crashed and paused through ``World``."""

    latency: tuple[float, float] = (0.0003, 0.0007)
    """Bounds of a message's way."""

    spread: Spread = Spread.UNIFORM

    loss: float = 0.0
    duplication: float = 0.0
    reordering: float = 0.0
    """Probability that a message is late by up to ``late``."""
    late: float = 0.2

    replay: float = 0.0
    """Probability that a copy arrives up to ``replay_late`` later, at whichever lifetime has the address then."""
    replay_late: float = 10.0

    cut: set[Link] = field(default_factory=set)
    """Links whose messages vanish."""

    lossy: dict[str, float] = field(default_factory=dict)
    """Loss of everything that a member (by id) sends or is sent."""

    lossy_links: dict[Link, float] = field(default_factory=dict)
    slow: dict[str, float] = field(default_factory=dict)
    """Seconds added to everything that a member sends or is sent."""

    clogged: set[Link] = field(default_factory=set)
    """Links that hold everything back; ``World.unclog`` releases it in a burst."""

    refused: set[Link] = field(default_factory=set)
    """(asker, target): a firewall refuses the asker's connections, though the target may live."""

    store: StoreFaults = field(default_factory=StoreFaults)

    reaping: float = 0.0
    """A supervisor that has killed a process says so up to so many seconds later, and for how long it has been gone."""

    skew: float = 0.0
    """Clocks of processes that start now are apart by up to so much."""

    drift: float = 0.0
    """Share (0 to 1) of the allowance for drift that clocks of processes that start now use up at most."""

    def cut_both(self, one: str, other: str) -> None:
        """No message between two members in either direction."""
        self.cut |= {(one, other), (other, one)}

    def cut_groups(self, groups: Iterable[Iterable[str]]) -> None:
        """No message between members of different groups; who is in none reaches all."""
        sides = [tuple(group) for group in groups]
        for index, side in enumerate(sides):
            for other in sides[index + 1 :]:
                for one in side:
                    for two in other:
                        self.cut_both(one, two)

    def heal(self) -> None:
        """A perfect network from now on, as fast as it is. What is held back stays so until ``World.unclog``."""
        self.loss = self.duplication = self.reordering = self.replay = 0.0
        self.cut.clear()
        self.lossy.clear()
        self.lossy_links.clear()
        self.slow.clear()
        self.clogged.clear()
        self.refused.clear()
        self.reaping = 0.0
        self.store.heal()

    def loss_on(self, sender: str, receiver: str) -> float:
        """Probability that a message from one to the other is lost."""
        kept = 1.0 - self.loss
        if self.lossy:
            kept *= (1.0 - self.lossy.get(sender, 0.0)) * (1.0 - self.lossy.get(receiver, 0.0))
        if self.lossy_links:
            kept *= 1.0 - self.lossy_links.get((sender, receiver), 0.0)
        return 1.0 - kept

    def faulty(self, member_id: str) -> bool:
        """Whether what goes wrong on a link of this member is its own fault, whoever is at the other end."""
        return member_id in self.lossy or member_id in self.slow

    def inherit(self, old: str, new: str) -> None:
        """The process ``new`` takes the address of ``old``: what is wrong with the way there is still wrong."""
        for links in (self.cut, self.clogged, self.refused):
            links |= {(new if one == old else one, new if two == old else two) for one, two in links if old in (one, two)}
        for table in (self.lossy, self.slow):
            if old in table:
                table[new] = table[old]
        if old in self.store.cut:
            self.store.cut.add(new)


class Failpoint:
    """A crash at an exact message: its sender dies right before, or right after, it is sent.

    Once, at the ``count``-th message of a type sent by ``name`` (``any``: by whoever) from now on.
    """

    def __init__(self, name: str, kind: str, count: int, *, before: bool) -> None:
        """``kind``: the name of a message's class, or ``any``."""
        self.name = name
        self.kind = kind
        self.before = before
        self._left = max(1, count)

    def triggers(self, sender: str, kind: str) -> bool:
        """``sender`` is about to send a message of type ``kind``: whether that is the one."""
        if self._left <= 0 or self.name not in ("any", sender) or self.kind not in ("any", kind):
            return False
        self._left -= 1
        return self._left == 0


def triggered(failpoints: list[Failpoint], sender: str, kind: str) -> Failpoint | None:
    """The failpoint that a message triggers, taken out of ``failpoints``; every one counts the message."""
    found = next((point for point in [each for each in failpoints if each.triggers(sender, kind)]), None)
    if found is not None:
        failpoints.remove(found)
    return found
