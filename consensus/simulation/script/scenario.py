"""A history as data: a header and timed events, one line each, that people can read and change.

    seed=7 size=3 fences=0 trust_refused=1 mesh_limit=32 skew=1000 drift=1 early=0 rest=0.5
    0.310 pause m2
    0.930 split m0 m1,m2
    1.000 kill m1

Times count from the moment at which the job has been founded (``early=1``: from the start of its processes). Events name
processes (founders ``m0`` ..., joiners ``j0`` ...), and one about a process that is not there (any more) does nothing: so what
is left is a history, too, when events are taken away. What an event does is said in ``commands``.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from ...config import Config, Liveness, Policy

URL = "simulated://store"

TIMEOUT = 1.0
"""Seconds that an operation of the simulated store may take: histories are short."""


POLICIES = ("", Policy.ANY.value, Policy.STORAGE.value)
"""What ``Scenario.policy`` may be."""


class ScriptError(ValueError):
    """A history's text makes no sense; says what to write instead."""


@dataclass(frozen=True)
class Event:
    """``command`` happens ``at`` seconds after the beginning."""

    at: float
    command: str
    words: tuple[str, ...] = ()

    def __str__(self) -> str:
        return " ".join((f"{self.at:.6f}".rstrip("0").rstrip("."), self.command, *self.words))

    @classmethod
    def parse(cls, line: str) -> Event:
        """The inverse of ``str``; ScriptError says what is wrong."""
        at, *rest = line.split()
        try:
            time = float(at)
        except ValueError:
            raise ScriptError(f"{line!r} is no event: write a time in seconds, a command, and its words") from None
        if not rest:
            raise ScriptError(f"{line!r} has no command: write a time in seconds, a command, and its words")
        return cls(time, rest[0], tuple(rest[1:]))


@dataclass(frozen=True)
class Scenario:
    """``size`` founders, what is true all the time, and the events in order of time."""

    seed: int
    """Of everything that the events leave open: latencies, who is asked, ids."""

    size: int
    fences: bool = False
    """Whether every process has a supervisor."""

    trust_refused: bool = True
    mesh_limit: int = 32
    skew: float = 0.0
    drift: float = 0.0
    early: bool = False
    """Whether events happen from the start of the processes on, and not only once all are in one view."""

    policy: str = ""
    """"storage": a store that all share decides; "any": the sides of a cut go on apart; "": whatever is played (``config``)."""

    leases: bool = False
    """With a store: whether members find out who is alive by leases in it."""

    files: bool = False
    """With a store: whether that is a directory of files, or transactional (see ``store``)."""

    notices: bool = True
    """With a store: whether it tells of changes."""

    alone: bool = False
    """With leases: whether nobody is given an introducer: all meet in the store."""

    rest: float = 0.5
    """Seconds from the last event to the end of the safety phase."""

    events: tuple[Event, ...] = ()

    def config(self, base: Config | None = None) -> Config:
        """``base`` with what this history asks for."""
        known = base or Config()
        if self.policy == Policy.ANY.value:
            known = replace(known, policy=Policy.ANY)
        elif self.policy == Policy.STORAGE.value:
            liveness = Liveness.LEASES if self.leases else Liveness.PINGS
            timeout = min(known.storage_timeout, TIMEOUT)
            known = replace(
                known, policy=Policy.STORAGE, liveness=liveness, storage=URL, storage_timeout=timeout, storage_poll=timeout
            )
        return replace(known, initial_size=self.size, trust_refused=self.trust_refused, mesh_limit=self.mesh_limit)

    def __str__(self) -> str:
        return "\n".join([self.header, *(str(event) for event in self.events)])

    @property
    def header(self) -> str:
        """The first line."""
        words = []
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name == "events" or (item.name == "policy" and not value):
                continue
            if item.name not in _STORES or self.policy == Policy.STORAGE.value:
                words.append(f"{item.name}={int(value) if isinstance(value, bool) else _shown(value)}")
        return " ".join(words)

    @classmethod
    def parse(cls, text: str) -> Scenario:
        """The inverse of ``str``; lines that begin with # are remarks. ScriptError says what is wrong."""
        lines = [line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith("#")]
        if not lines:
            raise ScriptError("an empty history: the first line is at least seed=1 size=3")
        kinds: dict[str, type] = {item.name: _KINDS[str(item.type)] for item in fields(cls) if item.name != "events"}
        values: dict[str, Any] = {}
        for word in lines[0].split():
            name, _, value = word.partition("=")
            if name not in kinds:
                raise ScriptError(f"{word!r} in the first line is unknown: choose from {', '.join(kinds)}")
            try:
                values[name] = bool(int(value)) if kinds[name] is bool else kinds[name](value)
                if name == "policy" and value not in POLICIES:
                    raise ValueError(value)
            except ValueError:
                what = "any or storage" if name == "policy" else "a number"
                raise ScriptError(f"{word!r}: {name} takes {what}") from None
        if "seed" not in values or "size" not in values:
            raise ScriptError(f"{lines[0]!r} lacks seed= or size=")
        return cls(**values, events=tuple(Event.parse(line) for line in lines[1:]))


def _shown(value: object) -> str:
    return value if isinstance(value, str) else format(value, "g")


_KINDS: dict[str, type] = {"int": int, "float": float, "bool": bool, "str": str}
_STORES = ("leases", "files", "notices", "alone")
"""What makes a difference only where there is a store."""
