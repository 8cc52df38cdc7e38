"""Faults that hang together, from a moment of the data plane on: who falls behind the others in a call is cut off, they go on,
let somebody in, and die, and the way to it is free again.

Faults that are drawn one by one, by the clock or for a moment each (``ambush``), never come in such a row: each would have to
find the right member within the right milliseconds of what the one before it led to. So here members are named by what they
are at that moment, as seen from one of them, the *subject*.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

from consensus.simulation import Host, Observer, living

if TYPE_CHECKING:
    from .trainers import Trainers

SCENES = {
    "behind": "all of a view but the subject have finished a call",
    "ahead": "the subject alone has finished it",
    "goodbye": "the subject is about to write in a trailer that it leaves",
    "building": "the subject builds the group of a view",
    "admitted": "so does one that has never acted: a joiner",
}

OPENINGS = {
    "": ("behind", "ahead", "building"),
    "drain": ("behind", "behind", "behind", "ahead", "goodbye"),
    "join": ("admitted", "admitted", "building", "behind", "ahead"),
}
"""What happens first, so that there is something to wait for, and what may be waited for then."""

STEPS = ("kill the rest", "kill the rest", "kill the rest", "kill one", "join", "join", "drain", "pause the rest")
"""What the others come to once the subject is out of the way; the first two rows of a view change, or much later."""

WAITS = (0.0, 0.02, 0.1, 0.3, 0.3, 0.4, 0.6, 1.0)
"""Seconds between two steps: within a view change, after it, mostly within T_excl of the first one."""

OVER = 106.0
"""The world's time from which on nothing of a plot happens any more: later its history is healed, and judged."""


@dataclass(frozen=True)
class Step:
    """``verb`` happens so many seconds after the step before."""

    wait: float
    verb: str

    def __str__(self) -> str:
        return f"{self.verb} after {self.wait:g} s"


@dataclass(frozen=True)
class Script:
    """What is to happen, as data."""

    opening: str
    at: float
    """Seconds of the world's time at which it opens."""
    scene: str
    count: int
    """The how manieth time from then on that it comes to the scene."""
    only_leaver: bool
    """Whether it has to be that of one who says goodbye in this call."""
    late: float
    """Seconds by which results come later to the leaver."""
    steps: tuple[Step, ...]

    def __str__(self) -> str:
        opening = f"{self.opening} at {self.at:.2f}, " if self.opening else ""
        whose = " of the leaver's" if self.only_leaver else ""
        return f"{opening}the {self.count}th {self.scene!r}{whose} from {self.at:.2f}: {', '.join(map(str, self.steps))}"

    @classmethod
    def draw(cls, seed: int, *, leaver: bool = False) -> Script:
        """Mostly: the subject is cut off, this and that happens to the others, and it gets back.

        ``leaver``: always one that falls behind in the call in which it says goodbye.
        """
        rng = Random(f"{seed} plot")
        opening = rng.choice(["drain", "drain", "drain", "join", ""])
        scene = rng.choice(OPENINGS[opening])
        if leaver:
            opening, scene = "drain", "behind"
        first = rng.choice(["cut", "cut", "cut", "cut", "pause", "kill"])
        steps = [Step(rng.choice([0.0, 0.0, 0.0, 0.0, 0.001, 0.01]), first)]
        steps += [Step(rng.choice(WAITS), rng.choice(STEPS)) for _ in range(rng.choice([1, 1, 2, 2, 3]))]
        steps.append(Step(rng.choice([0.0, 0.0, 0.1, 0.3, 1.0, 2.2]), "heal"))
        return cls(
            opening,
            101.0 + rng.uniform(0.2, 1.5),
            scene,
            rng.choice([1, 1, 1, 2, 4]),
            opening == "drain" and (rng.random() < 0.8 or leaver),
            rng.choice([0.0, 0.05, 0.1, 0.1, 0.3]),
            tuple(steps),
        )


