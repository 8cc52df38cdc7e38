"""How the faults of a random history are drawn: what each adds to a history in the making.

How strong a fault is (which loss, how long a pause) is drawn, too. The events that end a fault are drawn together with it.
"""

# ruff: noqa: D103 - the table in ``faults`` says in words what each of them adds

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from ...config import Config
from ..world.timeline import allowance
from .commands import COMMANDS
from .scenario import Event

KINDS = (
    "Accept",
    "Accept",
    "Prepare",
    "Install",
    "Install",
    "Activate",
    "FlushRequest",
    "Chosen",
    "Accepted",
    "Promise",
    "Ready",
)
"""At whose messages somebody dies: mostly the coordinator's."""

Numbers = Sequence[float]
"""One of them is drawn."""


class Draft:
    """A history in the making: its events so far, and the processes that should be alive."""

    def __init__(self, rng: Random, size: int) -> None:
        self.rng = rng
        self.now = 0.0
        self.events: list[Event] = []
        self.alive = [f"m{index}" for index in range(size)]
        self.most = size + 4
        """Nobody joins beyond that many."""
        self._joiners = 0

    def add(self, command: str, *words: object, after: float = 0.0) -> None:
        """An event ``after`` seconds from now."""
        self.events.append(Event(round(self.now + after, 6), command, tuple(str(word) for word in words)))

    def some(self, most: int) -> list[str]:
        """One to ``most`` of the living."""
        return self.rng.sample(self.alive, min(len(self.alive), self.rng.randint(1, most))) if self.alive else []

    def one(self) -> str:
        """One of the living."""
        return self.rng.choice(self.alive) if self.alive else "m0"

    def gone(self, names: Sequence[str]) -> None:
        """These will not be alive from now on."""
        self.alive = [name for name in self.alive if name not in names]

    def via(self, without: str = "") -> list[str]:
        """Up to three of the living, to join through."""
        return self.rng.sample(known, min(3, len(known))) if (known := [n for n in self.alive if n != without]) else []

    def joiner(self) -> str:
        """The name of another process."""
        self._joiners += 1
        return f"j{self._joiners - 1}"


Draw = Callable[[Draft], None]

# Faults that look alike


def sets(command: str, *values: Numbers) -> Draw:
    """The command, with one of each ``values``."""
    return lambda draft: draft.add(command, *(draft.rng.choice(each) for each in values))


def of_one(command: str, *values: Numbers) -> Draw:
    """The same about one of the living."""
    return lambda draft: draft.add(command, draft.one(), *(draft.rng.choice(each) for each in values))


def undone(command: str, chance: float, after: Numbers, most: Sequence[int] = ()) -> Draw:
    """The command about one of the living (up to one of ``most`` of them), mostly (``chance``) undone later."""
    undo = COMMANDS[command].undo

    def draw(draft: Draft) -> None:
        for name in draft.some(draft.rng.choice(most)) if most else [draft.one()]:
            draft.add(command, name)
            if draft.rng.random() < chance:
                draft.add(undo, name, after=draft.rng.choice(after))

    return draw


def store_doubt(command: str, shares: Numbers) -> Draw:
    def draw(draft: Draft) -> None:
        draft.add(command, draft.rng.choice(shares))
        if draft.rng.random() < 0.6:
            draft.add(command, 0.0, after=draft.rng.choice([0.1, 1.0, 3.0]))

    return draw


def sides(count: int, left_out: int = 0) -> Draw:
    """Groups of random sizes that do not reach each other."""

    def draw(draft: Draft) -> None:
        names = draft.rng.sample(draft.alive, len(draft.alive))[left_out:]
        if len(names) >= count:
            cuts = sorted(draft.rng.sample(range(1, len(names)), count - 1))
            groups = [names[start:end] for start, end in zip([0, *cuts], [*cuts, len(names)], strict=True)]
            draft.add("split", *(",".join(group) for group in groups))

    return draw


def pairs(command: str, most: int, *values: Numbers) -> Draw:
    """One to ``most`` links."""

    def draw(draft: Draft) -> None:
        for _ in range(draft.rng.randint(1, most)):
            if len(draft.alive) > 1:
                draft.add(command, *draft.rng.sample(draft.alive, 2), *(draft.rng.choice(each) for each in values))

    return draw


# Processes


def crash(draft: Draft) -> None:
    victims = draft.some(draft.rng.choice([1, 1, 1, 2, 3]))
    if victims and (len(victims) < len(draft.alive) or draft.rng.random() < 0.1):
        draft.add("kill", *victims)
        draft.gone(victims)


def restart(draft: Draft) -> None:
    name = draft.one()
    if others := draft.via(name):
        draft.add("restart", name, *others)


