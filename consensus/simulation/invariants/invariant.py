"""What all checkers share: a number, a name, facts to go by, and how to report a violation."""

from __future__ import annotations

import heapq
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, NoReturn

from ...errors import StoppedError
from ...protocol.state.effects import Note
from ...view import View
from ..world.host import Host
from ..world.observer import Observer
from .facts import Health, Record, StoreLog

SLACK = 1e-6
"""Seconds by which floating point may be off."""

KEPT = 400
"""Events that are remembered."""

TOLD = 40
"""Events that are told."""

NAMED = 12
"""Of longer lists the rest is only counted."""


class Violation(AssertionError):
    """``number``: of the invariant, as ``docs/protocol.md`` counts them; the text tells who, when, and what led there."""

    def __init__(self, number: int, title: str, text: str, log: str) -> None:
        """``log``: what happened lately, a line an event."""
        super().__init__(f"invariant {number} ({title}): {text}\n{log}".rstrip())
        self.number = number
        self.text = text


class EventLog(Observer):
    """What happened lately, for people: kept as it happens, put into words only when a violation is told. Newest last."""

    def __init__(self) -> None:
        self._lines: deque[tuple[float, str, str, View | str]] = deque(maxlen=KEPT)

    def name(self, member_id: str) -> str:
        """A member as a reader may remember it: its name in the script, and the first digits of its id."""
        host = self.world.hosts.get(member_id)
        return member_id[:6] if host is None else f"{host.name}~{member_id[:4]}"

    def names(self, ids: Iterable[str]) -> str:
        """Several members, in the given order."""
        known = list(ids)
        more = f" and {len(known) - NAMED} more" if len(known) > NAMED else ""
        return ", ".join(self.name(key) for key in known[:NAMED]) + more if known else "nobody"

    def show(self, view: View | None) -> str:
        """A view with its members' names."""
        return "no view" if view is None else f"view {view.epoch} <{view.view_id[:6]}: {self.names(view.ids)}>"

    def add(self, host: Host, what: str, view: View | str = "") -> None:
        """Remember that ``host`` did ``what`` (with ``view``, if one is given)."""
        self._lines.append((self.world.now, host.id, what, view))

    def text(self) -> str:
        """The newest events, a line each."""
        lines = list(self._lines)[-TOLD:]
        return "\n".join(
            f"  {at:9.4f}  {self.name(key):<12} {what} {self.show(of) if isinstance(of, View) else of}".rstrip()
            for at, key, what, of in lines
        )

    def started(self, host: Host) -> None:
        """See ``Observer``."""
        self.add(host, "starts")

    def killed(self, host: Host) -> None:
        """See ``Observer``."""
        self.add(host, "dies")

    def paused(self, host: Host) -> None:
        """See ``Observer``."""
        self.add(host, "is stopped")

    def resumed(self, host: Host) -> None:
        """See ``Observer``."""
        self.add(host, "goes on")

    def adopted(self, host: Host, view: View) -> None:
        """See ``Observer``."""
        self.add(host, "follows", view)

    def installed(self, host: Host, view: View, reports: Mapping[str, bytes]) -> None:  # noqa: ARG002
        """See ``Observer``."""
        self.add(host, "installs", view)

    def activated(self, host: Host, view: View) -> None:
        """See ``Observer``."""
        self.add(host, "acts in", view)

    def stopped(self, host: Host, error: StoppedError) -> None:
        """See ``Observer``."""
        self.add(host, f"stops: {type(error).__name__}:", str(error))

    def noted(self, host: Host, note: Note) -> None:
        """See ``Observer``."""
        if note.level >= logging.INFO:
            self.add(host, f"notes {note.kind}:", note.text)


@dataclass(frozen=True)
class Facts:
    """What all invariants of one world share."""

    log: EventLog
    health: Health
    record: Record
    store_log: StoreLog
    agenda: Agenda

    @classmethod
    def of_nothing(cls) -> Facts:
        """Before anything has happened."""
        health = Health()
        return cls(EventLog(), health, Record(health), StoreLog(), Agenda())

    def observers(self) -> list[Observer]:
        """In the order in which they must be shown what happens."""
        return [self.agenda, self.health, self.record, self.store_log, self.log]


class Agenda(Observer):
    """What invariants want to look at later. The world does not notice."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._asked = 0

    def at(self, time: float, action: Callable[[], None]) -> None:
        """Call ``action`` with the first event at ``time`` or later."""
        self._asked += 1
        heapq.heappush(self._due, (time, self._asked, action))

    def settled(self, host: Host) -> None:  # noqa: ARG002
        """See ``Observer``."""
        while self._due and self._due[0][0] <= self.world.now:
            heapq.heappop(self._due)[2]()


class Invariant(Observer):
    """A checker. A violation is raised by the hook that sees it, at the moment it happens."""

    number: ClassVar[int] = 0
    title: ClassVar[str] = ""

    def __init__(self, facts: Facts) -> None:
        self.log = facts.log
        self.health = facts.health
        self.record = facts.record
        self.store_log = facts.store_log
        self.agenda = facts.agenda

    def fail(self, text: str) -> NoReturn:
        """Raise: ``text`` says who broke what; what happened lately is added."""
        raise Violation(self.number, self.title, f"at {self.now:.4f} s {text}", self.log.text())
