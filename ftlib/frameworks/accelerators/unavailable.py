"""What a group has where there is no accelerator."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ftlib.errors import GroupError
from ftlib.frameworks.base import Operation

from .base import Communicator, Ticket


class UnavailableCommunicator(Communicator):
    """Never ready, for a reason."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    @property
    def ready(self) -> bool:
        """False."""
        return False

    @property
    def trouble(self) -> str:
        """The reason."""
        return self._reason

    @property
    def idle(self) -> bool:
        """True."""
        return True

    def launch(self, operations: Sequence[Operation], after: Callable[[], None] | None = None) -> Ticket:  # noqa: ARG002
        """Raise a GroupError."""
        raise GroupError(f"there is no accelerator: {self._reason}")

    def stop(self) -> None:
        """Nothing runs."""

    def free(self) -> None:
        """Nothing is held."""
