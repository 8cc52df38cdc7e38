"""What a training process and its agent exchange besides the reports and orders of ``border``: frozen values, too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from ...config import Config
from ...errors import ConsensusError
from ...member import Address, Member
from ..net.names import Introducers

# To the agent


@dataclass(frozen=True, slots=True)
class Setup:
    """What an agent begins with; by then its control sockets wait in the handoff socket."""

    config: Config
    member: Member
    introducers: Introducers
    """As looked up when this member was bound, including its own address."""
    advertised: Address
    served: frozenset[str]
    """Paths that the training process answers."""
    level: int
    """The lowest level of the log records that it wants."""


@dataclass(frozen=True, slots=True)
class Serve:
    """From now on the training process answers ``path``."""

    path: str


@dataclass(frozen=True, slots=True)
class ReadStatus:
    """A request for what this member believes."""


@dataclass(frozen=True, slots=True)
class Find:
    """A request to find members of this job at these addresses, and to join through them."""

    addresses: tuple[Address, ...]


Question = ReadStatus | Find


@dataclass(frozen=True, slots=True)
class Asked:
    """Answer ``question`` with a ``Reply`` of this number."""

    number: int
    question: Question


@dataclass(frozen=True, slots=True)
class FactsReply:
    """The answer to ``FactsAsked`` of this number."""

    number: int
    facts: Mapping[str, Any]
    """Made ``plain``."""


@dataclass(frozen=True, slots=True)
class CutOff:
    """A fault on purpose: neither hear nor be heard for ``seconds``."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Stop:
    """End without a goodbye."""


# From the agent


@dataclass(frozen=True, slots=True)
class Started:
    """The agent listens."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The agent could not be started."""

    error: ConsensusError


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to ``Asked`` of this number: its ``value``, or the ``error`` to raise."""

    number: int
    value: Any = None
    error: ConsensusError | None = None


@dataclass(frozen=True, slots=True)
class FactsAsked:
    """A request for ``DataPlane.facts``."""

    number: int


def plain(value: Any) -> Any:
    """``value`` of Python's own types alone, which every process has; what has no such form as text.

    To read a value of another class the agent would import whatever defines that: a string of torch's own kind has it import
    torch, which takes it seconds on a busy host, and meanwhile it answers no ping.
    """
    match value:
        case None | bool():
            return value
        case str():
            return str(value)
        case Real():
            return int(value) if isinstance(value, Integral) else float(value)
        case Mapping():
            return {_plain_key(key): plain(each) for key, each in value.items()}
        case list() | tuple() | set() | frozenset():
            return [plain(each) for each in value]
    return str(value)


def _plain_key(key: Any) -> Any:
    """A key as JSON takes it: of a tuple, say, its text."""
    return plain(key) if isinstance(key, str | Real | None) else str(key)
