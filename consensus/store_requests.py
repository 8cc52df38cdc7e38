"""What a member asks of the shared store, and what comes back: plain values between the protocol and whoever carries them out.

A request is carried out once, in bounded time, and always answered; the protocol decides whether and when to ask again.
"""

from __future__ import annotations

from dataclasses import dataclass

from .messages import Lease, ViewRecord


@dataclass(frozen=True, slots=True)
class CreateView:
    """Create the record of ``record.view.epoch``, exclusively: only after the record of its parent was found to stand.

    (A founding record has no parent: it follows the newest record there is, or is the first.) Answered by ``Recorded``: its
    record is this one, or what somebody else decided.
    """

    record: ViewRecord


@dataclass(frozen=True, slots=True)
class ReadViews:
    """Read the newest record. ``epoch``, ``view_id``: what the asker follows (0, "": nothing yet), which must still stand."""

    epoch: int = 0
    view_id: str = ""


@dataclass(frozen=True, slots=True)
class Beat:
    """Write this member's own lease."""

    lease: Lease


@dataclass(frozen=True, slots=True)
class ReadLeases:
    """The leases of these members (None: of everybody)."""

    member_ids: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Remove the leases of these members: they have left, or are dead."""

    member_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Clean:
    """Nobody needs the records below ``floor`` any more: raise the floor to it, then remove them."""

    floor: int


StoreOp = CreateView | ReadViews | Beat | ReadLeases | Withdraw | Clean


@dataclass(frozen=True, slots=True)
class Recorded:
    """The newest record that stands (None: there is none). It is decided, and valid: its number is not below the floor."""

    record: ViewRecord | None


@dataclass(frozen=True, slots=True)
class UnreadLease:
    """Something that is no lease stands where that of ``member_id`` belongs. ``fingerprint``: another one once it changes."""

    member_id: str
    fingerprint: str


@dataclass(frozen=True, slots=True)
class LeaseList:
    """Those that were found of the leases asked for, and what was found instead of others."""

    leases: tuple[Lease, ...]
    unread: tuple[UnreadLease, ...] = ()


@dataclass(frozen=True, slots=True)
class Done:
    """It is done."""


@dataclass(frozen=True, slots=True)
class Away:
    """The store did not answer, or not in time. ``ambiguous``: a write may have been done, or may still be."""

    detail: str
    ambiguous: bool = False


@dataclass(frozen=True, slots=True)
class Wiped:
    """What the asker follows is gone from the store, and nothing newer of the same cluster is there."""

    detail: str


@dataclass(frozen=True, slots=True)
class Unread:
    """The store answered, but what stands in the place of the decision cannot be read: it counts as one that is not known."""

    detail: str


StoreReply = Recorded | LeaseList | Done | Away | Unread | Wiped
