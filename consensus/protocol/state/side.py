"""How two views of one job are related, and which of two sides goes on. Pure functions; ``contact`` acts on them.

A *side* is a chain of views with the members of its newest one. Under ``majority`` a founded cluster is one side for ever; two
are there only where two were founded. Under ``any`` a cluster that is cut in two becomes two sides, which have no member in
common: a member installs one view an epoch at most, and a view is active only once all its members have installed it.
"""

from __future__ import annotations

from enum import Enum

from ...config import Policy
from ...messages import Claim
from ...view import View


class Relation(Enum):
    """What another view is to the own one, for a member that is told of it."""

    OWN = "own"
    """This member is in it, or it is the own view: at most one of the two is late."""

    AHEAD = "ahead"
    """The chain went on there without this member."""

    BEHIND = "behind"
    """Its members have missed something."""

    TWIN = "twin"
    """The same epoch of the same chain. Under ``majority`` that is a fork, and must never be seen."""

    RIVAL = "rival"
    """Another side."""


def related(policy: Policy, own_id: str, mine: View, other: View) -> Relation:
    """What ``other`` is to the member ``own_id`` whose newest view is ``mine``."""
    if mine.view_id == other.view_id:
        return Relation.OWN
    if mine.cluster != other.cluster:
        return Relation.RIVAL
    if own_id in other:
        return Relation.OWN
    if policy is Policy.ANY and frozenset(mine.ids).isdisjoint(other.ids):
        return Relation.RIVAL
    if other.epoch == mine.epoch:
        return Relation.TWIN
    return Relation.AHEAD if other.epoch > mine.epoch else Relation.BEHIND


def claim(view: View, steps: int) -> Claim:
    """Of the side whose newest view is ``view``, having committed ``steps``."""
    return Claim(steps, len(view), min(view.ids))
