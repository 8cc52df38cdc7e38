"""Between members of different chains of views: see ``protocol/agreement/contact.py``."""

from __future__ import annotations

from dataclasses import dataclass

from ..member import Member
from ..view import View


@dataclass(frozen=True, slots=True)
class Claim:
    """Decides which of two sides of a job goes on when they meet: committed steps, then members, then their lowest id."""

    steps: int
    size: int
    lowest: str

    def above(self, other: Claim) -> bool:
        """Whether the side with this claim goes on and the other stops. Of two different claims exactly one is above."""
        return (self.steps, self.size, other.lowest) > (other.steps, other.size, self.lowest)


@dataclass(frozen=True, slots=True)
class Introduction:
    """To a member that may know another chain of views: the sender's newest view, its coordinator, and its side's claim.

    ``acts``: whether that view is active at the sender.
    """

    view: View
    coordinator: Member
    claim: Claim
    acts: bool = False


@dataclass(frozen=True, slots=True)
class Overtaken:
    """A coordinator to the members of its side (in ``view_id``): the other side, in ``view``, goes on; this side stops."""

    view_id: str
    view: View
