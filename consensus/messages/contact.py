"""Between members of different chains of views: see ``protocol/contact.py``."""

from __future__ import annotations

from dataclasses import dataclass

from ..member import Member
from ..view import View

__all__ = ["Introduction", "Overtaken", "Standing"]


@dataclass(frozen=True, slots=True)
class Standing:
    """What decides between two sides of a job that meet: committed steps, then members, then the lowest id of these."""

    steps: int
    size: int
    lowest: str

    def above(self, other: Standing) -> bool:
        """Whether the side with this standing goes on, and the other stops. Of two different standings one is above."""
        return (self.steps, self.size, other.lowest) > (other.steps, other.size, self.lowest)


@dataclass(frozen=True, slots=True)
class Introduction:
    """To somebody who may know another chain of views: the sender's newest view, its coordinator, and how its side stands."""

    view: View
    coordinator: Member
    standing: Standing


@dataclass(frozen=True, slots=True)
class Overtaken:
    """From its coordinator to the members of a side (in ``view_id``): the rival side in ``view`` goes on, this one stops."""

    view_id: str
    view: View
