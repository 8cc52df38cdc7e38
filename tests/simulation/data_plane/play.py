"""Playing a history with processes that train: every promise is checked on the way, and in the end that training goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from random import Random
from typing import Any

from consensus.config import Policy
from consensus.simulation import FaultProfile, Host, Observer, Outcome, Result, Scenario, World, draw, living
from consensus.simulation import play as play_views
from consensus.simulation.script.faults import Part

from .ambush import Ambushes
from .cohorts import Launcher, facts, in_replicas
from .groups.pace import Pace
from .parts.accelerator import Accelerators
from .peers.habits import Habits
from .plot import Plot, Script
from .programs.program import PROGRAMS
from .trainers import Trainers

GENTLE = FaultProfile.parse(
    "crash=2,restart,pause=2,stall,trap,one_way,isolate=2,halves=0.5,loss=0.5,reordering=0.5,clog,slow=0.5,heal=4,"
    "skew,drift,join=3,join_and_crash=2,leave=2,reset=0.5"
)
"""Faults that leave most jobs something to go on with."""

RESTARTING = FaultProfile.parse(
    "restart=8,crash=0.5,pause=2,stall,trap=2,one_way,isolate=2,halves=0.5,loss=1,reordering=1,clog,slow=0.5,heal=4,"
    "skew,drift,join=1,join_and_crash=1,leave=2,reset=0.5"
)
"""Most of whom die come back at the address at which they died."""

PLOT = 6.0
"""Seconds that a history has for its plot: at least until ``plot.OVER``."""

FURTHER = 3
"""Calls that everybody must finish after the healing."""

WITHIN = 20.0
"""Seconds for that."""

LOOK = 0.05
"""Seconds between two looks."""

POLICIES_OF_REPLICAS = ("", "storage")
"""Of histories with replicas of several processes, with which ``any`` is refused."""


def settings(seed: int) -> dict[str, Any]:
    """``Trainers`` of another kind each seed: one to five buckets, short and long steps."""
    rng = Random(f"{seed} settings")
    tensors = rng.choice([1, 2, 3, 3, 5])
    return {
        "tensors": tensors,
        "in_flight": rng.choice([1, 2, 2, 3]),
        "compute": rng.choice([0.005, 0.05, 0.05, 0.2]),
        "veto": rng.random() < 0.3,
    }


def accelerated(seed: int) -> Trainers:
    """Processes with accelerators, of which most have faults; some or all tensors are on them."""
    found = settings(seed)
    rng = Random(f"{seed} tensors on devices")
    on_device = rng.choice([found["tensors"], rng.randint(1, found["tensors"])])
    return Trainers(seed, **found, accelerators=Accelerators(seed), on_device=on_device)


def opening(seed: int) -> Trainers:
    """Processes whose averages are open calls."""
    return Trainers(seed, **settings(seed), habits=Habits())


def mixing(seed: int, **more: Any) -> Trainers:
    """Programs that make other calls, too; some have backup workers, some joiners that follow. ``more``: further ``Habits``."""
    rng, found = Random(f"{seed} programs"), settings(seed)
    program = rng.choice(PROGRAMS)
    late, compressed = rng.random() < 0.4, rng.random() < 0.3  # what is owed is so for a layout, order included
    habits = Habits(
        program=program,
        extras=0 if late else rng.choice([0, 0, 11, 17]),
        deadline=rng.choice([0.05, 0.1, 0.3]) if late else None,
        follows=rng.random() < 0.6,
        reorder=0 if late or compressed else rng.choice([0, 7, 13]),
        dawdles=0.05,
        compressed=compressed,
    )
    if late:  # a backup worker knows the program's pattern after many calls that repeat it
        found |= {"compute": rng.choice([0.002, 0.01]), "long_steps": 0.03, "pace": Pace(transit=0.003, slow=0.02)}
    return Trainers(seed, **found, habits=replace(habits, **more))


def declining(seed: int, **more: Any) -> Trainers:
    """Programs whose members decline calls, of any kind. ``more``: further ``Habits``."""
    rng, found = Random(f"{seed} declining programs"), settings(seed)
    program, extras, follows, catches_up = rng.choice(PROGRAMS), rng.choice([0, 0, 11]), rng.random() < 0.3, rng.random() < 0.5
    habits = Habits(
        program=program,
        extras=0 if catches_up else extras,  # else the border where a joiner comes in would not be before an average
        follows=follows,
        catches_up=catches_up,
        raises=0.0,  # who left a call by an exception does not know what it declines
        reorder=rng.choice([0, 7, 13]),
        compressed=rng.random() < 0.3,
        late=rng.choice([0.15, 1.0]),
        declines=rng.choice([0.02, 0.05, 0.2]),
    )
    return Trainers(seed, **found, habits=replace(habits, **more))


def declining_late(seed: int, **more: Any) -> Trainers:
    """Programs with backup workers whose members decline calls, of any kind, in time or late. ``more``: further ``Habits``."""
    rng, found = Random(f"{seed} declining late programs"), settings(seed)
    habits = Habits(
        program=rng.choice(PROGRAMS),
        deadline=rng.choice([0.05, 0.1, 0.3]),
        follows=rng.random() < 0.3,
        raises=0.0,  # who left a call by an exception does not know what it declines
        reorder=0,
        compressed=rng.random() < 0.2,
        late=rng.choice([0.15, 1.0]),
        declines=rng.choice([0.005, 0.01, 0.02]),  # after one of which nobody knows what it was there is no pattern for a while
        tarries=0.7,
        dawdles=0.05,
    )
    # A backup worker knows the program's pattern after many calls that repeat it.
    found |= {"compute": rng.choice([0.002, 0.01]), "long_steps": 0.03, "pace": Pace(transit=0.003, slow=0.02)}
    return Trainers(seed, **found, habits=replace(habits, **more))


def declining_sharded(seed: int) -> Trainers:
    """Processes of replicas of several, each of which declines calls."""
    rng = Random(f"{seed} declining processes")
    habits = Habits(program="X", raises=0.0, late=rng.choice([0.15, 1.0]), declines=rng.choice([0.01, 0.03, 0.1]))
    return Trainers(seed, **settings(seed), habits=habits)


def mixing_sharded(seed: int) -> Trainers:
    """Processes of replicas of several whose programs make other calls, too; in every other job members decline some.

    Nobody has a backup worker, which the settings refuse.
    """
    make = mixing if seed % 2 else declining
    return make(seed, deadline=None)


def compressing_sharded(seed: int) -> Trainers:
    """Processes of replicas of several whose averages are compressed; those of two in three jobs decline calls, too."""
    rng = Random(f"{seed} compressing processes")
    declines = rng.choice([0.0, 0.03, 0.1])
    habits = Habits(
        program=rng.choice(PROGRAMS),
        raises=0.0 if declines else 0.03,  # who left a call by an exception does not know what it declines
        reorder=rng.choice([0, 0, 7]),  # what is owed is so for a layout, order included
        compressed=True,
        declines=declines,
        catches_up=rng.random() < 0.3,
    )
    return Trainers(seed, **settings(seed), habits=habits)


def sharded(seed: int) -> Trainers:
    """Processes of replicas of several: every third job with averages that are open calls."""
    return opening(seed) if seed % 3 == 1 else Trainers(seed, **settings(seed))


def interrupted_sharded(seed: int) -> Trainers:
    """As ``sharded``, with programs that leave calls by exceptions while they wait for their mates, and make them again."""
    rng = Random(f"{seed} interrupted")
    return Trainers(seed, **settings(seed), interrupts=rng.choice([0.01, 0.05, 0.1]))


def _with_store(profile: FaultProfile, policy: str) -> FaultProfile:
    return profile.with_usual(Part.STORE) if policy == Policy.STORAGE.value else profile


def _gentle(policy: str) -> FaultProfile:
    return _with_store(GENTLE, policy)


def random_history(seed: int, policy: str = "") -> Scenario:
    """Every third has all faults; the others let most jobs live, with those faults that training notices.

    ``policy``: "any" for sides that go on apart; "storage" for a shared store, with faults of its own.
    """
    gentle = _gentle(policy)
    return draw(seed, policy=policy) if seed % 3 == 0 else draw(seed, gentle, (2, 3, 3, 4, 5, 5, 8)[seed % 7], policy=policy)


def restarting_history(seed: int, policy: str = "") -> Scenario:
    """One with many restarts, also of those who have just been restarted."""
    return draw(seed, _with_store(RESTARTING, policy), (2, 3, 3, 4, 5, 5, 8)[seed % 7], policy=policy)


def sharded_history(seed: int, policy: str = "") -> tuple[Scenario, int]:
    """A history of replicas of several processes, and how many these are: two or three, of two to four replicas.

    Every third has all faults, as in ``random_history``.
    """
    rng = Random(f"{seed} replicas")
    shards, replicas = rng.choice((2, 2, 2, 3)), rng.choice((2, 2, 2, 3, 3, 4))
    gentle = _gentle(policy)
    size = shards * replicas
    scenario = draw(seed, size=size, policy=policy) if seed % 3 == 0 else draw(seed, gentle, size, policy=policy)
    return in_replicas(scenario, shards), shards


def plotted_history(seed: int, policy: str = "") -> Scenario:
    """A few faults at most: what happens is up to the plot of that seed (see ``play_plot``)."""
    gentle = _gentle(policy)
    rng = Random(f"{seed} plotted")
    scenario = draw(seed, gentle, rng.choice([2, 3, 3, 3, 4, 5]), rng.choice([0, 0, 0, 1, 2]), policy=policy)
    return replace(scenario, early=False, rest=PLOT)


def play_plot(
    seed: int, policy: str = "", *, leaver: bool = False, make: Callable[[int], Trainers] | None = None
) -> tuple[Result, Plot]:
    """A history whose faults hang together, from a moment of the data plane on (see ``Script``).

    ``make``: ``opening``, where averages are open calls, or ``mixing``.
    """
    jobs = Trainers(seed, **settings(seed)) if make is None else make(seed)
    plot = Plot(jobs, Script.draw(seed, leaver=leaver))
    return play(plotted_history(seed, policy), jobs=jobs, observers=[plot], ambushes=False), plot


def play(
    scenario: Scenario,
    *,
    jobs: Trainers | None = None,
    observers: Iterable[Observer] = (),
    ambushes: bool = True,
    tell: Callable[[World], None] | None = None,
    shards: int = 1,
) -> Result:
    """As ``consensus.simulation.script.play``, with ``jobs`` (drawn from the seed where None) behind the machines.

    ``shards``: so many processes make a replica (see ``cohorts``).
    """
    jobs = jobs or Trainers(scenario.seed, **settings(scenario.seed))
    watching: list[Observer] = [jobs, jobs.promises]
    own = facts(shards) if shards > 1 else lambda _name: {}
    if shards > 1:
        watching.append(Launcher(scenario.seed))
    if ambushes:
        watching.append(Ambushes.draw(jobs, scenario.seed))
    try:
        result = play_views(scenario, plane=jobs.plane, observers=[*watching, *observers], tell=tell, facts=own)
        if result.verdict is not None and result.verdict.outcome is Outcome.AGREED:
            return _going_on(result, jobs)
        return result
    finally:
        jobs.close()


def _going_on(result: Result, jobs: Trainers) -> Result:
    """Everybody who is left makes further steps."""
    world = result.world
    jobs.on_moment = None
    before = {host.id: jobs.processes[host.id].plane.finished for host in world.hosts.values()}

    def stuck() -> list[Host]:
        """Whoever has not made its steps though its whole view lives, and its program has not ended."""
        there = {host.id: host for host in living(world)}
        views = {key: host.machine.active_view for key, host in there.items()}
        whole = [host for key, host in there.items() if (view := views[key]) is not None and there.keys() >= set(view.ids)]
        training = [host for host in whole if not jobs.processes[host.id].trainer.ending]
        return [host for host in training if jobs.processes[host.id].plane.finished < before[host.id] + FURTHER]

    end = world.now + WITHIN
    try:
        while stuck() and world.now < end:
            world.run(LOOK)
    except AssertionError as error:
        return replace(result, verdict=None, violation=str(error))
    if not stuck():
        return result
    shown = "; ".join(repr(jobs.processes[host.id]) for host in stuck())
    return replace(result, verdict=None, violation=f"training does not go on after healing: {shown}\n{jobs.promises.tail()}")
