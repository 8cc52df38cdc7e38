"""What the ledger decides, as values: what is to be done, and why a launch failed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, slots=True)
class CallHost:
    """Start its agent."""

    host: str


@dataclass(frozen=True, slots=True)
class BindHost:
    """Bind sockets for so many founders. ``founding``: the answer to another one is out of date."""

    host: str
    founding: int
    founders: int
    master: bool


@dataclass(frozen=True, slots=True)
class StartWorker:
    """Start it: as a founder (which of its host's), at its founding address again, or to join.

    ``start``: which of its starts this is. ``address``: where it listens; empty: it chooses.
    """

    index: int
    start: int
    founder: int
    address: str
    introducers: tuple[str, ...]
    initial_size: int


@dataclass(frozen=True, slots=True)
class StopWorker:
    """End it: after SIGTERM and ``grace`` seconds, or at once."""

    index: int
    grace: float
    cause: str


@dataclass(frozen=True, slots=True)
class DropHost:
    """Let its agent end, which kills what runs there."""

    host: str


Action = CallHost | BindHost | StartWorker | StopWorker | DropHost


class FailureKind(Enum):
    """What failed."""

    WORKER = "worker"
    HOST = "host"
    TOO_FEW = "too few"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a launch ends otherwise than by returning."""

    kind: FailureKind
    index: int = -1
    host: str = ""
    why: str = ""
