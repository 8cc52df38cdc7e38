"""How the group of a view is built: a pure function of the view, so that all members meet at one place, each with its rank."""

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
    """Return the ranks in ``view``, and the spec of its group; None if there is only one member.

    Raises RebuildError if ``rank_assign`` gives no valid ranks. ``timeout``: seconds for building, and for one operation.
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
    """Return the name of a view's group in the store of ``host``. Strangers cannot guess it."""
    return hashlib.blake2b(f"{host.fact('_room')}|{view.view_id}".encode(), digest_size=16).hexdigest()
