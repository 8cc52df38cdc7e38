"""Every message of the protocol, as frozen values.

All of them may be lost, duplicated, reordered or replayed; a member that needs an answer asks again. The transport adds
protocol version, job, and the sender's id and advertised address (``Envelope``); UDP carries what fits one datagram, HTTP the
rest.
``codec`` derives the wire schema from the annotations here, in the order of ``MESSAGES``.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..member import Address
from .admission import JoinReply, JoinRequest, LeaveRequest, Refused, Vote
from .agreement import (
    Accept,
    Accepted,
    Activate,
    Ballot,
    Chosen,
    FlushReply,
    FlushRequest,
    Forecast,
    Install,
    Prepare,
    Promise,
    Promised,
    Pull,
    Ready,
)
from .contact import Claim, Introduction, Overtaken
from .detection import (
    MAX_DETAIL,
    Ack,
    Beliefs,
    Digest,
    Evidence,
    EvidenceKind,
    Gossip,
    Nack,
    Ping,
    PingRequest,
    Status,
    Stranger,
    Update,
)
from .pieces import Piece
from .storage import Lease, ViewRecord

__all__ = [
    "MAX_DETAIL",
    "MESSAGES",
    "Accept",
    "Accepted",
    "Ack",
    "Activate",
    "Ballot",
    "Beliefs",
    "Chosen",
    "Claim",
    "Digest",
    "Envelope",
    "Evidence",
    "EvidenceKind",
    "FlushReply",
    "FlushRequest",
    "Forecast",
    "Gossip",
    "Install",
    "Introduction",
    "JoinReply",
    "JoinRequest",
    "Lease",
    "LeaveRequest",
    "Message",
    "Nack",
    "Overtaken",
    "Piece",
    "Ping",
    "PingRequest",
    "Prepare",
    "Promise",
    "Promised",
    "Pull",
    "Ready",
    "Refused",
    "Status",
    "Stranger",
    "Update",
    "ViewRecord",
    "Vote",
]

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
    | ViewRecord
    | Lease
    | Forecast
    | Piece
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
    ViewRecord,
    Lease,
    Forecast,
    Piece,
)


@dataclass(frozen=True, slots=True)
class Envelope:
    """A message with its sender: ``sender`` is a member id, ``address`` where that member receives messages."""

    job: str
    sender: str
    address: Address
    message: Message
