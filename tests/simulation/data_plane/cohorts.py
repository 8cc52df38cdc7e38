"""Replicas of several processes in histories: which part a process is, replicas that join whole, and their launcher.

A process's name says it: founders ``m0``, ``m1``, ... fill one replica after the other, and ``j3.1`` is shard 1 of the joining
replica ``j3``. A history that was drawn for single processes becomes one of replicas: who joined or was started again is a
whole replica now.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from random import Random

from consensus.simulation import Event, Host, Observer, Scenario, World
from ftlib.core.replicas.whole import facts_of
from ftlib.settings.replicas import Part

APART = 0.05
"""Seconds between the starts of two processes of one replica at most."""
GRACE = 0.4
"""Seconds after which a launcher has ended what is left of a replica."""
TICK = 0.05
"""Seconds between two of a launcher's looks."""


def facts(shards: int) -> Callable[[str], Mapping[str, str]]:
    """What a process with some name advertises, where a replica has so many shards."""

    def advertised(name: str) -> Mapping[str, str]:
        replica, _, shard = name.partition(".")
        if shard:
            return facts_of(Part(replica, int(shard), shards))
        number = int(name[1:])
        return facts_of(Part(f"r{number // shards}", number % shards, shards))

    return advertised


def in_replicas(scenario: Scenario, shards: int) -> Scenario:
    """``scenario`` with so many processes for each that joins or is started again."""
    rng = Random(f"{scenario.seed} in replicas")
    events: list[Event] = []
    again = 0

    def one(name: str) -> str:
        return f"{name}.{rng.randrange(shards)}" if name[0] == "j" else name

    def named(word: str) -> str:
        """A word of an event; where it names a joiner, one process of that. Sides of a cut split replicas, too."""
        if all(part[:1] in ("m", "j") and part[1:].isdecimal() for part in word.split(",")):
            return ",".join(one(name) for name in word.split(","))
        return word

    def start(at: float, replica: str, via: tuple[str, ...]) -> None:
        for shard in rng.sample(range(shards), shards):
            when = round(at + (rng.uniform(0.0, APART) if rng.random() < 0.8 else rng.uniform(0.0, 0.5)), 6)
            events.append(Event(when, "start", (f"{replica}.{shard}", *via)))

    for event in scenario.events:
        if event.command == "start":
            start(event.at, event.words[0], tuple(named(word) for word in event.words[1:]))
        elif event.command == "restart":
            events.append(Event(event.at, "kill", (named(event.words[0]),)))
            start(event.at + rng.uniform(0.0, GRACE), f"a{again}", tuple(named(word) for word in event.words[1:]))
            again += 1
        else:
            events.append(replace(event, words=tuple(named(word) for word in event.words)))
    return replace(scenario, events=tuple(sorted(_through_somebody(events), key=lambda event: event.at)))


def _through_somebody(events: list[Event]) -> list[Event]:
    """Later where needed: whoever starts does so through one that has started. A start through nobody would not take place."""
    at = {event.words[0]: event.at for event in events if event.command == "start"}
    through = {event.words[0]: event.words[1:] for event in events if event.command == "start"}
    while late := {
        name: soonest
        for name, via in through.items()
        if at[name] <= (soonest := min(at.get(each, -1.0) for each in via))  # founders are there from the beginning
    }:
        at.update({name: round(soonest + 1e-6, 6) for name, soonest in late.items()})
    return [replace(event, at=at[event.words[0]]) if event.command == "start" else event for event in events]


class Launcher(Observer):
    """Ends what is left of a replica that has lost a process."""

    def __init__(self, seed: int) -> None:
        self._rng = Random(f"{seed} launcher")
        self._begun = False
        self._doomed: set[str] = set()

    def started(self, host: Host) -> None:
        """See ``Observer``."""
        if not self._begun:
            self._begun = True
            host.world.after(TICK, self._look)

    def _look(self) -> None:
        world = self.world
        assert isinstance(world, World)
        for host in list(world.hosts.values()):
            if host.alive and host.stopped is None:
                continue
            for mate in [each for each in world.hosts.values() if each.member.cohort == host.member.cohort]:
                if mate.alive and mate.id not in self._doomed:
                    self._doomed.add(mate.id)
                    world.after(self._rng.uniform(0.0, GRACE), lambda mate=mate: self._kill(world, mate))  # type: ignore[misc]
        world.after(TICK, self._look)

    def _kill(self, world: World, host: Host) -> None:
        if host.alive:
            world.kill(host)
