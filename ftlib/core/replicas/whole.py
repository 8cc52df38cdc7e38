"""The whole replicas of a view: a pure function of it, so that all members find the same ones in the same order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from consensus import COHORT, COHORT_SIZE, Member, View

from ...settings.replicas import Part

_REPLICA, _SHARD, _SHARDS = "_replica", "_shard", "_shards"


@dataclass(frozen=True, slots=True)
class Replica:
    """A replica all of whose processes are in the view."""

    name: str
    members: tuple[Member, ...]
    """The process of shard 0 first."""

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of its members, by shard."""
        return tuple(member.id for member in self.members)


def facts_of(part: Part) -> Mapping[str, str]:
    """What a member advertises of its part, for ``part_in``; nothing if it is a replica by itself."""
    if part.shards == 1:
        return {}
    cohort = {COHORT: part.replica, COHORT_SIZE: str(part.shards)}  # for the consensus: in a view together, or not at all
    return {_REPLICA: part.replica, _SHARD: str(part.shard), _SHARDS: str(part.shards), **cohort}


def part_in(member: Member) -> Part | None:
    """The part that ``member`` advertises; its own id names the replica if it is one by itself. None if it makes no sense."""
    name, shard, shards = member.fact(_REPLICA), member.fact(_SHARD), member.fact(_SHARDS)
    if name is None and shard is None and shards is None:
        return Part(member.id, 0, 1)
    if not name or shard is None or shards is None or not (shard.isdecimal() and shards.isdecimal()):
        return None
    return Part(name, int(shard), int(shards)) if int(shard) < int(shards) else None


def whole_replicas(members: Sequence[Member]) -> tuple[Replica, ...]:
    """The whole replicas among ``members`` (in seniority order), in the order of their ranks.

    A replica counts while each of its shards has exactly one process in the view, and all agree how many shards there are. It
    is as senior as its last member: whatever was whole in the view before outranks what has become whole since.
    """
    places: dict[str, dict[int, int]] = {}
    sizes: dict[str, int] = {}
    odd: set[str] = set()
    for index, member in enumerate(members):
        part = part_in(member)
        if part is None:
            continue
        taken = places.setdefault(part.replica, {})
        if part.shard in taken or sizes.setdefault(part.replica, part.shards) != part.shards:
            odd.add(part.replica)
        taken[part.shard] = index
    whole = [name for name, taken in places.items() if name not in odd and len(taken) == sizes[name]]
    whole.sort(key=lambda name: max(places[name].values()))
    return tuple(Replica(name, tuple(members[index] for _, index in sorted(places[name].items()))) for name in whole)


def shard_view(view: View, shard: int) -> View:
    """``view`` as the members of ``shard`` act in it: the one of each whole replica, in the order of the replicas' ranks.

    It keeps the ``view_id``, and has no members if no replica is whole.
    """
    members = tuple(replica.members[shard] for replica in whole_replicas(view.members) if shard < len(replica.members))
    return View(view.epoch, view.parent_id, members, view.origin, view.view_id)


def drawers_in(members: Sequence[Member]) -> tuple[str, ...]:
    """The names under which these draw samples: their replicas', which in every shard's view are the same."""
    return tuple(member.id if (part := part_in(member)) is None else part.replica for member in members)


def replica_of(view: View, member_id: str) -> Replica | None:
    """The whole replica in ``view`` of which that member is a part; None if there is none."""
    return next((replica for replica in whole_replicas(view.members) if member_id in replica.ids), None)
