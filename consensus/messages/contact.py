"""Between members of different chains of views: see ``protocol/contact.py``."""

from __future__ import annotations

from dataclasses import dataclass

from ..member import Member
from ..view import View


@dataclass(frozen=True, slots=True)
class Claim:
    """What decides between two sides of a job that meet: committed steps, then members, then the lowest id of these."""

    steps: int
    size: int
    lowest: str

    def above(self, other: Claim) -> bool:
        """Whether the side with this claim goes on, and the other stops. Of two different claims one is above."""
        return (self.steps, self.size, other.lowest) > (other.steps, other.size, self.lowest)


@dataclass(frozen=True, slots=True)
class Introduction:
    """To somebody who may know another chain of views: the sender's newest view, its coordinator, and what its side claims.

    ``acts``: whether that view is active at the sender.
    """

    view: View
    coordinator: Member
    claim: Claim
    acts: bool = False


@dataclass(frozen=True, slots=True)
class Overtaken:
    """From its coordinator to the members of a side (in ``view_id``): the rival side in ``view`` goes on, this one stops."""

    view_id: str
    view: View
