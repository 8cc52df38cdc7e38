"""What a simulated store holds: values, and compacted revisions, which only rise.

Every change is one moment; nothing here takes time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum


class ChangeKind(Enum):
    """What can be done to a store."""

    CREATE = "create"
    TAKE_BACK = "take back"
    """A creator removes what it made, having seen that it is below the compacted revision."""

    WRITE = "write"
    DELETE = "delete"
    COMPACT = "compact"
    WIPE = "wipe"


@dataclass(frozen=True, slots=True)
class Change:
    """A change of the store. ``number``: of what was created, or the compacted revision. ``below``: whether what was created is
    below the compacted revision of its series.
    """

    kind: ChangeKind
    key: str = ""
    value: bytes = b""
    number: int = 0
    below: bool = False


class InMemoryStore:
    """One store of one job. ``clock``: true time, for what expires; ``told``: sees every change, as it is made."""

    def __init__(self, clock: Callable[[], float], told: Callable[[Change], None]) -> None:
        self._clock = clock
        self._told = told
        self._values: dict[str, tuple[bytes, float]] = {}
        self._compacted: dict[str, int] = {}

    def read(self, key: str) -> bytes | None:
        """The value, None where there is none (any more)."""
        value, until = self._values.get(key, (None, 0.0))
        return value if until > self._clock() else None

    def compacted(self, series: str) -> int:
        """0 where it was never compacted."""
        return self._compacted.get(series, 0)

    def names(self, prefix: str) -> list[str]:
        """The keys that begin so, sorted."""
        return sorted(key for key in self._values if key.startswith(prefix) and self.read(key) is not None)

    def values(self, keys: list[str]) -> Mapping[str, bytes]:
        """Of those that are there."""
        return {key: value for key in keys if (value := self.read(key)) is not None}

    def create(self, key: str, value: bytes, number: int = 0, series: str = "") -> bool:
        """Exclusively. The compacted revision is not looked at: observers are told whether the value is below it. Who creates
        such a value has to take it back.
        """
        if self.read(key) is not None:
            return False
        self._values[key] = (value, float("inf"))
        self._told(Change(ChangeKind.CREATE, key, value, number, bool(series) and number < self.compacted(series)))
        return True

    def take_back(self, key: str, value: bytes) -> None:
        """Unless another value stands there by now."""
        if self.read(key) == value:
            del self._values[key]
            self._told(Change(ChangeKind.TAKE_BACK, key, value))

    def write(self, key: str, value: bytes, expires: float | None) -> None:
        """Make or replace."""
        self._values[key] = (value, float("inf") if expires is None else self._clock() + expires)
        self._told(Change(ChangeKind.WRITE, key, value))

    def delete(self, keys: tuple[str, ...]) -> None:
        """Those that are there."""
        for key in keys:
            if self._values.pop(key, None) is not None:
                self._told(Change(ChangeKind.DELETE, key))

    def compact(self, series: str, number: int) -> int:
        """What it is then."""
        if number > self.compacted(series):
            self._compacted[series] = number
            self._told(Change(ChangeKind.COMPACT, series, b"", number))
        return self.compacted(series)

    def wipe(self) -> None:
        """Somebody removes everything."""
        self._values.clear()
        self._compacted.clear()
        self._told(Change(ChangeKind.WIPE))
