"""Faults at exact moments of the data plane: whoever enters, completes or finishes something is killed, stopped, cut off.

Random faults in time seldom hit the microseconds that matter; these hit nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from consensus.simulation import Host, Observer

if TYPE_CHECKING:
    from .trainers import Trainers

MOMENTS = (
    "entered",  # an operation
    "reduced",  # everybody has entered it: anybody may complete it now
    "completed",
    "finished",  # a call
    "frozen",
    "goodbye",  # is about to be said in a trailer
    "reported",
    "preparing",  # a group of a view that may be installed
    "building",
    "activated",
    "giving",  # a finished call's result
    "adopting",
    "loading",  # state
    "loaded",
)
ACTIONS = ("kill", "kill", "kill", "kill-other", "kill-two", "pause", "pause", "hold", "isolate", "drain")


@dataclass
class Ambush:
    """The ``count``-th time from ``since`` (seconds of the world's time) on that anybody comes to ``moment``."""

    moment: str
    count: int
    action: str
    since: float
    wait: float = 0.0
    """Seconds from the moment to the action."""
    length: float = 0.3
    """Of a pause, a hold or an isolation, in seconds."""

    def __str__(self) -> str:
        return f"{self.action} {self.wait:g} s after the {self.count}th {self.moment!r} since {self.since:.2f}"


class Ambushes(Observer):
    """Some of them in one history."""

    def __init__(self, jobs: Trainers, ambushes: list[Ambush], rng: Random) -> None:
        self.ambushes = list(ambushes)
        self._jobs = jobs
        self._rng = rng
        jobs.on_moment = self._happens

    @classmethod
    def draw(cls, jobs: Trainers, seed: int, most: int = 5, within: float = 8.0) -> Ambushes:
        """Up to ``most``, in the first ``within`` seconds."""
        rng = Random(f"{seed} ambushes")
        found = [
            Ambush(
                rng.choice(MOMENTS),
                rng.choice([1, 1, 2, 3, 4, 6, 9]),
                rng.choice(ACTIONS),
                102.0 + rng.uniform(-1.0, within) if rng.random() < 0.8 else 101.0,
                rng.choice([0.0, 0.0, 0.0, 0.001, 0.01]),
                rng.choice([0.02, 0.3, 1.9, 2.3, 4.0]),
            )
            for _ in range(rng.randint(0, most))
        ]
        return cls(jobs, found, rng)

    def _happens(self, host: Host, moment: str) -> None:
        for ambush in [a for a in self.ambushes if a.moment == moment and self.world.now >= a.since]:
            ambush.count -= 1
            if ambush.count <= 0:
                self.ambushes.remove(ambush)
                self.world.after(ambush.wait, lambda a=ambush: self._strike(host, a))  # type: ignore[misc]

    def _strike(self, host: Host, ambush: Ambush) -> None:
        world = self.world
        others = [other for other in world.hosts.values() if other.alive and other.stopped is None and other is not host]
        if ambush.action.startswith("kill-") and others:
            for other in self._rng.sample(others, min(len(others), 2 if ambush.action == "kill-two" else 1)):
                world.kill(other)
        if not host.alive:
            return
        if ambush.action == "kill":
            world.kill(host)
        elif ambush.action == "pause" and not host.paused:
            world.pause(host)
            world.after(ambush.length, lambda: self._resume(host))
        elif ambush.action == "hold":
            self._jobs.processes[host.id].threads.hold(ambush.length)
        elif ambush.action == "isolate":
            world.isolate([host], others)
            world.after(ambush.length, lambda: self._rejoin(host))
        elif ambush.action == "drain":
            self._jobs.drain(host)

    def _resume(self, host: Host) -> None:
        if host.alive and host.paused:
            self.world.resume(host)

    def _rejoin(self, host: Host) -> None:
        cut = self.world.faults.cut
        for link in [link for link in cut if host.id in link]:
            cut.discard(link)
