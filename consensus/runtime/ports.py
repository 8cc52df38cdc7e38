"""The two sides that a driver stands between: the protocol core that decides, and the carrier of what leaves this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from ..errands import Answer, Errand
from ..errors import JoinError, StoppedError
from ..member import Address, Member
from ..messages import EvidenceKind, Message
from ..progress import Progress
from ..protocol.effects import Effect
from ..view import Reason, View

__all__ = ["Carrier", "Core"]


class Core(Protocol):
    """What the driver needs of ``protocol.machine.Machine``. No method blocks; ``now`` never goes back."""

    @property
    def known_view(self) -> View | None:
        """The newest chosen view that is known; for a joiner the cluster's, as it was told."""

    @property
    def active_view(self) -> View | None:
        """The newest activated view."""

    @property
    def installed_view(self) -> View | None:
        """The newest view handed to the data plane."""

    @property
    def reasons(self) -> Mapping[str, Reason]:
        """Why members of the view before the installed one are not in it."""

    @property
    def driver(self) -> str:
        """Id of the member that installs the newest chosen view ("": unknown)."""
        ...

    @property
    def changing(self) -> bool:
        """Whether a view change is under way."""

    @property
    def applicants_waiting(self) -> bool:
        """Whether a joiner waits to be admitted."""

    def start(self, now: float) -> None:
        """Begin to join or found."""

    def receive(self, sender: str, address: Address, message: Message, now: float, /) -> None:
        """A message arrived."""

    def tick(self, now: float) -> None:
        """Run what is due."""

    def next_deadline(self) -> float | None:
        """When ``tick`` is needed next."""

    def drain(self) -> list[Effect]:
        """Effects to carry out, in order."""
        ...

    def answered(self, errand: Errand, answer: Answer, now: float, /) -> None:
        """What came of ``Ask``."""

    def stirred(self, now: float, /) -> None:
        """Something under the store's ``views/`` may have changed."""

    def evidence(self, accused: str, kind: EvidenceKind, detail: str, now: float, /) -> None:
        """Local evidence."""

    def checked(self, member_id: str, alive: bool | None, detail: str, now: float, /, *, listens: bool = False) -> None:
        """The result of a check. ``listens``: whether a connection was accepted there."""

    def flushed(self, epoch: int, report: bytes, now: float, /) -> None:
        """The data plane is frozen."""

    def ready(self, view_id: str, now: float, /) -> None:
        """The data plane has built its group."""

    def boundary(self, call: int, leavers: tuple[str, ...], now: float, /) -> None:
        """The data plane froze itself after ``call``."""

    def hint(self, suspects: tuple[str, ...], now: float, /) -> None:
        """The data plane froze itself after a failure."""

    def seek_admission(self, now: float, /) -> None:
        """Ready to be admitted."""

    def leave(self, after_call: int | None, now: float, /) -> None:
        """Leave gracefully."""

    def end(self, after_call: int | None, now: float, /) -> None:
        """The same, as the program has come to its end."""

    def add_introducers(self, addresses: tuple[Address, ...], now: float, /) -> None:
        """More members to join through."""

    def attend(self, address: Address, listening: bool) -> None:
        """Whether somebody listens at an introducer's address."""

    def heed_introducers(self, addresses: tuple[Address, ...], founder: bool, barred: str, now: float, /) -> None:
        """The introducers' names stand for other addresses now."""

    def set_progress(self, progress: Progress, /) -> None:
        """What rides on pings."""

    def die(self, detail: str, error: StoppedError, /) -> None:
        """Tell all that this member is dead, and stop."""

    def status(self) -> dict[str, Any]:
        """Plain values."""
        ...


class Carrier(Protocol):
    """What carries out the effects that leave this process."""

    def send(self, address: Address, message: Message) -> None:
        """``Send``."""

    def ask(self, errand: Errand) -> None:
        """``Ask``."""

    def check(self, member: Member) -> None:
        """``Check``."""

    def keep(self, members: tuple[Member, ...]) -> None:
        """``Tether``."""

    def fence(self, member: Member, reason: str, *, command: bool) -> None:
        """``Fence``."""

    def explain_join(self, error: JoinError, deliver: Callable[[JoinError], None]) -> None:
        """Look at the introducers once more and ``deliver`` the error with what was found, soon."""

    def let_go(self) -> None:
        """Close all sockets: the core has failed, or has said that this member is dead."""
