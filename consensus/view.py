"""A view: the agreed, ordered member list of one epoch, and the proposals that lead from one view to the next.

Order is seniority (order of admission), so survivors keep their order and joiners come last. ``view_id`` hashes the whole
ancestry (parent id, epoch, members): two members that hold the same ``view_id`` hold the same history.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import Enum

from .member import Member

__all__ = ["NO_VIEW_ID", "Cause", "Proposal", "Reason", "Removal", "View"]

NO_VIEW_ID = ""
"""The ``view_id`` before the first view; parent of a founding view."""


class Cause(Enum):
    """Why a member is removed. Only PROOF and LEFT free a voter from waiting T_excl (see ``protocol/voter.py``)."""

    PROOF = "proof"
    LEFT = "left"
    SILENCE = "silence"
    UNREADY = "unready"
    SEVERED = "severed"


@dataclass(frozen=True, slots=True)
class View:
    """The ordered members of one epoch. ``epoch`` counts from 1; ``parent_id`` is the ``view_id`` of epoch - 1."""

    epoch: int
    parent_id: str
    members: tuple[Member, ...]
    view_id: str = ""

    def __post_init__(self) -> None:
        """Derive ``view_id`` where it was not given."""
        if not self.view_id:
            object.__setattr__(self, "view_id", self._hash())

    def _hash(self) -> str:
        digest = hashlib.blake2b(digest_size=8)
        digest.update(f"{self.parent_id}|{self.epoch}".encode())
        for member in self.members:
            digest.update(f"|{member.id}@{member.host}:{member.port}".encode())
        return digest.hexdigest()

    def consistent(self) -> bool:
        """Whether ``view_id`` is the hash of the rest, ids are unique and somebody is in it (checked on receipt)."""
        return bool(self.members) and len(set(self.ids)) == len(self.members) and self.view_id == self._hash()

    @property
    def ids(self) -> tuple[str, ...]:
        """Member ids in seniority order."""
        return tuple(member.id for member in self.members)

    def __contains__(self, member_id: object) -> bool:
        return any(member.id == member_id for member in self.members)

    def __len__(self) -> int:
        return len(self.members)

    def member(self, member_id: str) -> Member:
        """The member with that id; KeyError if it is not in the view."""
        for member in self.members:
            if member.id == member_id:
                return member
        raise KeyError(member_id)

    def index(self, member_id: str) -> int:
        """Seniority of a member, 0 for the most senior; KeyError if it is not in the view."""
        for index, member in enumerate(self.members):
            if member.id == member_id:
                return index
        raise KeyError(member_id)

    def __str__(self) -> str:
        return f"view {self.epoch} ({self.view_id[:6]}: {', '.join(m.id[:6] for m in self.members)})"


@dataclass(frozen=True, slots=True)
class Removal:
    """One member to leave out, and why."""

    member_id: str
    cause: Cause


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a member is gone, for people: ``detail`` in a few words, found by the member with the id ``source`` ("": unknown)."""

    member_id: str
    cause: Cause
    detail: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True)
class Proposal:
    """The value of one Paxos instance: the difference between a parent view and its successor."""

    parent_id: str
    epoch: int
    removed: tuple[Removal, ...] = ()
    joined: tuple[Member, ...] = ()

    def apply(self, parent: View) -> View:
        """The successor of ``parent``; ValueError where this proposal does not follow it."""
        if parent.view_id != self.parent_id or parent.epoch + 1 != self.epoch:
            raise ValueError(f"proposal for epoch {self.epoch} does not follow {parent}")
        gone = {removal.member_id for removal in self.removed}
        kept = tuple(member for member in parent.members if member.id not in gone)
        return View(self.epoch, parent.view_id, kept + self.joined)
