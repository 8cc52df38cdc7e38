"""Every message of the protocol, as frozen values.

All of them may be lost, duplicated, reordered or replayed; whoever needs an answer asks again. The transport adds protocol
version, job, and the sender's id and advertised address (``Envelope``); UDP carries what fits one datagram, HTTP the rest.
``codec`` derives the wire schema from the annotations here, in the order of ``MESSAGES``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from .member import Address, Member
from .reports import Reports
from .view import Delta, Proposal, Reason, View

__all__ = [
    "MESSAGES",
    "Accept",
    "Accepted",
    "Ack",
    "Activate",
    "Ballot",
    "Beliefs",
    "Chosen",
    "Digest",
    "Envelope",
    "Evidence",
    "EvidenceKind",
    "FlushReply",
    "FlushRequest",
    "Gossip",
    "Install",
    "Introduction",
    "JoinReply",
    "JoinRequest",
    "LeaveRequest",
    "Message",
    "Nack",
    "Overtaken",
    "Ping",
    "PingRequest",
    "Prepare",
    "Promise",
    "Promised",
    "Pull",
    "Ready",
    "Refused",
    "Standing",
    "Status",
    "Stranger",
    "Update",
    "Vote",
]

Ballot = tuple[int, str]
"""(round, member id), compared as a pair. Round 0 belongs to the parent view's most senior member alone."""


class Status(Enum):
    """What is believed of a member; the transitions are in ``protocol/member_table.py``. No rumour says DEAD: proof does."""

    ALIVE = "alive"
    SUSPECT = "suspect"
    DEAD = "dead"


class EvidenceKind(Enum):
    """How strong a statement against a member is: see ``protocol/evidence.py``."""

    PROOF = "proof"
    HINT = "hint"
    SILENCE = "silence"
    UNREADY = "unready"
    SEVERED = "severed"
    """The sender and the accused cannot reach each other, though others reach both: see ``protocol/links.py``."""
    FROZEN = "frozen"
    """Not against anybody: the sender's data plane stopped and needs a new epoch."""


@dataclass(frozen=True, slots=True)
class Update:
    """One rumour: ``by`` believes that ``member_id`` has ``status`` at ``incarnation``."""

    member_id: str
    status: Status
    incarnation: int
    by: str


@dataclass(frozen=True, slots=True)
class Ping:
    """Are you ``target``? Carries where the sender stands, so that laggards and the excluded notice."""

    seq: int
    target: str
    epoch: int
    view_id: str
    updates: tuple[Update, ...] = ()
    progress: bytes = b""


@dataclass(frozen=True, slots=True)
class PingRequest:
    """Ping ``target`` on my behalf and pass its ack on; say Nack if it has not answered in time."""

    seq: int
    target: Member
    updates: tuple[Update, ...] = ()


@dataclass(frozen=True, slots=True)
class Ack:
    """I am the member that ping ``seq`` asked for (or, relayed, it answered)."""

    seq: int
    target: str
    epoch: int
    view_id: str
    updates: tuple[Update, ...] = ()
    progress: bytes = b""


@dataclass(frozen=True, slots=True)
class Nack:
    """Your ping request reached me; the target has not answered me."""

    seq: int


@dataclass(frozen=True, slots=True)
class Stranger:
    """Ping ``seq`` was meant for ``target``, but another lifetime answers here: proof that ``target`` is gone."""

    seq: int
    target: str


@dataclass(frozen=True, slots=True)
class Gossip:
    """Rumours on their own. ``direct``: told to those concerned, who do not pass them on."""

    updates: tuple[Update, ...]
    direct: bool = False


@dataclass(frozen=True, slots=True)
class Digest:
    """Of the sender's view, and (``digest``, 8 bytes or none) of its beliefs: see ``protocol/reconciliation``."""

    epoch: int
    view_id: str
    digest: bytes


@dataclass(frozen=True, slots=True)
class Beliefs:
    """For a member with another digest: what the sender believes. ``wants_answer``: it says what the sender lacks."""

    view_id: str
    updates: tuple[Update, ...]
    wants_answer: bool


@dataclass(frozen=True, slots=True)
class Evidence:
    """To the coordinator and the next two in seniority: a statement about ``accused`` within ``view_id``."""

    view_id: str
    accused: str
    kind: EvidenceKind
    detail: str = ""


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
class Standing:
    """What decides between two sides of a job that meet: committed steps, then members, then the lowest id of these."""

    steps: int
    size: int
    lowest: str

    def above(self, other: Standing) -> bool:
        """Whether the side with this standing goes on, and the other stops. Of two different standings one is above."""
        return (self.steps, self.size, other.lowest) > (other.steps, other.size, self.lowest)


@dataclass(frozen=True, slots=True)
class JoinReply:
    """What the asked member knows: whom to ask (the coordinator), and id and epoch of its view ("" while there is none).

    The view itself comes along whole or as what is new, where the sender of the request did not know it.
    """

    view: View | None
    coordinator: Member | None
    delta: Delta | None = None
    view_id: str = ""
    epoch: int = 0


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