class Plot(Observer):
    """One script in one history. ``scene``: when it came to it, None as long as it has not."""

    def __init__(self, jobs: Trainers, script: Script) -> None:
        self.script = script
        self.scene: float | None = None
        self._jobs = jobs
        self._left = script.count
        self._parting: set[str] = set()
        """Whoever may have been heard to leave."""
        self._cut: set[str] = set()
        """Whoever is cut off from all others, those that come later included."""
        self._joiners = 0
        self._opened = False
        jobs.on_moment = self._happens

    # What is waited for

    def started(self, host: Host) -> None:
        """See ``Observer``."""
        if not self._opened:
            self._opened = True
            self.world.after(self.script.at - self.world.now, self._open)
        for member_id in self._cut:
            self.world.faults.cut_both(member_id, host.id)

    def _open(self) -> None:
        members = self._living()
        if members and self.script.opening == "drain":
            leaver = self._jobs.rng.choice(members)
            self._jobs.rooms.late[leaver.id] = self.script.late
            self._jobs.drain(leaver)
        elif members and self.script.opening == "join":
            self._join(members)

    def _happens(self, host: Host, moment: str) -> None:
        if self.scene is not None or not self.script.at <= self.world.now < OVER:
            return
        if moment == "goodbye":
            self._parting.add(host.id)
        subject = self._subject(host, moment)
        if subject is None or (self.script.only_leaver and subject.id not in self._parting):
            return
        self._left -= 1
        if self._left <= 0 or self.script.only_leaver:  # whose call is its last
            self.scene = self.world.now
            self._strike(subject)

    def _subject(self, host: Host, moment: str) -> Host | None:
        """Whose scene it is; None: it is another."""
        match self.script.scene, moment:
            case ("goodbye", "goodbye") | ("building", "building"):
                return host
            case ("admitted", "building"):
                return host if not host.activated else None
            case ("behind" | "ahead", "finished"):
                done, late = self._places(host)
                found = late if self.script.scene == "behind" else done
                return found[0] if len(found) == 1 and len(done) + len(late) > 1 else None
        return None

    def _places(self, host: Host) -> tuple[list[Host], list[Host]]:
        """Who in the session of ``host`` has finished the call that it just has, and who has not. All live."""
        processes, session = self._jobs.processes, self._jobs.processes[host.id].plane.session
        members = [] if session is None else [self.world.hosts[key] for key in session.view.ids]
        call = processes[host.id].plane.finished
        if not all(member.alive for member in members):
            return [], []
        done = [member for member in members if processes[member.id].plane.finished >= call]
        return done, [member for member in members if member not in done]

    # What follows

    def _strike(self, subject: Host) -> None:
        view = subject.machine.view
        ids = subject.machine.member.id, *(() if view is None else view.ids)
        rest = [self.world.hosts[key] for key in ids if key != subject.id]
        wait = 0.0
        for step in self.script.steps:
            wait += step.wait
            self._after(wait, self._perform, step, subject, rest)

    def _after(self, wait: float, action: Callable[..., None], *what: Any) -> None:
        """At once where that is now: a moment later somebody may have finished more."""
        if wait:
            self.world.after(wait, lambda: action(*what))
        else:
            action(*what)

    def _perform(self, step: Step, subject: Host, rest: list[Host]) -> None:
        if self.world.now >= OVER:
            return
        left = [host for host in rest if host.alive and host.stopped is None]
        match step.verb:
            case "cut":
                self._cut.add(subject.id)
                self.world.isolate([subject], [host for host in self.world.hosts.values() if host is not subject])
            case "heal":
                self._cut.clear()
                self.world.heal()
                self._resume(subject, *rest)
            case "kill":
                self._kill(subject)
            case "pause":
                self._pause(subject)
            case "kill the rest":
                self._kill(*left)
            case "pause the rest":
                self._pause(*left)
            case verb if left:
                self._one(verb, left)

    def _one(self, verb: str, left: list[Host]) -> None:
        host = self._jobs.rng.choice(left)
        if verb == "kill one":
            self._kill(host)
        elif verb == "drain":
            self._jobs.drain(host)
        else:
            self._join(left)

    def _kill(self, *hosts: Host) -> None:
        for host in hosts:
            if host.alive:
                self.world.kill(host)

    def _join(self, through: list[Host]) -> None:
        self._joiners += 1
        self.world.start(f"p{self._joiners}", introducers=tuple(host.name for host in through[:3]))

    def _pause(self, *hosts: Host) -> None:
        for host in hosts:
            if host.alive and not host.paused:
                self.world.pause(host)

    def _resume(self, *hosts: Host) -> None:
        for host in hosts:
            if host.alive and host.paused:
                self.world.resume(host)

    def _living(self) -> list[Host]:
        return [host for host in living(self.world) if host.activated]
