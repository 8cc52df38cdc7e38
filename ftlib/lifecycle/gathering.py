"""How the group of a view is built: a pure function of the view, so that all members meet at one place, each with its rank."""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Mapping, Sequence

from consensus import Member, View

from ..core.plane.ranks import RankAssignScheme
from ..errors import ConfigError
from ..frameworks.base import GroupSpec


def gathering(
    view: View, own_id: str, rank_assign: RankAssignScheme, timeout: float
) -> tuple[Mapping[str, int], GroupSpec | None]:
    """Return the ranks in ``view``, and the spec of its group; None if there is only one member.

    Raises ConfigError if ``rank_assign`` gives no valid ranks. ``timeout``: seconds for building, and for one operation.
    """
    members = view.members
    ranks = _ranks(members, rank_assign)
    if len(members) == 1:
        return ranks, None
    host = members[view.epoch % len(members)]
    return ranks, GroupSpec(_room(view, host), view.epoch, ranks[own_id], len(members), dict(host.meta), timeout)


def _ranks(members: Sequence[Member], rank_assign: RankAssignScheme) -> Mapping[str, int]:
    """The rank of every member id. ConfigError if the scheme, which may be the program's own, fails or gives no valid ones."""
    name = f"rank_assign: {type(rank_assign).__name__}.get_rank_and_size"
    try:
        ranks = {member.id: operator.index(rank_assign.get_rank_and_size(members, member.id)[0]) for member in members}
    except Exception as error:
        raise ConfigError(f"{name} failed for a view of {len(members)} members: {error!r}") from error
    given, wanted = sorted(ranks.values()), list(range(len(members)))
    if given != wanted:
        raise ConfigError(f"{name} gave the ranks {given} to {len(members)} members: give each another one, counted from 0")
    return ranks


def _room(view: View, host: Member) -> str:
    """Return the name of a view's group in the store of ``host``. Strangers cannot guess it."""
    return hashlib.blake2b(f"{host.fact('_room')}|{view.view_id}".encode(), digest_size=16).hexdigest()
