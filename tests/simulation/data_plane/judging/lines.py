"""Sides of a partition that go on apart (policy ``any``): what holds for all of a job holds on each line of views alone.

A view is on one line with all that it descends from, and with all that descends from it. Where the policy never forks, all
views are on one.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from consensus import View
from consensus.config import Policy
from consensus.simulation import Host, Observer

K = TypeVar("K")
V = TypeVar("V")


class Lines(Observer):
    """Which views descend from which. ``world.observe`` it."""

    def __init__(self) -> None:
        self._views: dict[str, View] = {}

    def adopted(self, host: Host, view: View) -> None:
        """See ``Observer``."""
        self._views.setdefault(view.view_id, view)

    def same(self, one: View, other: View) -> bool:
        """Whether one descends from the other; a gap in what is known proves nothing."""
        if self.world.config.policy is not Policy.ANY:
            return True
        older, newer = sorted((one, other), key=lambda view: view.epoch)
        below: View | None = newer
        while below is not None and below.epoch > older.epoch:
            below = self._views.get(below.parent_id)
        return below is None or below.view_id == older.view_id


class OnLine(Generic[K, V]):
    """One value a key on each line, and the view in which it came to be."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines
        self._rows: dict[K, list[tuple[View, V]]] = {}

    def find(self, key: K, view: View) -> V | None:
        """What there is on the line of ``view``."""
        return next(iter(self._values(key, view)), None)

    def settle(self, key: K, view: View, value: V) -> V:
        """A value on the line of ``view`` that differs; if there is none ``value``, which is there from now on."""
        different = next((other for other in self._values(key, view) if other != value), None)
        if different is not None:
            return different
        rows = self._rows.setdefault(key, [])
        if all(other.view_id != view.view_id for other, _ in rows):
            rows.append((view, value))
        return value

    def _values(self, key: K, view: View) -> list[V]:
        return [value for other, value in self._rows.get(key, ()) if self._lines.same(other, view)]
