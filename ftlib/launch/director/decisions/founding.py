"""Who founds one cluster together, and at which addresses: workers are started once all of these are known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class Founding:
    """One founding. Another one has another number, so that an answer to this one is not taken for one to that."""

    number: int = 0
    members: Sequence[int] = ()
    """Indices of its workers, in order."""
    _addresses: dict[int, str] = field(default_factory=dict)

    def next(self, members: Sequence[int]) -> Founding:
        """The one after this."""
        return Founding(self.number + 1, tuple(members))

    def bound(self, members: Sequence[int], addresses: Sequence[str]) -> None:
        """The sockets of these are bound at these addresses."""
        self._addresses |= dict(zip(members, addresses, strict=True))

    @property
    def complete(self) -> bool:
        """Whether all addresses are known."""
        return len(self._addresses) >= len(self.members)

    @property
    def addresses(self) -> tuple[str, ...]:
        """Those that are known: whom a worker asks that is to found with them."""
        return tuple(self._addresses[index] for index in self.members if index in self._addresses)

    def address_of(self, index: int) -> str:
        """Where a worker founds; empty: it has no place here."""
        return self._addresses.get(index, "")

    def forget(self, index: int) -> None:
        """Nobody will be at this worker's address any more."""
        self._addresses.pop(index, None)

    def numbered(self, host_of: Callable[[int], str]) -> list[tuple[int, int]]:
        """Each member, and which of the sockets bound at its host are its own."""
        seen: dict[str, int] = {}
        found = []
        for index in self.members:
            host = host_of(index)
            found.append((index, seen.get(host, 0)))
            seen[host] = seen.get(host, 0) + 1
        return found
