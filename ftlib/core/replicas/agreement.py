"""A call across shards: all shards of all replicas finish it, or none does, over one set of replicas.

Each shard is averaged in a group of its own, which knows nothing of the others. Two rules join them. *In a replica*: a member
finishes a call only once all members of its replica hold their results of it (``Holders``), whether they reduced, kept or
adopted them; and it has a state that it has loaded only once all of them have loaded theirs. *At a view change*: only
replicas that are whole in the new view have a say (``plan_shards``). No lock, no clock, no I/O. docs/replicas.md says why
that is enough.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


class Holders:
    """Which members of one replica hold the result of a call, as one of them knows. For as long as the replica lives."""

    def __init__(self, members: Sequence[str]) -> None:
        """``members``: ids of the whole replica, this member included."""
        self._newest = dict.fromkeys(members, (0, 0))
        """The newest word of each member: epoch and call. In a view, a word for a call stands for those before it, too."""
        self._epoch, self._call = 0, 0

    def enter(self, epoch: int, call: int) -> None:
        """This member carries out ``call`` in the view of ``epoch``. Words of earlier views count no more."""
        self._epoch, self._call = epoch, call

    def receive(self, member: str, epoch: int, call: int) -> None:
        """``member`` holds its result of ``call`` in the view of ``epoch``; it may be further than this member is."""
        if member in self._newest:
            self._newest[member] = max(self._newest[member], (epoch, call))

    @property
    def complete(self) -> bool:
        """True once all members hold their results: the call may be finished."""
        return all(epoch == self._epoch and call >= self._call for epoch, call in self._newest.values())

    @property
    def missing(self) -> tuple[str, ...]:
        """The members that have not said that they hold theirs."""
        return tuple(key for key, (epoch, call) in self._newest.items() if epoch != self._epoch or call < self._call)


@dataclass(frozen=True, slots=True)
class ShardReport:
    """What one member had when it froze."""

    finished: int
    """The newest call that it has finished."""
    held: int
    """The newest call whose result for its shard is here, to be given or kept; 0: none. At most one above ``finished``."""
    state: bool = True
    """True if it has the state after call ``finished``, and knows that all of its replica do."""
    initial: bool = False
    """True if that is a founder's own initial state, and not the others': perhaps it has to leave, and did not wait."""


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """What the members of the whole replicas of a view do first. Equal at all of them."""

    call: int
    """The newest call that any whole replica has finished, or begun to: all go on with the one after it."""
    keepers: tuple[str, ...] = ()
    """Members that hold the result of ``call`` but have not finished it: they finish it once all of their replica hold it."""
    adoptions: tuple[tuple[str, str], ...] = ()
    """Pairs (adopter, donor), both of the same shard: the adopter gets the result, and is a keeper from then on."""
    blank: tuple[str, ...] = ()
    """Members of the replicas that get the state, each from a member of its shard; a replica is blank as a whole."""
    holders: tuple[str, ...] = ()
    """Members of the other replicas."""

    @property
    def lost(self) -> bool:
        """True if no whole replica has the state."""
        return not self.holders


def plan_shards(replicas: Sequence[tuple[str, ...]], reports: Mapping[str, ShardReport]) -> ShardPlan:
    """The plan for a view with these whole replicas (ids by shard). ``reports``: at least those of members that are no joiners.

    Reports of members whose replica is not whole are not looked at: what only these have finished is done again.
    """
    able = [ids for ids in replicas if all(m in reports and reports[m].state for m in ids)]
    if not able:
        return ShardPlan(0, blank=tuple(m for ids in replicas for m in ids))
    if any(reports[m].finished for ids in able for m in ids):  # by now an initial state is worth nothing
        able = [ids for ids in able if not any(reports[m].initial for m in ids)] or able
    call = max(reports[m].finished for ids in able for m in ids)
    donors = [[ids[shard] for ids in able if reports[ids[shard]].held == call] for shard in range(len(able[0]))]
    keepers: list[str] = []
    adoptions: list[tuple[str, str]] = []
    holders: list[str] = []
    served: set[tuple[str, ...]] = set()
    for ids in able:
        behind = [(shard, m) for shard, m in enumerate(ids) if reports[m].finished < call]
        if any(reports[m].finished < call - 1 or (reports[m].held != call and not donors[shard]) for shard, m in behind):
            continue
        served.add(ids)
        holders += ids
        for shard, m in behind:
            if reports[m].held == call:
                keepers.append(m)
            else:
                adoptions.append((m, donors[shard][len(adoptions) % len(donors[shard])]))
    blank = tuple(m for ids in replicas if ids not in served for m in ids)
    return ShardPlan(call, tuple(keepers), tuple(adoptions), blank, tuple(holders))
