"""What a simulated store holds: values, and floors that only rise. Every change is one moment; nothing here takes time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum


class ChangeKind(Enum):
    """What can be done to a store."""

    CREATE = "create"
    TAKE_BACK = "take back"
    """A creator removes what it made, having seen that it is below the floor."""

    WRITE = "write"
    DELETE = "delete"
    RAISE = "raise"
    WIPE = "wipe"


@dataclass(frozen=True, slots=True)
class Change:
    """A change of the store. ``number``: of what was created, or of the floor; ``below``: whether that is under its floor."""

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
        self._floors: dict[str, int] = {}

    def read(self, key: str) -> bytes | None:
        """The value, None where there is none (any more)."""
        value, until = self._values.get(key, (None, 0.0))
        return value if until > self._clock() else None

    def floor(self, name: str) -> int:
        """0 where it was never raised."""
        return self._floors.get(name, 0)

    def names(self, prefix: str) -> list[str]:
        """The keys that begin so, sorted."""
        return sorted(key for key in self._values if key.startswith(prefix) and self.read(key) is not None)

    def values(self, keys: list[str]) -> Mapping[str, bytes]:
        """Of those that are there."""
        return {key: value for key in keys if (value := self.read(key)) is not None}

    def create(self, key: str, value: bytes, number: int = 0, floor: str = "") -> bool:
        """Exclusively. The floor is not looked at, but told: who creates below it has to take that back."""
        if self.read(key) is not None:
            return False
        self._values[key] = (value, float("inf"))
        self._told(Change(ChangeKind.CREATE, key, value, number, bool(floor) and number < self.floor(floor)))
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

    def raise_floor(self, name: str, number: int) -> int:
        """What it is then."""
        if number > self.floor(name):
            self._floors[name] = number
            self._told(Change(ChangeKind.RAISE, name, b"", number))
        return self.floor(name)

    def wipe(self) -> None:
        """Somebody removes everything."""
        self._values.clear()
        self._floors.clear()
        self._told(Change(ChangeKind.WIPE))
