"""Who is alive: pings and their answers, rumours, and evidence."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ..member import Member


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
