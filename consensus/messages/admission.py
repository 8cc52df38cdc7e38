"""Coming and going: requests to join and to leave, and what is answered."""

from __future__ import annotations

from dataclasses import dataclass

from ..member import Member
from ..view import Delta, View


@dataclass(frozen=True, slots=True)
class Vote:
    """Whom its sender lets found, in that one's ``candidacy`` (empty: nobody now); ``turn``: how often the sender chose."""

    founder: str
    candidacy: int
    turn: int


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """``member`` asks to join. ``wants``: ready to be admitted, not only looking. ``terms`` must equal the job's.

    ``vote``: see ``protocol/founding.py``; None where the list of introducers itself says who founds.
    ``known``: id of the view that the sender was told last: it is not told again. ``waited``: milliseconds since it has been
    ready, so that every coordinator knows who has waited longest.
    """

    member: Member
    wants: bool
    terms: str
    vote: Vote | None = None
    known: str = ""
    waited: int = 0


@dataclass(frozen=True, slots=True)
class JoinReply:
    """What the asked member knows: whom to ask (the coordinator), and id and epoch of its view ("" while there is none).

    The view itself comes along whole or as what is new, where the sender of the request did not know it. ``ended``: the sender
    leaves, since its program has come to its end.
    """

    view: View | None
    coordinator: Member | None
    delta: Delta | None = None
    view_id: str = ""
    epoch: int = 0
    ended: bool = False


@dataclass(frozen=True, slots=True)
class Refused:
    """A request that can never succeed, with one line saying why.

    ``ended``: there is nothing to join any more, as the last member's program has come to its end.
    """

    reason: str
    ended: bool = False


@dataclass(frozen=True, slots=True)
class LeaveRequest:
    """``member_id`` leaves; its data plane has ended ``after_call`` and enters no other (None: unknown).

    ``ended``: it does so since its program has come to its end.
    """

    view_id: str
    member_id: str
    after_call: int | None = None
    ended: bool = False
