"""The two interfaces that a driver connects: the protocol core that decides, and the carrier of effects out of this process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from ...errors import JoinError
from ...member import Address, Member
from ...messages import Message
from ...progress import Progress
from ...protocol.state.effects import Effect
from ...protocol.state.inputs import Input
from ...store_requests import StoreOp
from ...view import Reason, View


class DrivenMachine(Protocol):
    """What the driver needs of ``protocol.machine.Machine``. No method blocks; ``now`` never goes back."""

    @property
    def view(self) -> View | None:
        """The newest chosen view with this member: the one whose members its ``status`` shows."""

    @property
    def known_view(self) -> View | None:
        """The newest chosen view that is known; for a joiner the cluster's view as it received it."""

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

    def handle(self, what: Input, now: float, /) -> None:
        """Handle a report of the data plane, or something that the agent has found out."""

    def set_progress(self, progress: Progress, /) -> None:
        """Set the progress that pings carry."""

    def status(self) -> dict[str, Any]:
        """Plain values."""
        ...


class Carrier(Protocol):
    """Carries out the effects that leave this process."""

    def send(self, address: Address, message: Message) -> None:
        """``Send``."""

    def ask(self, request: StoreOp) -> None:
        """``Ask``."""

    def check(self, member: Member) -> None:
        """``Check``."""

    def keep(self, members: tuple[Member, ...]) -> None:
        """``KeepConnections``."""

    def fence(self, member: Member, reason: str, *, command: bool) -> None:
        """``Fence``."""

    def explain_join(self, error: JoinError) -> None:
        """Look at the introducers once more, and soon call the driver's ``stop`` with an error that says what was found."""

    def let_go(self) -> None:
        """Close all sockets: the core has failed, or has announced that this member is dead."""
