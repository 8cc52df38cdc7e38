"""What may be left of a job once the network is healed: agreement of the living, or a block for the promised reason."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import Enum

from ...config import Policy
from ...member import Address
from ...protocol.state.quorum import is_quorum
from ...view import View
from ..world.host import Host, some
from ..world.observer import ObservedWorld
from ..world.world import World

LIMIT = 30.0
"""T: within so many seconds after healing everybody who lives acts in one view."""

CALM = 1.0
"""So long must an agreement last."""

PATIENCE = 5.0
"""A block is believed after so long: proofs that may still be discounted have come by then."""

STEP = 0.02
"""Seconds between two looks."""


class Outcome(Enum):
    """How a history ends."""

    AGREED = "agreed"
    """Everybody who lives acts in one view made of exactly the living."""

    NOBODY = "nobody"
    """Nobody lives, or nobody ever got in (the founder died, too few met)."""

    BLOCKED = "blocked"
    """The living are no quorum of the newest view, and the rules forbid to go on."""

    STUCK = "stuck"
    """None of these: the protocol has failed."""


@dataclass(frozen=True)
class Verdict:
    """``took``: seconds from healing to agreement. ``detail``: one line, for people."""

    outcome: Outcome
    detail: str
    took: float = 0.0

    @property
    def good(self) -> bool:
        """Whether the protocol kept its promise."""
        return self.outcome is not Outcome.STUCK

    def __str__(self) -> str:
        return f"{self.outcome.value}: {self.detail}"


def living(world: ObservedWorld) -> list[Host]:
    """Whoever runs and was not told to stop."""
    return [host for host in world.hosts.values() if host.alive and host.stopped is None]


def _in_touch(world: ObservedWorld) -> list[Host]:
    """The living that can still hear of the newest view: whoever knows an address of theirs, or whose address they know.

    Those of a cohort if all of it can. Where a store decides these are all. Others may have lost everybody that they ever knew;
    nobody can tell them anything.
    """
    hosts = living(world)
    if world.config.policy is Policy.STORAGE:
        return hosts  # they all reach the store
    newest = max((host.machine.view for host in hosts if host.machine.view is not None), key=lambda v: v.epoch, default=None)
    if newest is None:
        return hosts
    apart = [host for host in hosts if host.id not in newest]
    reach, new = _Reach(), [host for host in hosts if host.id in newest]
    while apart and new:
        for host in new:
            reach.add(host)
        new = [host for host in apart if reach.meets(host)]
        met = {host.id for host in new}
        apart = [host for host in apart if host.id not in met]
    lost = {host.id for host in apart}
    there = [host for host in hosts if host.id not in lost]
    whole = Counter(host.member.cohort for host in there)
    return [host for host in there if host.id in newest or whole[host.member.cohort] == host.member.cohort[1]]


class _Reach:
    """Where some hosts live, and whom they write to."""

    def __init__(self) -> None:
        self._homes: set[Address] = set()
        self._known: set[Address] = set()
        self._views: set[View] = set()

    def add(self, host: Host) -> None:
        """One more of them."""
        view, places = _known(host)
        self._homes.add(host.member.address)
        self._known.update(places)
        if view is not None and view not in self._views:  # thousands know one and the same
            self._views.add(view)
            self._known.update(member.address for member in view.members)

    def meets(self, host: Host) -> bool:
        """Whether one of them writes to ``host``, or the other way round."""
        view, places = _known(host)
        theirs = () if view is None else (member.address for member in view.members)
        return host.member.address in self._known or not self._homes.isdisjoint((*places, *theirs))


def _known(host: Host) -> tuple[View | None, tuple[Address, ...]]:
    """Whom it writes to. Members ask no introducers, but the coordinator tells them that there is a job."""
    view, core = host.machine.known_view, host.machine._core  # noqa: SLF001 - who coordinates shows nowhere else
    return view, host.introducers if core.view is None or core.coordinates() else ()


def settled(world: ObservedWorld) -> bool:
    """Everybody who lives acts in one view made of exactly the living, and knows of no later one; or nobody ever got in."""
    hosts = _in_touch(world)
    if not hosts:
        return True
    if any(_ahead(host) for host in hosts):
        return False  # it is on its way into a later view, whose members may be dead
    views = {host.activated[-1].view_id if host.activated else "" for host in hosts}
    if len(views) > 1 or views == {""}:
        return views == {""} and all(host.machine.view is None for host in hosts)
    return set(hosts[0].activated[-1].ids) == {host.id for host in hosts}


def _ahead(host: Host) -> bool:
    view = host.machine.view
    return view is not None and bool(host.activated) and view.view_id != host.activated[-1].view_id


def reason_to_block(world: ObservedWorld) -> str:
    """Why the living may never act again, "" where they must: where a store decides they always must, and under ``any``
    whoever was in a view must.

    The newest view has no quorum left by (a), and by (b) the most senior of them may not discount some dead member.
    """
    if world.config.policy is Policy.STORAGE:
        return ""  # whoever is left may record the next view
    hosts = living(world)
    views = [host.machine.view for host in hosts if host.machine.view is not None]
    if not views:
        return "nobody who lives is in any view"
    newest: View = max(views, key=lambda view: view.epoch)
    inside = [host for key in newest.ids if (host := world.hosts[key]).alive and host.stopped is None]
    answers = frozenset(host.id for host in inside)
    if not inside:
        return f"nobody of {newest} lives"
    if world.config.policy is Policy.ANY:
        return ""
    asker = inside[0]  # the coordinator, once nothing is held against it: others ask nobody
    core = asker.machine._core  # noqa: SLF001 - what it may discount shows nowhere else
    if is_quorum(newest, answers, frozenset() if core.going else core.evidence.discounted):
        return ""
    missing = [world.hosts[key].name for key in newest.ids if key not in answers]
    count = f"{len(inside)} of {len(newest)} live in epoch {newest.epoch}"
    return f"{count}; {some(missing)} cannot be discounted by {asker.name}"


def judge(world: World, limit: float = LIMIT, calm: float = CALM) -> Verdict:
    """Heal everything, wait, and see: agreement that lasts ``calm`` seconds, or a legitimate block.

    Invariants that the observers see broken meanwhile raise AssertionError as ever.
    """
    world.heal()
    for host in living(world):
        if host.paused:
            world.resume(host)
    healed = world.now
    while world.now - healed < limit:
        if settled(world):
            took = world.now - healed
            world.run(calm)
            if settled(world):
                return _agreed(world, took)
            # What was in flight when it was healed (a replay, say) cost one more change.
        waited = world.now - healed
        if waited >= PATIENCE and (why := reason_to_block(world)):
            return Verdict(Outcome.BLOCKED, why, waited)
        world.run(STEP)
    return Verdict(Outcome.STUCK, f"after {limit:g} s: {some(living(world))}", limit)


def _agreed(world: World, took: float) -> Verdict:
    active = [host.activated[-1] for host in living(world) if host.activated]
    if not active:
        return Verdict(Outcome.NOBODY, f"{len(living(world))} live, in no view", took)
    newest = max(active, key=lambda view: view.epoch)
    return Verdict(Outcome.AGREED, f"{len(newest)} members in epoch {newest.epoch} {took:.2f} s after healing", took)
