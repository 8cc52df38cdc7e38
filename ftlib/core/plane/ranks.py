"""Ranks from an agreed member list, in seniority order: survivors keep their order, joiners come after them."""

from __future__ import annotations

from collections.abc import Sequence

from consensus import Member


class RankAssignScheme:
    """Rank is the index in the member list. Subclass to place ranks otherwise; it must be a pure function of the list.

    Where it raises, or gives no valid ranks, a worker that has been in no view yet ends with ConfigError.
    """

    def get_rank_and_size(self, member_list: Sequence[Member], self_id: str) -> tuple[int, int]:
        """``(rank, size)`` of ``self_id``; ValueError if it is not in the list."""
        for rank, member in enumerate(member_list):
            if member.id == self_id:
                return rank, len(member_list)
        raise ValueError(f"member {self_id} is not in the list of {len(member_list)} members")
