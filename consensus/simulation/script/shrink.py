"""Making a failing history short: events, words and processes are taken away as long as it still fails alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from .play import Result, play
from .scenario import Event, Scenario, ScriptError


def shrink(scenario: Scenario, run: Callable[[Scenario], Result] = play, limit: int = 1000) -> Scenario:
    """The shortest history found in at most ``limit`` runs that ends like ``scenario`` (see ``Result.kind``).

    Greedy: halves, quarters, ... single events (delta debugging, Zeller 1999), then simpler settings, until nothing helps.
    """
    kind = run(scenario).kind
    best, runs, helped = scenario, 1, True
    while helped and runs < limit:
        helped = False
        for candidate in _simpler(best):
            runs += 1
            if runs > limit:
                break
            if _ends(candidate, run) == kind:
                best, helped = candidate, True
                break
    return best


def _ends(scenario: Scenario, run: Callable[[Scenario], Result]) -> str:
    try:
        return run(scenario).kind
    except ScriptError:  # a word too few
        return ""


def _simpler(scenario: Scenario) -> Iterator[Scenario]:
    """What is left to try, the boldest first."""
    events = scenario.events
    size = len(events)
    while size:
        for start in range(0, len(events), size):
            yield replace(scenario, events=events[:start] + events[start + size :])
        size //= 2
    for change in ({"drift": 0.0}, {"skew": 0.0}, {"early": False}, {"fences": False}, {"trust_refused": True}):
        if any(getattr(scenario, name) != value for name, value in change.items()):
            yield replace(scenario, **change)
    if scenario.mesh_limit != 32:
        yield replace(scenario, mesh_limit=32)
    if scenario.size > 1:
        yield replace(scenario, size=scenario.size - 1)
    for index, event in enumerate(events):
        if len(event.words) > 1:
            for at in range(len(event.words)):
                words = event.words[:at] + event.words[at + 1 :]
                yield replace(scenario, events=(*events[:index], Event(event.at, event.command, words), *events[index + 1 :]))