def trap(draft: Draft) -> None:
    rng = draft.rng
    when = rng.choice(["before", "after"])
    name = "any" if rng.random() < 0.8 else draft.one()
    draft.add("trap", name, rng.choice(KINDS), rng.choice([1, 1, 2, 2, 3, 4, 6, 9]), when)
    draft.add("kill" if rng.random() < 0.7 else "leave", draft.one(), after=0.002)  # a reason for a view change


def majority(draft: Draft) -> None:
    if len(draft.alive) > 2:
        victims = draft.rng.sample(draft.alive, len(draft.alive) // 2 + 1)
        draft.add("kill", *victims)
        draft.gone(victims)


def survivor(draft: Draft) -> None:
    if len(draft.alive) > 1:
        victims = draft.rng.sample(draft.alive, len(draft.alive) - 1)
        for name in victims:
            draft.add("kill", name, after=draft.rng.choice([0.0, 0.0, 0.005, 0.03]))
        draft.gone(victims)


# Network


def loss(draft: Draft) -> None:
    rng = draft.rng
    where = rng.randrange(3)
    if where == 0:
        draft.add("loss", rng.choice([0.05, 0.1, 0.3]))
    elif where == 1:
        for name in draft.some(2):
            draft.add("lossy", name, rng.choice([0.3, 0.5, 0.8]))
    elif len(draft.alive) > 1:
        pairs("lossy_link", 4, [0.3, 0.8])(draft)


def latency(draft: Draft) -> None:
    low = draft.rng.choice([0.0001, 0.001, 0.02])
    spread = draft.rng.choice(["uniform", "exponential", "heavy"])
    draft.add("latency", spread, low, low * draft.rng.choice([1, 2, 5]))


def flap(draft: Draft) -> None:
    name, period = draft.one(), draft.rng.choice([0.2, 0.6, 1.0, 2.0, 20.0])
    for turn in range(min(4, max(1, int(4.0 / period)))):
        draft.add("isolate", name, after=turn * period)
        draft.add("rejoin", name, after=(turn + 0.5) * period if period < 10 else 3.0)


# Clocks


def jump(draft: Draft) -> None:
    """Within what the drift leaves over at the rates that a history draws at most: a tenth of the allowance a T_excl."""
    if len(draft.alive) > 1:
        config = Config()
        draft.add("jump", draft.one(), round(0.05 * allowance(config.drift) * config.exclude_after, 6))


# Membership


def join(draft: Draft) -> None:
    for _ in range(draft.rng.choice([1, 1, 2, 4])):
        via = draft.via()
        if via and len(draft.alive) < draft.most:
            draft.add("start", name := draft.joiner(), *via, after=draft.rng.choice([0.0, 0.0, 0.01]))
            draft.alive.append(name)


def join_and_crash(draft: Draft) -> None:
    if via := draft.via():
        draft.add("start", name := draft.joiner(), *via)
        draft.add("kill", name, after=draft.rng.choice([0.001, 0.05, 0.11, 0.13, 1.0, 1.02, 1.15]))


def leave(draft: Draft) -> None:
    if leavers := draft.some(draft.rng.choice([1, 1, 2, 3])):
        draft.add("leave", *leavers)
        draft.gone(leavers)


def reset(draft: Draft) -> None:
    for turn, name in enumerate(draft.rng.sample(draft.alive, min(len(draft.alive), draft.rng.randint(1, 4)))):
        blamed = draft.via(name)[: draft.rng.randint(0, 2)]
        draft.add("hint", name, *blamed, after=0.001 * turn)


def refuse(draft: Draft) -> None:
    if len(draft.alive) > 1:
        pairs("refuse", 3)(draft)


# The shared store


def store_away(draft: Draft) -> None:
    rng = draft.rng
    who = () if rng.random() < 0.5 else tuple(draft.some(2))
    draft.add("store_away", *who)
    if rng.random() < 0.8:
        draft.add("store_back", *who, after=rng.choice([0.005, 0.05, 0.5, 2.0, 4.0]))


def store_slow(draft: Draft) -> None:
    draft.add("store_slow", slow := draft.rng.choice([0.01, 0.1, 0.4, 1.0]))
    if slow > 0.2 and draft.rng.random() < 0.7:
        draft.add("store_slow", 0.0, after=draft.rng.choice([0.5, 2.0, 4.0]))


def store_strange(draft: Draft) -> None:
    for _ in range(draft.rng.choice([1, 1, 3])):
        draft.add("store_strange", draft.rng.choice(["next", "beyond", "parent", "lease", "stray"]))


def store_race(draft: Draft) -> None:
    rng = draft.rng
    if len(draft.alive) < 3:
        return
    draft.add("store_slow", rng.choice([0.005, 0.02, 0.1]))
    draft.add("kill", victim := draft.one())
    draft.gone([victim])
    for name in draft.some(2):
        draft.add("pause", name, after=(wait := rng.choice([0.006, 0.01, 0.02, 0.05, 0.15])))
        draft.add("resume", name, after=wait + rng.choice([0.3, 1.0, 2.2, 3.0, 5.0]))
