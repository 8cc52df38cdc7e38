"""Who believed what when: an observer that keeps, for each process lifetime, what a picture or a summary of the run needs.

All times are true (simulated) seconds since the recorder was added to its world.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from ...border import Activated, Freeze, Stopped
from ...errors import ExcludedError, JoinError, LeftError, QuorumLostError
from ...messages import Envelope, Message, Status
from ...protocol.state.effects import Effect, Note
from ...view import Cause, View
from ...wire.codec import Codec
from ..world.host import Host
from ..world.observer import Observer

WEIGHED = 8
"""One message in so many of each type is encoded once more, to know how long they are."""


class Activity(Enum):
    """What a process does."""

    SEARCHING = "searching"
    ACTIVE = "active"
    FROZEN = "frozen"
    STOPPED = "stopped"


class Cover(Enum):
    """What is true of a process beside its phase."""

    PAUSED = "paused"
    CUT_OFF = "cut off"
    """It cannot exchange messages with more than half of the others."""

    SUSPECTED = "suspected"
    """At least one other member suspects it."""

    DISTRUSTED = "distrusted"
    """More than half of the others do."""


class Mark(Enum):
    """What happened to a process at one moment."""

    KILLED = "killed"
    JOINED = "joined"
    """First active, later than the founders."""

    LEFT = "left"
    EXCLUDED = "excluded"
    QUORUM_LOST = "quorum lost"
    TURNED_AWAY = "turned away"
    DIED = "said that it is dead"


_MARKS = {
    LeftError: Mark.LEFT,
    ExcludedError: Mark.EXCLUDED,
    QuorumLostError: Mark.QUORUM_LOST,
    JoinError: Mark.TURNED_AWAY,
}


@dataclass(slots=True)
class Span:
    """A stretch of a lifetime. ``end``: None while it lasts; ``view``: id of the active (or last active) one."""

    start: float
    end: float | None = None
    view: str = ""


@dataclass(slots=True)
class ProcessSpan:
    """One process lifetime. Spans of ``phases`` follow each other without a gap."""

    name: str
    member_id: str
    born: float
    phases: list[tuple[Activity, Span]] = field(default_factory=list)
    covers: list[tuple[Cover, Span]] = field(default_factory=list)
    marks: list[tuple[Mark, float]] = field(default_factory=list)
    over: float | None = None
    """When it was killed or stopped."""


@dataclass(slots=True)
class ViewRecord:
    """One view that some member acted in."""

    view: View
    number: int
    """In the order of first activation, from 0."""

    first: float
    last: float
    active_at: int = 0
    """Members that activated it."""

    driver: str = ""
    cause: str = ""
    seconds: float = 0.0
    """From the first evidence to the activation, at its driver (else at the first member that was active)."""

    removed: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Name -> (cause, detail)."""

    joined: tuple[str, ...] = ()


