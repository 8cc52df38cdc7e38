"""Both interfaces of a consensus backend: what it offers, and what the data plane above it must answer.

A backend decides views. Each member's data plane adds opaque bytes to a view change (its *flush report*), which travel to the
others with the decision; so a backend knows nothing of tensors.

Thread contract: every ``Consensus`` method may be called from any thread and returns without waiting for the network,
except ``start``, ``stop`` and ``wait_*``, which have deadlines. Every ``DataPlane`` method is called on the backend's own
thread and must return at once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

from .border import BoundaryRequest, Freeze, Installed, Order
from .errors import ConsensusError
from .member import Address, Member
from .view import Reason, View

Source = Callable[[Mapping[str, str]], Iterator[bytes | memoryview]]
"""Serves one HTTP path: takes the query, yields the chunks of the body. Runs on a worker thread. A RefusalError becomes an
answer with its status and text, any other LookupError a 409 with its text."""


class Mode(Enum):
    """How the caller learns of changes: it asks (ACTIVE: ``confirm`` before use), or is notified (PASSIVE)."""

    ACTIVE = "active"
    PASSIVE = "passive"


@dataclass(frozen=True, slots=True)
class Bound:
    """Where a member listens. ``address``: what it advertises; ``interface``: where its data plane should listen."""

    address: Address
    interface: str


@dataclass(frozen=True, slots=True)
class Stream:
    """A duplex connection between the programs of two members; whoever gets it owns it.

    ``socket``: a ``socket.socket``, connected and blocking. ``key``: 32 bytes of this stream alone, which only its two ends can
    derive where the job has a secret. ``peer``: the lifetime at the other end, proven where there is a secret. ``dialled``:
    whether this end asked for the stream. ``here``: this end.
    """

    socket: Any
    key: bytes = field(repr=False)
    peer: Member
    dialled: bool
    here: Member


class DataPlane(Protocol):
    """What a backend asks of the layer that moves tensors."""

    def handle(self, order: Order) -> None:
        """Carry out ``order`` (see ``border``), at once or later; orders are carried out in the sequence in which they come."""

    def facts(self) -> Mapping[str, Any]:
        """Plain values about the data plane, for status and metrics."""
        ...


class Consensus(ABC):
    """An agreed member list, whatever the backend. Names are those of FTLib's design where it has one."""

    member: Member

    @property
    @abstractmethod
    def id(self) -> str:
        """This member's id, known from the beginning; ``member`` is known only after ``start``."""

    @property
    def trust_refused(self) -> bool:
        """Whether "connection refused" by the host of a member proves that its process is gone."""
        return True

    def bind(self) -> Bound | None:
        """Bind the control address now instead of in ``start``. None: this backend does not know it. Idempotent."""
        return None

    @abstractmethod
    def start(self, data_plane: DataPlane | None = None, *, meta: Mapping[str, str] | None = None) -> None:
        """Bind, start the agent, and look for the cluster. ``meta`` is advertised with this member."""

    @abstractmethod
    def stop(self) -> None:
        """End the agent without a goodbye (see ``leave``). Idempotent."""

    def anew(self) -> Consensus | None:
        """A consensus for the next lifetime of this process: it joins the members that this one has met, and founds nothing.

        Not started; ``stop`` this one first. None: this backend cannot do that.
        """
        return None

    @abstractmethod
    def confirm(self) -> bool:
        """Whether the active view is the newest known and no change is under way. Local; sends nothing."""

    @abstractmethod
    def get_member_list(self) -> tuple[Member, ...]:
        """Confirm, then return the members of the newest installed view in seniority order (empty before the first view)."""

    @abstractmethod
    def passive_or_active(self) -> Mode:
        """The mode that was configured."""

    @abstractmethod
    def report_join(self, addresses: Sequence[str]) -> bool:
        """Ask the members at ``addresses`` to let this member in, besides the configured introducers.

        Blocks at most about a second. Returns whether any of them answered.
        """

    @abstractmethod
    def seek_admission(self) -> None:
        """This member is ready to take part: a joiner is admitted only after this call. Founders need not call it."""

    @abstractmethod
    def new_member_join(self) -> bool:
        """Whether a joiner waits to be admitted at the next boundary."""

    @abstractmethod
    def progress(self, finished: int, current: int, *, busy: bool = False, inner: int = 0) -> None:
        """Where the data plane is: ``finished``, the last call that ended; ``current``, the call in progress (0: none);
        ``busy``, whether operations of that call are under way. Joiners wait until those have ended. ``inner``: steps that this
        member has done by itself; who does some does not hang.

        Local and cheap: it travels with the pings that are sent anyway, so that peers know which member they wait for.
        """

    @abstractmethod
    def commit_to_leave(self) -> None:
        """From now on others may learn that this member leaves: it discounts no member any more (``docs/protocol.md``, rule 8).

        Call this before sending the first byte that says so. It binds the agent before it returns, for good. Local and cheap.
        """

    @abstractmethod
    def average_success(self, call: int) -> None:
        """The data plane finished ``call``. Local bookkeeping; sends nothing."""

    @abstractmethod
    def average_failure(self, call: int, suspects: Sequence[str]) -> None:
        """``call`` failed here: a *hint* against ``suspects`` (member ids; empty: unknown), checked at once.

        The caller freezes after this call; the member is then owed a new epoch. Where it suspects itself, as its own group has
        ended, that comes at once: nobody else is waited for or checked.
        """

    @abstractmethod
    def leave(self, *, ended: bool = False) -> None:
        """Say goodbye; ``Stopped(LeftError)`` follows when the others have agreed.

        ``ended``: the program has ended, so that there may be nothing left to join: see ``border.Leave``.
        """

    @abstractmethod
    def flushed(self, epoch: int, report: bytes) -> None:
        """Answer to ``Freeze``."""

    @abstractmethod
    def ready(self, view_id: str) -> None:
        """Answer to ``Installed``: the group of that view is built."""

    @abstractmethod
    def boundary(self, call: int, leavers: Sequence[str] = ()) -> None:
        """The data plane froze itself after ``call`` because its trailer asked for it.

        ``leavers``: ids of the members whose own trailer announced that they leave.
        """

    @property
    @abstractmethod
    def view(self) -> View | None:
        """The active view, None before the first."""

    def why(self, member_id: str) -> Reason | None:  # noqa: ARG002 - a backend may not know
        """Why a member of the previous view is not in the newest installed one; None if that is not known."""
        return None

    @property
    def driver(self) -> str:
        """Id of the member that drove the change to the newest view, "" if that is not known."""
        return ""

    @abstractmethod
    def status(self) -> dict[str, Any]:
        """What this member believes, as plain values (``ftlib status`` prints them)."""

    @abstractmethod
    def serve(self, path: str, source: Source) -> None:
        """Answer GET ``path`` at this member's address with what ``source`` yields."""

    def accept(self, path: str, handler: Callable[[Stream], None]) -> Callable[[], None]:  # noqa: ARG002 - see below
        """Give every stream that another member asks for at ``path`` to ``handler``, which owns it. Returns what ends that.

        ``handler`` is called on the thread that takes connections from the agent, for streams that have waited for this call
        within it; it must return soon, and not ``dial``. May be called before ``start``. Once it has ended, who dials for the
        path hears so, until it is accepted again. Raises ConfigError if the path cannot be used.
        """
        raise ConsensusError(f"{type(self).__name__} carries no streams between members")

    def dial(self, member: Member, path: str, *, timeout: float) -> Stream:  # noqa: ARG002
        """A stream to that lifetime of ``member``, once its program accepts ``path``: waits at most ``timeout`` seconds.

        Goes to the member's control port; with a secret both ends prove that they know it. Raises DialError if there is no
        stream in time (``gone``: that lifetime is over; ``ended``: its program has ended that acceptance), SecretError if the
        two sides do not have the same secret.
        """
        raise ConsensusError(f"{type(self).__name__} carries no streams between members")

    def watch(self, callback: Callable[[Member, str], None]) -> Callable[[], None]:  # noqa: ARG002
        """Call ``callback(member, why)`` for each member that is over: dead, gone or excluded. Returns what ends that.

        It is called once a lifetime, as soon as the view without it is installed here, on the backend's own thread: it must
        return at once. It hears of the end of this member's own lifetime, too, but not of what was before this call.
        """
        raise ConsensusError(f"{type(self).__name__} tells nobody who is over")

    @property
    def agent_pid(self) -> int:
        """The pid of this member's agent, for a fault on purpose: its death ends this lifetime. 0: no process of its own."""
        return 0

    def cut_off(self, seconds: float) -> bool:  # noqa: ARG002 - a backend may have no network
        """Fault on purpose: for so long this member neither hears nor is heard. False: this backend cannot do that."""
        return False

    @abstractmethod
    def wait_view(self, timeout: float) -> View | None:
        """Block until a view is active, at most ``timeout`` seconds; None if none is by then."""

    @abstractmethod
    def wait_known(self, timeout: float) -> View | None:
        """Block until this member knows a cluster (member or accepted applicant); its view, or None."""


class NullPlane:
    """A data plane that moves nothing: for clusters that only want an agreed member list, and for tests.

    It answers every order at once: there is never anything to freeze, to build or to finish.
    """

    def __init__(self, consensus: Consensus) -> None:
        """``consensus`` takes the answers."""
        self._consensus = consensus

    def handle(self, order: Order) -> None:
        """There is no group to build, and every moment is a boundary. The view itself can be read from the consensus."""
        match order:
            case Freeze(epoch, _):
                self._consensus.flushed(epoch, b"")
            case Installed(view, _):
                self._consensus.ready(view.view_id)
            case BoundaryRequest(True):
                self._consensus.boundary(0)

    def facts(self) -> Mapping[str, Any]:
        """No facts."""
        return {}
