"""What goes wrong in a rehearsal, beyond what is always so: see ``stream`` and ``communicator``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any

from ftlib.errors import ConfigError

VARIABLE = "FTLIB_REHEARSAL"
"""The environment variable that holds faults, e.g. ``start_seconds=2, rank=1, stop=hangs``: names of ``Faults``' fields."""


class Way(Enum):
    """How a step of a communicator's life goes."""

    WORKS = "works"
    FAILS = "fails"
    HANGS = "hangs"


@dataclass(frozen=True, slots=True)
class Faults:
    """Faults of one process. The defaults are an accelerator in good health."""

    start: Way = Way.WORKS
    """Of a communicator. A start that hangs ends when the communicator is stopped."""
    start_seconds: float = 0.0
    """How long a start takes before the ranks meet, or before it fails."""
    launch_seconds: float = 0.0
    """So long after the call an operation is launched on the device."""
    kernel_seconds: float = 0.0
    """So long the operations of a launch wait on the device before they do anything."""
    silent: bool = False
    """Whether the death of a peer is never reported. Else ``Ticket.error`` does, and an operation under way still hangs."""
    error_at: int = 0
    """Number of the launch that fails asynchronously at this member, and hangs, counted from 1; 0: none."""
    stop: Way = Way.WORKS
    """``hangs``: operations end, and then ``Communicator.stop`` never returns."""
    stuck: bool = False
    """Whether operations under way do not end when their communicator is stopped."""
    free: Way = Way.WORKS
    """Of ``Communicator.free``."""
    rank: int = -1
    """The only rank at which there are faults; -1: all."""
    communicators: int = 0
    """The number of communicators of the process that have faults, after which all is well; 0: all of them."""

    def __post_init__(self) -> None:
        """ConfigError unless times and counts can be meant."""
        for field in fields(self):
            value, lowest = getattr(self, field.name), -1 if field.name == "rank" else 0
            if isinstance(value, (int, float)) and not lowest <= value < float("inf"):
                raise ConfigError(f"{VARIABLE}: {field.name} must be at least {lowest} and finite, not {value}")

    @classmethod
    def parse(cls, text: str) -> Faults:
        """From ``name=value`` pairs with commas between them. ConfigError naming what is wrong with them."""
        kinds: dict[str, type[Any]] = {field.name: type(field.default) for field in fields(cls)}
        found: dict[str, Any] = {}
        for pair in filter(None, (part.strip() for part in text.split(","))):
            name, equals, value = (part.strip() for part in pair.partition("="))
            if name not in kinds or not equals:
                raise ConfigError(f"{VARIABLE}: {pair!r} is no fault: write name=value with one of {', '.join(kinds)}")
            if name in found:
                raise ConfigError(f"{VARIABLE}: {name} is given twice")
            try:
                found[name] = _boolean(value) if kinds[name] is bool else kinds[name](value)
            except ValueError:
                raise ConfigError(f"{VARIABLE}: {name} cannot be {value!r}: {_choices(kinds[name])}") from None
        return cls(**found)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Faults:
        """Those of the environment variable; none if it is not set."""
        return cls.parse((os.environ if environment is None else environment).get(VARIABLE, ""))

    def at(self, rank: int, number: int) -> Faults:
        """The faults of a process's communicator ``number``, counted from 1, at ``rank``."""
        there = self.rank in (-1, rank) and (not self.communicators or number <= self.communicators)
        return self if there else Faults()


def _boolean(text: str) -> bool:
    if text not in ("0", "1"):
        raise ValueError
    return text == "1"


def _choices(kind: type) -> str:
    if kind is Way:
        return f"choose one of {', '.join(way.value for way in Way)}"
    return "choose 0 or 1" if kind is bool else f"write {'a whole number' if kind is int else 'a number of seconds'}"
