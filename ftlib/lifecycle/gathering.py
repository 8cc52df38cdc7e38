"""How the group of a view is built: a pure function of the view, so that all come to the same place, each in its rank."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from consensus import Member, View

from ..core.plane.ranks import RankAssignScheme
from ..core.plane.rebuild import RebuildError
from ..frameworks.base import GroupSpec

__all__ = ["gathering"]


def gathering(
    view: View, own_id: str, rank_assign: RankAssignScheme, timeout: float
) -> tuple[Mapping[str, int], GroupSpec | None]:
    """The ranks in ``view``, and what the group of it is built from; None where there is only one member.

    RebuildError where ``rank_assign`` gives no ranks. ``timeout``: seconds for building, and for one operation.
    """
    members = view.members
    ranks = {member.id: rank_assign.get_rank_and_size(members, member.id)[0] for member in members}
    if sorted(ranks.values()) != list(range(len(members))):
        raise RebuildError(f"{type(rank_assign).__name__} gave ranks {sorted(ranks.values())} to {len(members)} members")
    if len(members) == 1:
        return ranks, None
    host = members[view.epoch % len(members)]
    return ranks, GroupSpec(_room(view, host), view.epoch, ranks[own_id], len(members), dict(host.meta), timeout)


def _room(view: View, host: Member) -> str:
    """What a view's group is called in the store of ``host``: nothing that a stranger could guess."""
    return hashlib.blake2b(f"{host.fact('_room')}|{view.view_id}".encode(), digest_size=16).hexdigest()
