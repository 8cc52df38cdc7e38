"""Small values that the members have agreed upon while they trained, such as the order in which gradients become ready.

They travel with the registered state, whatever the program registers: to joiners and spares, into checkpoints, and back from
them. So a member that has the state acts on the same values as the others.
"""

from __future__ import annotations

from collections.abc import Mapping


class Agreed:
    """The values by name; one object for each worker, used by the training thread between calls and within them."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._names = 0
        self._obstacles: list[str] = []
        self.loads = 0
        """How often the registered state was loaded here, these values being the last part of it."""

    def name(self) -> str:
        """A new name. Programs that ask in the same order get the same names, in every worker."""
        self._names += 1
        return str(self._names)

    def get(self, name: str) -> bytes | None:
        """The value of that name; None if there is none."""
        return self._values.get(name)

    def put(self, name: str, value: bytes) -> None:
        """Set a value, at all members between the same two calls."""
        self._values = {**self._values, name: value}  # other threads may read the state meanwhile

    def hinder(self, reason: str) -> None:
        """From now on averages cannot be replayed here, for this reason."""
        self._obstacles.append(reason)

    @property
    def obstacle(self) -> str:
        """Why averages cannot be replayed; empty if nothing here is against it."""
        return self._obstacles[0] if self._obstacles else ""

    def state(self) -> dict[str, bytes]:
        """The values, for the tree of the registered state."""
        return dict(self._values)

    def load(self, state: object, *, own: bool = False) -> None:
        """Take over the values of another state; none if it has none, as in checkpoints of older releases. ``own``: it is one
        that this member had before.
        """
        values = state if isinstance(state, Mapping) else {}
        self._values = {str(name): value for name, value in values.items() if isinstance(value, bytes)}
        self.loads += not own
