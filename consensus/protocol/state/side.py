"""How two views of one job are related, and which of two sides goes on. Pure functions; ``contact`` acts on them.

A *side* is a chain of views with the members of its newest one. Under ``majority`` a founded cluster is one side forever; two
sides exist only if two clusters were founded. Under ``any`` a cluster that is cut in two becomes two sides, which have no
member in common: a member installs at most one view an epoch, and a view is active only once all its members have installed it.
"""

from __future__ import annotations

from enum import Enum

from ...config import Policy
from ...messages import Claim
from ...view import View


class Relation(Enum):
    """The relation of another view to the own one, for the member that receives it."""

    OWN = "own"
    """This member is in it, or it is the own view: at most one of the two is late."""

    AHEAD = "ahead"
    """The chain went on to that view without this member."""

    BEHIND = "behind"
    """The members of that view have missed something."""

    TWIN = "twin"
    """The same epoch of the same chain. Under ``majority`` that is a fork, and must never be seen."""

    RIVAL = "rival"
    """Another side."""


def related(policy: Policy, own_id: str, mine: View, other: View) -> Relation:
    """The relation of ``other`` to the view ``mine``, the newest of the member ``own_id``."""
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
    """The claim of the side whose newest view is ``view``, with ``steps`` committed steps."""
    return Claim(steps, len(view), min(view.ids))