@dataclass(frozen=True, slots=True)
class Refused:
    """A request that can never succeed, with one line saying why."""

    reason: str


@dataclass(frozen=True, slots=True)
class LeaveRequest:
    """``member_id`` leaves; its data plane has ended ``after_call`` and enters no other (None: unknown)."""

    view_id: str
    member_id: str
    after_call: int | None = None


@dataclass(frozen=True, slots=True)
class Prepare:
    """Paxos phase 1a for ``epoch``, whose acceptors are the members of ``parent_id``."""

    epoch: int
    parent_id: str
    ballot: Ballot


@dataclass(frozen=True, slots=True)
class Promise:
    """Phase 1b: no ballot below ``ballot`` any more; what was accepted so far."""

    epoch: int
    parent_id: str
    ballot: Ballot
    accepted_ballot: Ballot | None = None
    accepted: Proposal | None = None


@dataclass(frozen=True, slots=True)
class Accept:
    """Phase 2a: freeze (after ``after_call`` where given) and accept ``proposal``."""

    epoch: int
    parent_id: str
    ballot: Ballot
    proposal: Proposal
    after_call: int | None = None


@dataclass(frozen=True, slots=True)
class Accepted:
    """Phase 2b, with the flush report of the frozen data plane."""

    epoch: int
    parent_id: str
    ballot: Ballot
    report: bytes


@dataclass(frozen=True, slots=True)
class Promised:
    """I promised a higher ballot: yours is too low."""

    epoch: int
    parent_id: str
    ballot: Ballot
    promised: Ballot


@dataclass(frozen=True, slots=True)
class FlushRequest:
    """The view that ``delta`` leads to is chosen; its installer still needs the receiver's flush report."""

    delta: Delta
    after_call: int | None = None

    @property
    def epoch(self) -> int:
        """Of that view."""
        return self.delta.epoch


@dataclass(frozen=True, slots=True)
class FlushReply:
    """The report asked for. Not a vote: the sender may never have seen the ballot that chose ``view_id``."""

    epoch: int
    view_id: str
    report: bytes


@dataclass(frozen=True, slots=True)
class Install:
    """A view is chosen and every continuing member has reported. Answered by Ready once the group is built.

    ``view`` for those who join; everybody else holds its parent, and gets ``delta`` (who does not pulls).
    """

    view: View | None
    delta: Delta | None
    ballot: Ballot
    reports: Reports
    removed: tuple[Reason, ...] = ()
    """Who of the parent view is not in it, and why: for the log, nothing is decided by it."""

    @property
    def epoch(self) -> int:
        """Of that view; 0 where nothing says which."""
        return _epoch(self.view, self.delta)


@dataclass(frozen=True, slots=True)
class Ready:
    """The sender's data plane has built the group of ``view_id``."""

    epoch: int
    view_id: str


@dataclass(frozen=True, slots=True)
class Activate:
    """Every member of ``view_id`` said Ready."""

    epoch: int
    view_id: str


@dataclass(frozen=True, slots=True)
class Pull:
    """I know views up to ``epoch`` (``view_id``) only: tell me what was chosen since."""

    epoch: int
    view_id: str = ""


@dataclass(frozen=True, slots=True)
class Chosen:
    """A view was chosen (not: activated). A receiver of an older view that is not in it is excluded.

    ``driver``: id of the member that installs it ("" where that is over, or unknown). ``view``, or to holders of its parent
    ``delta``.
    """

    view: View | None
    driver: str = ""
    delta: Delta | None = None

    @property
    def epoch(self) -> int:
        """Of that view; 0 where nothing says which."""
        return _epoch(self.view, self.delta)


def _epoch(view: View | None, delta: Delta | None) -> int:
    told = delta if view is None else view
    return 0 if told is None else told.epoch


Message = (
    Ping
    | PingRequest
    | Ack
    | Nack
    | Stranger
    | Gossip
    | Evidence
    | JoinRequest
    | JoinReply
    | Refused
    | LeaveRequest
    | Prepare
    | Promise
    | Accept
    | Accepted
    | Promised
    | FlushRequest
    | FlushReply
    | Install
    | Ready
    | Activate
    | Pull
    | Chosen
    | Digest
    | Beliefs
    | Introduction
    | Overtaken
)

MESSAGES: tuple[type, ...] = (
    Ping,
    PingRequest,
    Ack,
    Nack,
    Stranger,
    Gossip,
    Evidence,
    JoinRequest,
    JoinReply,
    Refused,
    LeaveRequest,
    Prepare,
    Promise,
    Accept,
    Accepted,
    Promised,
    FlushRequest,
    FlushReply,
    Install,
    Ready,
    Activate,
    Pull,
    Chosen,
    Digest,
    Beliefs,
    Introduction,
    Overtaken,
)


@dataclass(frozen=True, slots=True)
class Envelope:
    """A message with who sent it: ``sender`` is a member id, ``address`` where that member takes its mail."""

    job: str
    sender: str
    address: Address
    message: Message
