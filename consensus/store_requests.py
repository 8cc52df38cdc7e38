"""Requests of a member to the shared store, and the replies: plain values between the protocol and the store executor.

A request is carried out once, in bounded time, and always answered; the protocol decides whether and when to ask again.
"""

from __future__ import annotations

from dataclasses import dataclass

from .messages import Lease, ViewRecord


@dataclass(frozen=True, slots=True)
class CreateView:
    """Create the record of ``record.view.epoch``, exclusively, after checking that the record of its parent stands.

    (A founding record has no parent: it follows the newest record there is, or is the first.) Answered by ``Recorded``, with
    this record or the one that another member created.
    """

    record: ViewRecord


@dataclass(frozen=True, slots=True)
class ReadViews:
    """Read the newest record. ``epoch``, ``view_id``: the asker's view (0, "": none yet), whose record must still stand."""

    epoch: int = 0
    view_id: str = ""


@dataclass(frozen=True, slots=True)
class Beat:
    """Write this member's own lease."""

    lease: Lease


@dataclass(frozen=True, slots=True)
class ReadLeases:
    """Read the leases of these members (None: of all members)."""

    member_ids: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Remove the leases of these members, which have left or are dead."""

    member_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Clean:
    """No member needs the records below ``compacted`` any more: compact the store up to this number, then remove them."""

    compacted: int


StoreOp = CreateView | ReadViews | Beat | ReadLeases | Withdraw | Clean


@dataclass(frozen=True, slots=True)
class Recorded:
    """The newest record that stands (None: there is none). It is decided and valid: not below the compacted revision."""

    record: ViewRecord | None


@dataclass(frozen=True, slots=True)
class UnreadLease:
    """The value in the place of ``member_id``'s lease is no lease. ``fingerprint`` changes whenever that value does."""

    member_id: str
    fingerprint: str


@dataclass(frozen=True, slots=True)
class LeaseList:
    """The requested leases that were found, and the unreadable values found in the place of others."""

    leases: tuple[Lease, ...]
    unread: tuple[UnreadLease, ...] = ()


@dataclass(frozen=True, slots=True)
class Done:
    """The request was carried out."""


@dataclass(frozen=True, slots=True)
class Away:
    """The store did not answer, or not in time. ``ambiguous``: a write may have been done, or may still be."""

    detail: str
    ambiguous: bool = False


@dataclass(frozen=True, slots=True)
class Wiped:
    """The view that the asker follows is gone from the store, and the store holds nothing newer of the same cluster."""

    detail: str


@dataclass(frozen=True, slots=True)
class Unread:
    """The store answered, but the value in the place of the decision cannot be read: the decision counts as unknown."""

    detail: str


StoreReply = Recorded | LeaseList | Done | Away | Unread | Wiped
