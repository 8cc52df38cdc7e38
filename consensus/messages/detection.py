"""Who is alive: pings and their answers, rumours, and evidence."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ..member import Member

MAX_DETAIL = 200
"""The most characters of a statement about a member that are sent and kept, and that a reason of a view may have."""


class Status(Enum):
    """What is believed of a member (transitions: ``protocol/state/member_table.py``). No rumour says DEAD; only proof does."""

    ALIVE = "alive"
    SUSPECT = "suspect"
    DEAD = "dead"


class EvidenceKind(Enum):
    """How strong a statement against a member is: see ``protocol/state/evidence.py``."""

    PROOF = "proof"
    HINT = "hint"
    SILENCE = "silence"
    UNREADY = "unready"
    SEVERED = "severed"
    """The sender and the accused cannot reach each other, though others reach both: see ``protocol/state/links.py``."""
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
    """Are you ``target``? Carries the sender's view and progress, so that lagging and excluded members notice."""

    seq: int
    target: str
    epoch: int
    view_id: str
    updates: tuple[Update, ...] = ()
    progress: bytes = b""


@dataclass(frozen=True, slots=True)
class PingRequest:
    """Ping ``target`` for the sender and pass its Ack on; answer Nack if ``target`` has not answered in time."""

    seq: int
    target: Member
    updates: tuple[Update, ...] = ()


@dataclass(frozen=True, slots=True)
class Ack:
    """The sender is the member that ping ``seq`` asked for (relayed: that member has answered)."""

    seq: int
    target: str
    epoch: int
    view_id: str
    updates: tuple[Update, ...] = ()
    progress: bytes = b""


@dataclass(frozen=True, slots=True)
class Nack:
    """The ping request reached the sender; the target has not answered it."""

    seq: int


@dataclass(frozen=True, slots=True)
class Stranger:
    """Ping ``seq`` was meant for ``target``, but another lifetime answers here: proof that ``target`` is gone."""

    seq: int
    target: str


@dataclass(frozen=True, slots=True)
class Gossip:
    """Rumours without a ping. ``direct``: sent to the members concerned, which do not pass them on."""

    updates: tuple[Update, ...]
    direct: bool = False


@dataclass(frozen=True, slots=True)
class Digest:
    """The sender's view, and a digest of its beliefs (8 bytes or none): see ``protocol/detection/reconciliation.py``."""

    epoch: int
    view_id: str
    digest: bytes


@dataclass(frozen=True, slots=True)
class Beliefs:
    """What the sender believes, for a member with another digest. ``wants_answer``: send back what the sender lacks."""

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
    no_vote: bool = False
    """With a PROOF: the accused's own agent, which has outlived its program, says that it has voted for no successor of the
    view. It never will."""
