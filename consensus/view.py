"""A view: the agreed, ordered member list of one epoch, and the proposals that lead from one view to the next.

Order is seniority (order of admission), so survivors keep their order and joiners come last. ``view_id`` hashes the whole
ancestry (parent id, epoch, members): two members that hold the same ``view_id`` hold the same history. ``cluster`` is the id of
the founding view: two views of different clusters have no history in common.
"""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar

from .member import Address, Member

NO_VIEW_ID = ""
"""The ``view_id`` before the first view; parent of a founding view."""

SHOWN = 10
"""The most members of a view that a line of text names."""

T = TypeVar("T")


class Cause(Enum):
    """Why a member is removed. PROOF, LEFT and COHORT free a voter from waiting T_excl (``protocol/agreement/acceptor.py``)."""

    PROOF = "proof"
    LEFT = "left"
    SILENCE = "silence"
    UNREADY = "unready"
    SEVERED = "severed"
    COHORT = "cohort"
    """Another member of its cohort is removed (see ``Member.cohort``)."""


@dataclass(frozen=True, slots=True, weakref_slot=True)
class View:
    """The ordered members of one epoch. ``epoch`` counts from 1; ``parent_id`` is the ``view_id`` of epoch - 1.

    ``origin``: the ``view_id`` of the founding view that this view descends from, "" for a founding view itself.
    """

    epoch: int
    parent_id: str
    members: tuple[Member, ...]
    origin: str = ""
    view_id: str = ""
    ids: tuple[str, ...] = field(init=False, repr=False, compare=False)
    """Member ids in seniority order."""
    _seniority: dict[str, int] = field(init=False, repr=False, compare=False)
    """Index by id: every packet needs such a look-up."""
    _addresses: dict[Address, tuple[str, ...]] = field(init=False, repr=False, compare=False)
    """Ids by address, made on the first call of ``at``, which few views ever get."""
    _known: dict[str, Any] = field(init=False, repr=False, compare=False)
    """Cache of derived values, by name."""
    _right: bool = field(init=False, repr=False, compare=False)
    """Whether ``view_id`` was derived here, or has been verified."""

    def __post_init__(self) -> None:
        """Derive ``view_id`` if it was not given."""
        seniority = {member.id: index for index, member in enumerate(self.members)}
        object.__setattr__(self, "_seniority", seniority)
        object.__setattr__(self, "ids", tuple(seniority))
        object.__setattr__(self, "_addresses", {})
        object.__setattr__(self, "_known", {})
        object.__setattr__(self, "_right", not self.view_id)
        if not self.view_id:
            object.__setattr__(self, "view_id", self._hash())

    def __hash__(self) -> int:
        return hash(self.view_id)

    def __reduce__(self) -> tuple[Any, ...]:
        return View, (self.epoch, self.parent_id, self.members, self.origin, self.view_id)

    def find(self, what: str, make: Callable[[], T]) -> T:
        """The result of ``make`` for this view, cached as ``what``: in a simulation thousands of members hold the same view."""
        if what not in self._known:
            self._known[what] = make()
        found: T = self._known[what]
        return found

    def since(self, before: View) -> Step:
        """The difference from ``before``, an older view. Cached for further calls with the same ``before``."""
        older, step = self._known.get("since", (None, None))
        if older is None or older() is not before:
            step = Step.between(before, self)
            self._known["since"] = weakref.ref(before), step
        found: Step = step
        return found

    def followed_by(self, delta: Delta) -> View | None:
        """The successor of this view, as ``Delta.apply`` returns it. Made once for all holders of this view."""
        known, view = self._known.get("next", (None, None))
        if known is not delta and known != delta:
            view = delta.make(self)
            self._known["next"] = delta, view
        found: View | None = view
        return found

    def _hash(self) -> str:
        text = [f"{self.parent_id}|{self.epoch}|{self.origin}", *[f"{m.id}@{m.host}:{m.port}" for m in self.members]]
        return hashlib.blake2b("|".join(text).encode(), digest_size=8).hexdigest()

    def consistent(self) -> bool:
        """Whether ``view_id`` is the hash of the rest, ids are unique and there are members (checked on receipt)."""
        if not self.members or len(self._seniority) != len(self.members):
            return False
        if not self._right:
            object.__setattr__(self, "_right", self.view_id == self._hash())
        return self._right

    @property
    def cluster(self) -> str:
        """The ``view_id`` of the founding view, which all views of one chain have in common."""
        return self.origin or self.view_id

    def __contains__(self, member_id: object) -> bool:
        return member_id in self._seniority

    def __len__(self) -> int:
        return len(self.members)

    def member(self, member_id: str) -> Member:
        """The member with that id; KeyError if it is not in the view."""
        return self.members[self._seniority[member_id]]

    def index(self, member_id: str) -> int:
        """Seniority of a member, 0 for the most senior; KeyError if it is not in the view."""
        return self._seniority[member_id]

    def at(self, address: Address) -> tuple[str, ...]:
        """Ids of the members that advertise ``address``: none, one, or several successive lifetimes there."""
        if not self._addresses:
            for member in self.members:
                self._addresses[member.address] = (*self._addresses.get(member.address, ()), member.id)
        return self._addresses.get(address, ())

    def cohort(self, member_id: str) -> tuple[Member, ...]:
        """The members of that member's cohort (see ``Member.cohort``), in seniority order; none if it is one by itself."""
        return self.find("cohorts", self._cohorts).get(member_id, ())

    def _cohorts(self) -> dict[str, tuple[Member, ...]]:
        """By the id of each of their members."""
        gathered: dict[tuple[str, int], list[Member]] = {}
        for member in self.members:
            gathered.setdefault(member.cohort, []).append(member)
        cohorts = [tuple(members) for (_, size), members in gathered.items() if size > 1]
        return {member.id: cohort for cohort in cohorts for member in cohort}

    def with_cohorts(self, removed: Sequence[Removal]) -> tuple[Removal, ...]:
        """``removed``, and all others of the cohorts that lose a member by that, in seniority order.

        ``removed`` as it is if no cohort would be left whole.
        """
        gone = {removal.member_id: removal for removal in removed}
        broken = {self.member(member_id).cohort for member_id in gone}
        if all(size == 1 for _, size in broken) or all(member.cohort in broken for member in self.members):
            return tuple(removed)
        out = [member.id for member in self.members if member.id in gone or member.cohort in broken]
        return tuple(gone.get(member_id) or Removal(member_id, Cause.COHORT) for member_id in out)

    def __str__(self) -> str:
        named = ", ".join(member.id[:6] for member in self.members[:SHOWN])
        more = f" and {len(self) - SHOWN} more" if len(self) > SHOWN else ""
        return f"view {self.epoch} ({self.view_id[:6]}: {named}{more})"


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
    ended: bool = False
    """True if the member had announced that it leaves because its program has ended."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """The value of one Paxos instance: the difference between a parent view and its successor."""

    parent_id: str
    epoch: int
    removed: tuple[Removal, ...] = ()
    joined: tuple[Member, ...] = ()

    def apply(self, parent: View) -> View:
        """The successor of ``parent``; raises ValueError if this proposal does not follow it."""
        if parent.view_id != self.parent_id or parent.epoch + 1 != self.epoch:
            raise ValueError(f"proposal for epoch {self.epoch} does not follow {parent}")
        gone = {removal.member_id for removal in self.removed}
        kept = tuple(member for member in parent.members if member.id not in gone)
        return View(self.epoch, parent.view_id, kept + self.joined, origin=parent.cluster)


@dataclass(frozen=True, slots=True)
class Step:
    """The difference between a view and an older one: departed and arrived members, by seniority.

    ``removed``: the seniority that the departed members had in the older view. ``newcomers``: the ids of the arrived ones.
    """

    removed: tuple[int, ...]
    departed: tuple[Member, ...]
    arrived: tuple[Member, ...]
    newcomers: frozenset[str]

    @classmethod
    def between(cls, before: View, view: View) -> Step:
        """The step from ``before`` to ``view``."""
        removed = tuple(index for index, member_id in enumerate(before.ids) if member_id not in view)
        arrived = tuple(member for member in view.members if member.id not in before)
        newcomers = frozenset(member.id for member in arrived)
        return cls(removed, tuple(before.members[index] for index in removed), arrived, newcomers)


@dataclass(frozen=True, slots=True)
class Delta:
    """The chosen view ``view_id`` of ``epoch`` as its difference from the parent, for receivers that hold the parent.

    ``removed``: the seniority in the parent of the removed members, rising.
    """

    epoch: int
    view_id: str
    parent_id: str
    removed: tuple[int, ...]
    joined: tuple[Member, ...]

    @classmethod
    def between(cls, parent: View | None, view: View) -> Delta | None:
        """The delta from ``parent`` to ``view``; None if ``parent`` is not its parent."""
        if parent is None or parent.view_id != view.parent_id or parent.epoch + 1 != view.epoch:
            return None
        step = view.since(parent)
        return cls(view.epoch, view.view_id, view.parent_id, step.removed, step.arrived)

    def apply(self, parent: View) -> View | None:
        """The view; None if ``parent`` is not its parent, or if the view does not match ``view_id``."""
        if parent.view_id != self.parent_id or parent.epoch + 1 != self.epoch:
            return None
        return parent.followed_by(self)

    def make(self, parent: View) -> View | None:
        """The view, made from the right parent; None if it does not match ``view_id``."""
        gone = frozenset(self.removed)
        kept = tuple(member for index, member in enumerate(parent.members) if index not in gone)
        view = View(self.epoch, self.parent_id, kept + self.joined, origin=parent.cluster)
        return view if view.view_id == self.view_id and view.consistent() else None
