"""Playing a history: a safety phase with every fault, then a healed network on which the living must agree again."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from ...config import Config
from ..invariants.checkers import judged
from ..invariants.judgement import Verdict, judge
from ..world.host import MakePlane, StubPlane
from ..world.observer import Observer
from ..world.store import Character
from ..world.world import World
from .commands import perform
from .scenario import Scenario, ScriptError

Facts = Callable[[str], Mapping[str, str]]
"""What the process with that name advertises."""

FOUNDING = 30.0
"""Seconds that an undisturbed founding may take."""


@dataclass(frozen=True)
class Result:
    """What became of a history. ``violation``: the invariant that broke ("" for none); ``verdict``: None then."""

    scenario: Scenario
    world: World
    verdict: Verdict | None
    violation: str = ""
    error: BaseException | None = None
    """With its traceback."""

    @property
    def good(self) -> bool:
        """Whether every promise was kept."""
        return self.verdict is not None and self.verdict.good

    @property
    def kind(self) -> str:
        """The violation or the verdict in a few words, without names and numbers: equal for histories that fail alike."""
        if self.verdict is not None:
            return self.verdict.outcome.value
        return " ".join(word for word in self.violation.split("\n")[0].split() if word.isalpha())

    def __str__(self) -> str:
        return str(self.verdict) if self.verdict is not None else f"violated: {self.violation}"


def prepare(
    scenario: Scenario,
    *,
    config: Config | None = None,
    plane: MakePlane = StubPlane,
    observers: Iterable[Observer] = (),
    facts: Facts = lambda _name: {},
) -> World:
    """The world of a history before anything has happened in it, judged; observers see its first process start.

    ``facts``: see ``World``.
    """
    world = World(
        scenario.seed,
        scenario.config(config),
        fences=scenario.fences,
        plane=plane,
        store=Character.FILES if scenario.files else Character.ATOMIC,
        notices=scenario.notices,
        facts=facts,
    )
    judged(world)
    world.faults.skew, world.faults.drift = scenario.skew, scenario.drift
    for observer in observers:
        world.observe(observer)
    return world


def play(
    scenario: Scenario,
    *,
    config: Config | None = None,
    plane: MakePlane = StubPlane,
    observers: Iterable[Observer] = (),
    tell: Callable[[World], None] | None = None,
    facts: Facts = lambda _name: {},
) -> Result:
    """Both phases. ``tell`` is called after each event (progress, recorders); ``facts``: see ``World``.

    ScriptError: a wrong script.
    """
    world = prepare(scenario, config=config, plane=plane, observers=observers, facts=facts)
    try:
        safety(world, scenario, tell)
        return Result(scenario, world, judge(world))
    except AssertionError as error:
        return Result(scenario, world, None, str(error) or "AssertionError", error)
    except ScriptError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever a machine raises at other people's messages is a violation, too
        where = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__} in {where.name}, line {where.lineno} of {where.filename}: {error}"
        return Result(scenario, world, None, text, error)


def safety(world: World, scenario: Scenario, tell: Callable[[World], None] | None = None) -> None:
    """Found the job and let the events happen; AssertionError where an invariant breaks."""
    hosts = world.founders(scenario.size, alone=scenario.alone)
    if not scenario.early:
        world.run_until_each(hosts, lambda host: bool(host.activated) or not host.alive, FOUNDING)
    start = world.now
    for event in scenario.events:
        world.run(max(0.0, start + event.at - world.now))
        perform(world, event)
        if tell is not None:
            tell(world)
    world.run(scenario.rest)
