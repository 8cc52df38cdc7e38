"""Joining and leaving: the requests and their answers."""

from __future__ import annotations

from dataclasses import dataclass

from ..member import Member
from ..view import Delta, View


@dataclass(frozen=True, slots=True)
class Vote:
    """The sender votes for ``founder`` in its ``candidacy`` (empty: for nobody now). ``turn``: number of the sender's vote."""

    founder: str
    candidacy: int
    turn: int


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """``member`` asks to join. ``wants``: it is ready to be admitted, not only looking. ``terms`` must equal the job's.

    ``vote``: see ``protocol/admission/founding.py``; None if the list of introducers itself determines the founder.
    ``known``: id of the view that the sender received last, which is not sent again. ``waited``: milliseconds since ``member``
    has been ready, so that every coordinator knows who has waited longest.
    """

    member: Member
    wants: bool
    terms: str
    vote: Vote | None = None
    known: str = ""
    waited: int = 0


@dataclass(frozen=True, slots=True)
class JoinReply:
    """What the asked member knows: the coordinator, to which to send requests, and id and epoch of its view ("" while none).

    The reply holds the view itself, whole or as ``delta``, if the joiner did not know it. ``ended``: the sender of the reply
    leaves because its program has ended.
    """

    view: View | None
    coordinator: Member | None
    delta: Delta | None = None
    view_id: str = ""
    epoch: int = 0
    ended: bool = False


@dataclass(frozen=True, slots=True)
class Refused:
    """The request can never succeed; ``reason`` says why in one line.

    ``ended``: there is nothing to join any more, because the last member's program has ended.
    """

    reason: str
    ended: bool = False


@dataclass(frozen=True, slots=True)
class LeaveRequest:
    """``member_id`` leaves; its data plane has ended ``after_call`` and enters no other call (None: unknown).

    ``ended``: it leaves because its program has ended.
    """

    view_id: str
    member_id: str
    after_call: int | None = None
    ended: bool = False
