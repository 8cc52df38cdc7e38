"""What a machine is told besides messages and time: its data plane's reports, and what its agent finds."""

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
    """Of a PROOF: for so many seconds, by another clock, the accused was gone by now."""


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of a ``Check`` or of a closed tether: ``alive`` False proves death, None is undecided.

    ``listens``: a connection was accepted there, as a stopped process does, too.
    """

    member_id: str
    alive: bool | None
    detail: str
    listens: bool = False


@dataclass(frozen=True, slots=True)
class Answered:
    """What came of ``Ask``."""

    request: StoreOp
    answer: StoreReply


@dataclass(frozen=True, slots=True)
class Stirred:
    """Something in the store may have changed: look soon."""


@dataclass(frozen=True, slots=True)
class Introduced:
    """More members to join through."""

    addresses: tuple[Address, ...]


@dataclass(frozen=True, slots=True)
class Listening:
    """Whether somebody who may be of this job listens at an introducer's ``address``."""

    address: Address
    listening: bool


@dataclass(frozen=True, slots=True)
class Resolved:
    """The names of the introducers stand for ``addresses`` now.

    ``founder``: whether this member is first; ``barred``: why whoever is first must not found.
    """

    addresses: tuple[Address, ...]
    founder: bool
    barred: str


@dataclass(frozen=True, slots=True)
class Died:
    """This member's process is over, or as good as over: it says so to all, as proof, and never acts again.

    Its word is proof because nothing follows it: no vote, no ack, and soon no open socket.
    """

    detail: str
    error: StoppedError


Input = Report | Accusation | Checked | Answered | Stirred | Introduced | Listening | Resolved | Died
