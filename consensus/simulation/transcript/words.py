"""A message in a few words: its name and what matters in it. More than that would change with every format."""

from __future__ import annotations

from ...messages import (
    Accept,
    Accepted,
    Ack,
    Activate,
    Ballot,
    Chosen,
    Evidence,
    EvidenceKind,
    FlushReply,
    FlushRequest,
    Forecast,
    Install,
    JoinReply,
    JoinRequest,
    Message,
    Ping,
    Prepare,
    Promise,
    Promised,
    Pull,
    Ready,
)
from ...view import Cause, Proposal
from .people import People

HIDDEN = frozenset({"Ping", "Ack", "PingRequest", "Nack", "Gossip", "Digest", "Beliefs", "Introduction"})
"""Detection's own talk, and what is told to addresses where somebody lost may be, by the names of the types."""

ABOUT = "{}"
"""Where the names of those go whom a line is about."""

_CAUSES = {Cause.PROOF: "dead", Cause.LEFT: "leaves", Cause.SILENCE: "silent", Cause.UNREADY: "unready", Cause.COHORT: "cohort"}


def about(message: Message) -> str:
    """Id of the member that a message is about, apart from sender and receiver; "" for nobody."""
    return message.accused if isinstance(message, Evidence) and message.kind is not EvidenceKind.FROZEN else ""


def words(message: Message, people: People) -> str:  # noqa: C901, PLR0911, PLR0912 - one case a message: a table
    """Name and essence, with ``ABOUT`` where the name of ``about(message)`` goes."""
    match message:
        case Evidence(kind=EvidenceKind.FROZEN):
            return "EVIDENCE: my data plane stands still"
        case Evidence():
            return f"EVIDENCE: {message.kind.value} against {ABOUT}"
        case Prepare():
            return f"PREPARE {_ballot(message.ballot, people)} for epoch {message.epoch}"
        case Promise():
            voted = "no vote so far"
            if message.accepted is not None and message.accepted_ballot is not None:
                voted = f"has voted in {_ballot(message.accepted_ballot, people)}: {_proposal(message.accepted, people)}"
            return f"PROMISE {_ballot(message.ballot, people)}; {voted}"
        case Promised():
            return f"PROMISED: no to {_ballot(message.ballot, people)}, has promised {_ballot(message.promised, people)}"
        case Accept():
            return f"ACCEPT {_ballot(message.ballot, people)}: epoch {message.epoch} {_proposal(message.proposal, people)}"
        case Accepted():
            return f"ACCEPTED {_ballot(message.ballot, people)}, with its report"
        case FlushRequest():
            return f"FLUSH-REQUEST: epoch {message.epoch} is chosen, your report?"
        case FlushReply():
            return f"FLUSH-REPLY: report for epoch {message.epoch}"
        case Forecast():
            return f"FORECAST: epoch {message.epoch} is about to be proposed"
        case Install():
            return f"INSTALL epoch {message.epoch}, with everybody's report"
        case Ready():
            return f"READY in epoch {message.epoch}"
        case Activate():
            return f"ACTIVATE epoch {message.epoch}"
        case Pull():
            return f"PULL: what came after epoch {message.epoch}?"
        case Chosen():
            return f"CHOSEN: epoch {message.epoch}"
        case JoinRequest():
            return "JOIN-REQUEST" if message.wants else "JOIN-REQUEST: not ready yet"
        case JoinReply():
            coordinator = message.coordinator
            return "JOIN-REPLY: no job here" if coordinator is None else f"JOIN-REPLY: ask {people.name(coordinator.id)}"
        case Ping() | Ack():
            return f"{type(message).__name__.upper()} (knows epoch {message.epoch})"
    name = "".join(f"-{letter}" if letter.isupper() else letter for letter in type(message).__name__)
    return name.removeprefix("-").upper()


def _ballot(ballot: Ballot, people: People) -> str:
    return f"ballot {ballot[0]}/{people.name(ballot[1])}"


def _proposal(proposal: Proposal, people: People) -> str:
    """What changes from the parent."""
    gone: dict[str, list[str]] = {}
    for removal in proposal.removed:
        gone.setdefault(_CAUSES[removal.cause], []).append(removal.member_id)
    parts = [f"without {people.names(ids)} ({cause})" for cause, ids in gone.items()]
    if proposal.joined:
        parts.append(f"with {people.names(member.id for member in proposal.joined)}")
    return ", ".join(parts) or "with the same members"
