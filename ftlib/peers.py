"""Where the other members are, as their pings told."""

from __future__ import annotations

from collections.abc import Container

__all__ = ["Peers"]


class Peers:
    """Part of the plane, and guarded by its lock."""

    def __init__(self) -> None:
        self.places: dict[str, tuple[int, int]] = {}
        """(finished, current) by member id."""
        self.changes: dict[str, float] = {}
        """When that changed last (seconds on the plane's clock)."""

    def note(self, member_id: str, place: tuple[int, int], now: float) -> None:
        """One of them has told."""
        if self.places.get(member_id) != place:
            self.places[member_id] = place
            self.changes[member_id] = now

    def keep(self, ids: Container[str]) -> None:
        """Forget all others."""
        self.places = {member_id: place for member_id, place in self.places.items() if member_id in ids}
        self.changes = {member_id: since for member_id, since in self.changes.items() if member_id in ids}