class Recorder(Observer):
    """Keeps ``lifetimes``, ``views`` and messages. Call ``sample`` when links may have changed, ``close`` at the end."""

    def __init__(self) -> None:
        self.lifetimes: dict[str, ProcessSpan] = {}
        self.views: dict[str, ViewRecord] = {}
        self.sent_by: dict[str, Counter[str]] = {}
        """Messages by type, for each member."""
        self.living_excluded: list[tuple[str, int]] = []
        """(name, epoch): voted out for silence or unreadiness though its process lived and had not been told to leave."""
        self.killed_total = 0
        self._sizes: Counter[str] = Counter()
        self._weighed: Counter[str] = Counter()
        self._count: Counter[str] = Counter()
        self._suspects: dict[str, set[str]] = {}
        self._suspected: Counter[str] = Counter()
        self._open: dict[tuple[str, Cover], Span] = {}
        self._latest: tuple[Message, int] | None = None
        """The message that was weighed last, and its length."""
        self._codec = Codec("simulation")
        self._began: float | None = None

    # What an observer sees

    def started(self, host: Host) -> None:
        """See ``Observer``."""
        life = self.lifetimes[host.id] = ProcessSpan(host.name, host.id, self.time)
        life.phases.append((Activity.SEARCHING, Span(self.time)))
        self._suspects[host.id] = set()

    def killed(self, host: Host) -> None:
        """See ``Observer``."""
        life = self.lifetimes[host.id]
        if host.stopped is None or life.over is None:
            self._end(life)
            life.marks.append((Mark.KILLED, self.time))
            self.killed_total += 1

    def paused(self, host: Host) -> None:
        """See ``Observer``."""
        self._cover(host.id, Cover.PAUSED, True)

    def resumed(self, host: Host) -> None:
        """See ``Observer``."""
        self._cover(host.id, Cover.PAUSED, False)

    def sent(self, host: Host, target: Host | None, message: Message) -> None:  # noqa: ARG002 - lost ones are sent, too
        """See ``Observer``."""
        kind = type(message).__name__
        mine = self.sent_by.get(host.id)
        if mine is None:
            mine = self.sent_by[host.id] = Counter()
        mine[kind] += 1
        count = self._count[kind] = self._count[kind] + 1
        if count % WEIGHED == 1:
            if self._latest is None or self._latest[0] is not message:  # the same goes to thousands
                envelope = Envelope("simulation", host.id, host.machine.member.address, message)
                self._latest = message, len(self._codec.encode(envelope))
            self._sizes[kind] += self._latest[1]
            self._weighed[kind] += 1

    def effect(self, host: Host, effect: Effect) -> None:
        """See ``Observer``."""
        match effect:
            case Freeze():
                self._enter(host, Activity.FROZEN)
            case Activated(view):
                self._activated(host, view)
            case Stopped(error):
                life = self.lifetimes[host.id]
                life.marks.append((_MARKS.get(type(error), Mark.DIED), self.time))
                self._enter(host, Activity.STOPPED)
                self._end(life, killed=False)
            case Note(kind="suspect"):
                self._look(host, host.machine.suspects())

    def settled(self, host: Host) -> None:
        """See ``Observer``."""
        known = self._suspects.get(host.id)
        if known:
            still = [key for key in known if host.machine.belief(key) is Status.SUSPECT]
            if len(still) != len(known):
                self._look(host, still)

    # The world as it is now

    def sample(self) -> None:
        """Look at the links, which no hook tells of."""
        faults, present = self.world.faults, [h for h in self.world.hosts.values() if h.alive and h.stopped is None]
        lost: Counter[str] = Counter()
        pairs = {(min(link), max(link)) for link in faults.cut}
        there = {host.id for host in present}
        for one, other in pairs:
            if one in there and other in there:
                lost[one] += 1
                lost[other] += 1
        for host in present:
            self._cover(host.id, Cover.CUT_OFF, 2 * lost[host.id] > len(present) - 1 > 0)

    def close(self) -> None:
        """The run is over: whatever lasts ends now."""
        for life in self.lifetimes.values():
            if life.over is None and life.phases[-1][1].end is None:
                life.phases[-1][1].end = self.time
        for span in self._open.values():
            span.end = self.time
        self._open.clear()

    @property
    def time(self) -> float:
        """Seconds since the first look at the world."""
        if self._began is None:
            self._began = self.world.now
        return self.world.now - self._began

    def messages(self) -> Counter[str]:
        """Sent, by type."""
        return +self._count

    def bytes_sent(self, member_id: str) -> float:
        """What a member sent, without the seal; from the mean length of each type."""
        return sum(self.length(kind) * count for kind, count in self.sent_by.get(member_id, Counter()).items())

    def length(self, kind: str) -> float:
        """Mean bytes of a type of message."""
        return self._sizes[kind] / self._weighed[kind] if self._weighed[kind] else 0.0

    # Inside

    def _enter(self, host: Host, phase: Activity, view: str = "") -> None:
        life = self.lifetimes[host.id]
        last, span = life.phases[-1]
        if life.over is not None or (last is phase and span.view == view):
            return
        if phase is Activity.FROZEN and last is not Activity.ACTIVE:
            return  # a joiner, or frozen already
        span.end = self.time
        life.phases.append((phase, Span(self.time, view=view or span.view)))

    def _end(self, life: ProcessSpan, *, killed: bool = True) -> None:
        if life.over is None or killed:
            life.over = self.time
        life.phases[-1][1].end = self.time
        for cover in Cover:
            self._cover(life.member_id, cover, False)
        for accused in self._suspects.pop(life.member_id, set()):
            self._accuse(accused, -1)

    def _cover(self, member_id: str, cover: Cover, on: bool) -> None:
        span = self._open.get((member_id, cover))
        if on and span is None and self.lifetimes[member_id].over is None:
            span = self._open[member_id, cover] = Span(self.time)
            self.lifetimes[member_id].covers.append((cover, span))
        elif not on and span is not None:
            span.end = self.time
            del self._open[member_id, cover]

    def _look(self, host: Host, suspects: Iterable[str]) -> None:
        """``host`` suspects exactly these."""
        before, now = self._suspects.get(host.id, set()), set(suspects)
        if host.alive and host.stopped is None:
            self._suspects[host.id] = now
            for accused in sorted(now - before):
                self._accuse(accused, 1)
            for accused in sorted(before - now):
                self._accuse(accused, -1)

    def _accuse(self, accused: str, change: int) -> None:
        self._suspected[accused] += change
        if accused in self.lifetimes:
            by, others = self._suspected[accused], len(self._suspects) - 1
            self._cover(accused, Cover.SUSPECTED, by > 0)
            self._cover(accused, Cover.DISTRUSTED, 2 * by > others > 0)

    def _activated(self, host: Host, view: View) -> None:
        record = self.views.get(view.view_id)
        if record is None:
            record = self.views[view.view_id] = ViewRecord(view, len(self.views), self.time, self.time)
            self._exclusions(host, view)
        if record.active_at == 0 or host.machine.driver == host.id:
            self._describe(record, host)
        record.active_at += 1
        record.last = self.time
        life = self.lifetimes[host.id]
        if life.phases[-1][0] is Activity.SEARCHING and view.epoch > 1:
            life.marks.append((Mark.JOINED, self.time))
        self._enter(host, Activity.ACTIVE, view.view_id)

    def _describe(self, record: ViewRecord, host: Host) -> None:
        """From the history of ``host``, which has just activated the view."""
        change: dict[str, Any] = host.machine.last_change()
        record.driver = self._name(host.machine.driver)
        record.cause = change.get("cause", "")
        record.seconds = change.get("phases", {}).get("total", 0.0)
        record.joined = tuple(self._name(key) for key in change.get("joined", ()))
        gone = [(self._name(item["id"]), (item["cause"] or "unknown", item["detail"])) for item in change.get("removed", ())]
        record.removed = dict(gone)

    def _exclusions(self, host: Host, view: View) -> None:
        for member_id, reason in host.machine.reasons.items():
            victim = self.world.hosts.get(member_id)
            if (
                victim is not None
                and victim.alive
                and reason.cause in (Cause.SILENCE, Cause.UNREADY, Cause.SEVERED, Cause.PROOF)
            ):
                self.living_excluded.append((victim.name, view.epoch))

    def _name(self, member_id: str) -> str:
        life = self.lifetimes.get(member_id)
        return member_id if life is None else life.name
