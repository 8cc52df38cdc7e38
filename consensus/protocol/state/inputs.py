"""The inputs of a machine besides messages and time: its data plane's reports, and what its agent finds out."""

from __future__ import annotations

from dataclasses import dataclass

from ...border import Report
from ...errors import StoppedError
from ...member import Address
from ...messages import EvidenceKind
from ...store_requests import StoreOp, StoreReply


@dataclass(frozen=True, slots=True)
class Accusation:
    """This member's own evidence against another one."""

    accused: str
    kind: EvidenceKind
    detail: str
    age: float = 0.0
    """Of a PROOF: seconds, by another clock, for which the accused was gone by now."""


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of a ``Check`` or of a closed liveness connection: ``alive`` False proves death, None is undecided.

    ``listens``: a connection was accepted there; that happens for a stopped process, too.
    """

    member_id: str
    alive: bool | None
    detail: str
    listens: bool = False


@dataclass(frozen=True, slots=True)
class Answered:
    """The result of ``Ask``."""

    request: StoreOp
    answer: StoreReply


@dataclass(frozen=True, slots=True)
class StoreChanged:
    """Something in the store may have changed: look soon."""


@dataclass(frozen=True, slots=True)
class Introduced:
    """More members to join through."""

    addresses: tuple[Address, ...]


@dataclass(frozen=True, slots=True)
class Listening:
    """Whether a process that may be of this job listens at an introducer's ``address``."""

    address: Address
    listening: bool


@dataclass(frozen=True, slots=True)
class Resolved:
    """The names of the introducers now resolve to ``addresses``.

    ``founder``: whether this member is the first of them; ``refused``: why the first one must not found.
    """

    addresses: tuple[Address, ...]
    founder: bool
    refused: str


@dataclass(frozen=True, slots=True)
class Died:
    """This member's process has ended, or is about to: the agent announces the death to all, as proof, and never acts again.

    The announcement is proof because nothing follows it: no vote, no ack, and soon no open socket.
    """

    detail: str
    error: StoppedError


Input = Report | Accusation | Checked | Answered | StoreChanged | Introduced | Listening | Resolved | Died
