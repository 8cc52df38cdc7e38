"""Random histories: from a seed and a menu of faults to a script of timed events (see ``scenario``).

It is drawn without looking at a world, so that it can be printed, replayed, and shortened. What is drawn tells what was meant;
an event about somebody who is dead by then does nothing.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from ..config import Config, Policy
from .clock import allowance
from .menu import ALL, Menu
from .scenario import Event, Scenario

__all__ = ["SIZES", "History", "draw"]

SIZES = (1, 2, 3, 3, 4, 4, 4, 5, 5, 5, 8, 8, 16)
"""Founders of a random history; small ones are the ones that fork."""

GAPS = (0.003, 0.01, 0.02, 0.1, 0.3, 1.0, 2.5)
"""Seconds between two faults: within a view change, within a suspicion, longer than both."""

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

PACE = 1.5
"""Mean seconds between two faults of a history of a given length."""

TALL = 12
"""From so many members on a history is shorter: its messages grow with the square."""


def draw(
    seed: int,
    menu: Menu = ALL,
    size: int | None = None,
    faults: int | None = None,
    seconds: float | None = None,
    *,
    policy: str = "",
) -> Scenario:
    """A history. ``size``: founders (None: drawn from ``SIZES``); ``faults``: how many to draw (None: 3 to 12).

    ``seconds``: the safety phase takes so long, with a fault every ``PACE`` seconds or so (None: faults soon after each other).
    ``policy``: "storage" for a history with a shared store, its kind drawn, too.
    """
    history = History(seed, menu, size, store=policy == Policy.STORAGE.value)
    return history.tell(faults) if seconds is None else history.fill(seconds)


class History:
    """Draws one history; keeps count of who should be alive."""

    def __init__(self, seed: int, menu: Menu, size: int | None, *, store: bool = False) -> None:
        self._seed = seed
        self._store = store
        self._rng = Random(f"history {seed}")
        self._weights = {name: weight for name, weight in menu.weights().items() if hasattr(self, f"_{name}")}
        if not store:
            self._weights = {name: weight for name, weight in self._weights.items() if not name.startswith("store_")}
        self._clock = menu.clock
        self._refuses = bool(menu.membership.refuse) and self._rng.random() < 0.2
        if not self._refuses:
            self._weights.pop("refuse", None)
        self._size = size if size is not None else self._rng.choice(SIZES)
        self._alive = [f"m{index}" for index in range(self._size)]
        self._most = self._size + 4
        self._joiners = 0
        self._pace: float | None = None
        """Mean seconds between two faults; None: drawn from ``GAPS``."""
        self._events: list[Event] = []
        self._now = 0.0

    def fill(self, seconds: float) -> Scenario:
        """So many seconds, at an even pace; events that would come later are left out."""
        self._pace = PACE
        told = self.tell(round(1.5 * seconds / PACE) + 3)
        events = tuple(event for event in told.events if event.at <= seconds)
        return replace(told, events=events, rest=round(seconds - (events[-1].at if events else 0.0), 6))

    def tell(self, faults: int | None) -> Scenario:
        """The whole of it."""
        rng = self._rng
        early = rng.random() < 0.15
        fences = rng.random() < 0.25
        mesh_limit = 32 if rng.random() < 0.75 or self._size < 3 else 3
        if not early and rng.random() < 0.5:
            self._now = 0.6  # everybody is in touch with everybody
        count = faults if faults is not None else rng.randrange(3, 8 if self._size >= TALL else 13)
        names, weights = list(self._weights), list(self._weights.values())
        for _ in range(count if any(weights) else 0):
            getattr(self, f"_{rng.choices(names, weights)[0]}")()
            gaps = GAPS[: 6 if self._size >= TALL else 7]
            self._now += rng.choice(gaps) if self._pace is None else rng.expovariate(1.0 / self._pace)
        self._events.sort(key=lambda event: event.at)  # stable: those of one moment stay in their order
        told = Scenario(
            self._seed,
            self._size,
            fences,
            not self._refuses,
            mesh_limit,
            1e5 if self._clock.skew else 0.0,
            rng.choice([0.0, 0.5, 0.9]) if self._clock.drift else 0.0,
            early,
            rest=rng.choice([0.0, 0.02, 0.5]),
            events=tuple(self._events),
        )
        if not self._store:
            return told
        leases, files, notices = (rng.random() < chance for chance in (0.5, 0.5, 0.7))
        alone = leases and rng.random() < 0.5  # only leases tell who else is there
        return replace(told, policy=Policy.STORAGE.value, leases=leases, files=files, notices=notices, alone=alone)

    # Helpers

    def _add(self, verb: str, *words: object, after: float = 0.0) -> None:
        self._events.append(Event(round(self._now + after, 6), verb, tuple(str(word) for word in words)))

    def _some(self, most: int) -> list[str]:
        """One to ``most`` of the living."""
        return self._rng.sample(self._alive, min(len(self._alive), self._rng.randint(1, most))) if self._alive else []

    def _one(self) -> str:
        return self._rng.choice(self._alive) if self._alive else "m0"

    def _gone(self, names: list[str]) -> None:
        self._alive = [name for name in self._alive if name not in names]

    def _via(self, without: str = "") -> list[str]:
        return self._rng.sample(known, min(3, len(known))) if (known := [n for n in self._alive if n != without]) else []

    # Processes

    def _crash(self) -> None:
        victims = self._some(self._rng.choice([1, 1, 1, 2, 3]))
        if victims and (len(victims) < len(self._alive) or self._rng.random() < 0.1):
            self._add("kill", *victims)
            self._gone(victims)

    def _restart(self) -> None:
        name = self._one()
        others = self._via(name)
        if others:
            self._add("restart", name, *others)

    def _pause(self) -> None:
        for name in self._some(self._rng.choice([1, 1, 2, 3])):
            self._add("pause", name)
            if self._rng.random() < 0.8:
                self._add("resume", name, after=self._rng.choice([0.02, 0.3, 1.0, 1.9, 2.2, 4.0]))

    def _stall(self) -> None:
        self._add("stall", self._one(), self._rng.choice([0.01, 0.1, 0.5, 1.5, 2.5]))

    def _trap(self) -> None:
        rng = self._rng
        when = rng.choice(["before", "after"])
        name = "any" if rng.random() < 0.8 else self._one()
        self._add("trap", name, rng.choice(KINDS), rng.choice([1, 1, 2, 2, 3, 4, 6, 9]), when)
        self._add("kill" if rng.random() < 0.7 else "leave", self._one(), after=0.002)  # a reason for a view change

    def _majority(self) -> None:
        if len(self._alive) > 2:
            victims = self._rng.sample(self._alive, len(self._alive) // 2 + 1)
            self._add("kill", *victims)
            self._gone(victims)

    def _survivor(self) -> None:
        if len(self._alive) > 1:
            victims = self._rng.sample(self._alive, len(self._alive) - 1)
            for name in victims:
                self._add("kill", name, after=self._rng.choice([0.0, 0.0, 0.005, 0.03]))
            self._gone(victims)

    # Network

    def _one_way(self) -> None:
        for _ in range(self._rng.randint(1, 3)):
            if len(self._alive) > 1:
                self._add("cut", *self._rng.sample(self._alive, 2))

    def _isolate(self) -> None:
        self._add("isolate", name := self._one())
        if self._rng.random() < 0.5:
            self._add("rejoin", name, after=self._rng.choice([0.1, 1.0, 1.9, 2.2, 4.0]))

    def _sides(self, count: int, left_out: int = 0) -> None:
        names = self._rng.sample(self._alive, len(self._alive))[left_out:]
        if len(names) >= count:
            cuts = sorted(self._rng.sample(range(1, len(names)), count - 1))
            groups = [names[start:end] for start, end in zip([0, *cuts], [*cuts, len(names)], strict=True)]
            self._add("split", *(",".join(group) for group in groups))

    def _halves(self) -> None:
        self._sides(2)

    def _three_way(self) -> None:
        self._sides(3)

    def _bridge(self) -> None:
        self._sides(2, left_out=1)

    def _loss(self) -> None:
        rng = self._rng
        where = rng.randrange(3)
        if where == 0:
            self._add("loss", rng.choice([0.05, 0.1, 0.3]))
        elif where == 1:
            for name in self._some(2):
                self._add("lossy", name, rng.choice([0.3, 0.5, 0.8]))
        elif len(self._alive) > 1:
            for _ in range(rng.randint(1, 4)):
                self._add("lossy_link", *rng.sample(self._alive, 2), rng.choice([0.3, 0.8]))

    def _duplication(self) -> None:
        self._add("duplication", self._rng.choice([0.1, 0.5]))

    def _reordering(self) -> None:
        self._add("reordering", self._rng.choice([0.1, 0.3]), self._rng.choice([0.02, 0.2, 1.0, 3.0]))

    def _clog(self) -> None:
        self._add("clog", name := self._one())
        if self._rng.random() < 0.8:
            self._add("unclog", name, after=self._rng.choice([0.05, 0.5, 1.9, 3.0]))

    def _slow(self) -> None:
        self._add("slow", self._one(), self._rng.choice([0.01, 0.05, 0.2, 0.6]))

    def _latency(self) -> None:
        low = self._rng.choice([0.0001, 0.001, 0.02])
        spread = self._rng.choice(["uniform", "exponential", "heavy"])
        self._add("latency", spread, low, low * self._rng.choice([1, 2, 5]))

    def _flap(self) -> None:
        name, period = self._one(), self._rng.choice([0.2, 0.6, 1.0, 2.0, 20.0])
        for turn in range(min(4, max(1, int(4.0 / period)))):
            self._add("isolate", name, after=turn * period)
            self._add("rejoin", name, after=(turn + 0.5) * period if period < 10 else 3.0)

    def _replay(self) -> None:
        self._add("replay", self._rng.choice([0.02, 0.1, 0.3]), self._rng.choice([1.0, 5.0, 10.0]))

    def _heal(self) -> None:
        self._add("heal")

    # Clock

    def _jump(self) -> None:
        """Within what the drift leaves over at the rates that ``tell`` draws at most: a tenth of the allowance a T_excl."""
        if len(self._alive) > 1:
            config = Config()
            self._add("jump", self._one(), round(0.05 * allowance(config.drift) * config.exclude_after, 6))

    # Membership

    def _new(self) -> str:
        self._joiners += 1
        return f"j{self._joiners - 1}"

    def _join(self) -> None:
        for _ in range(self._rng.choice([1, 1, 2, 4])):
            via = self._via()
            if via and len(self._alive) < self._most:
                self._add("start", name := self._new(), *via, after=self._rng.choice([0.0, 0.0, 0.01]))
                self._alive.append(name)

    def _join_and_crash(self) -> None:
        via = self._via()
        if via:
            self._add("start", name := self._new(), *via)
            self._add("kill", name, after=self._rng.choice([0.001, 0.05, 0.11, 0.13, 1.0, 1.02, 1.15]))

    def _leave(self) -> None:
        if leavers := self._some(self._rng.choice([1, 1, 2, 3])):
            self._add("leave", *leavers)
            self._gone(leavers)

    def _reset(self) -> None:
        for turn, name in enumerate(self._rng.sample(self._alive, min(len(self._alive), self._rng.randint(1, 4)))):
            blamed = self._via(name)[: self._rng.randint(0, 2)]
            self._add("hint", name, *blamed, after=0.001 * turn)

    def _refuse(self) -> None:
        if len(self._alive) > 1:
            for _ in range(self._rng.randint(1, 3)):
                self._add("refuse", *self._rng.sample(self._alive, 2))

    # Store

    def _store_away(self) -> None:
        rng = self._rng
        who = () if rng.random() < 0.5 else tuple(self._some(2))
        self._add("store_away", *who)
        if rng.random() < 0.8:
            self._add("store_back", *who, after=rng.choice([0.005, 0.05, 0.5, 2.0, 4.0]))

    def _store_slow(self) -> None:
        self._add("store_slow", slow := self._rng.choice([0.01, 0.1, 0.4, 1.0]))
        if slow > 0.2 and self._rng.random() < 0.7:
            self._add("store_slow", 0.0, after=self._rng.choice([0.5, 2.0, 4.0]))

    def _store_lost(self) -> None:
        self._doubt("store_lost", self._rng.choice([0.05, 0.2, 0.5]))

    def _store_fails(self) -> None:
        self._doubt("store_fails", self._rng.choice([0.05, 0.3, 0.8]))

    def _store_deaf(self) -> None:
        self._add("store_deaf", self._rng.choice([0.3, 1.0]))

    def _store_blind(self) -> None:
        self._doubt("store_blind", self._rng.choice([0.1, 0.5, 1.0]))

    def _store_strange(self) -> None:
        for _ in range(self._rng.choice([1, 1, 3])):
            self._add("store_strange", self._rng.choice(["next", "beyond", "parent", "lease", "stray"]))

    def _doubt(self, verb: str, chance: float) -> None:
        self._add(verb, chance)
        if self._rng.random() < 0.6:
            self._add(verb, 0.0, after=self._rng.choice([0.1, 1.0, 3.0]))

    def _store_race(self) -> None:
        """A death is a reason to create a record; those who may do so sleep on the way, one after the other."""
        rng = self._rng
        if len(self._alive) < 3:
            return
        self._add("store_slow", rng.choice([0.005, 0.02, 0.1]))
        self._add("kill", victim := self._one())
        self._gone([victim])
        for name in self._some(2):
            self._add("pause", name, after=(wait := rng.choice([0.006, 0.01, 0.02, 0.05, 0.15])))
            self._add("resume", name, after=wait + rng.choice([0.3, 1.0, 2.2, 3.0, 5.0]))
