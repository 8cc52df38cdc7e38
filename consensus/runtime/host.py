"""Where an agent runs, seen from the training process: on a thread of it (``thread_host``), or in a process of its own
(``process_host``). ``Membership`` cannot tell the difference.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from ..config import Config
from ..errors import StoppedError
from ..interface import DataPlane, Source
from ..member import Member
from ..progress import Progress
from .names import Introducers
from .snapshot import Snapshot
from .sockets import SocketPair

__all__ = ["Descriptors", "Ears", "Host", "Setup"]


@dataclass(frozen=True, slots=True)
class Setup:
    """What an agent begins with; nothing in it is tied to a process."""

    config: Config
    member: Member
    introducers: Introducers
    """As looked up when this member was bound; the own address included."""


class Descriptors(NamedTuple):
    """What an agent's process inherits besides its pipe; its control sockets follow over ``doors``, before the ``Setup``."""

    doors: int
    cell: int
    life: int
    """See ``life_lock``; -1 where the system has none."""


@dataclass(frozen=True, slots=True)
class Ears:
    """Who listens to an agent in the training process; called on the host's thread."""

    plane: DataPlane
    publish: Callable[[Snapshot], None]
    failed: Callable[[StoppedError], None]
    """The agent itself has ended without being asked to."""


class Host(Protocol):
    """One agent's place. NEW -> RUNNING (``start``) -> ENDED (``stop``, or the agent's failure)."""

    @property
    def running(self) -> bool:
        """Whether the agent takes orders."""
        ...

    def here(self) -> bool:
        """Whether the caller is on the thread that calls the ``Ears``: nothing may be waited for there."""
        ...

    def begin(self, member_id: str) -> None:
        """Begin to start, beside what the caller does until ``start``. ConsensusError where that is not possible."""

    def start(self, setup: Setup, sockets: SocketPair, ears: Ears, timeout: float) -> None:
        """Start the agent and wait until it listens; ConsensusError where it does not within ``timeout`` seconds."""

    def perform(self, action: str, *arguments: Any) -> None:
        """Have the core's method ``action`` called with ``arguments`` and the time. Does not wait; dropped after the end."""

    def ask(self, question: str, *arguments: Any, timeout: float) -> Any:
        """The agent's answer; TimeoutError without one, ConsensusError where it has ended."""

    def progress(self, progress: Progress) -> None:
        """Where the data plane is. Local and cheap."""

    def commit_to_leave(self) -> None:
        """See ``Consensus``: the agent knows it in whatever it does after this call has returned."""

    def serve(self, path: str, source: Source) -> None:
        """Answer GET ``path`` with what ``source`` yields, in the training process."""

    def stop(self, timeout: float) -> None:
        """End the agent without a goodbye, and wait for that (not when ``here``). Idempotent."""
