"""An observer that writes down what a reader of a history wants to know: see ``docs/protocol.md`` for what the words mean.

Messages of agreement with their fate, deaths, evidence, votes, and what each member believes. Detection's pings, acks and
rumours are left out (see ``words.HIDDEN``), and so is what is said again because no answer came.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from ...border import Activated, BoundaryRequest, Freeze, Installed, Stopped
from ...messages import JoinReply, JoinRequest, Message
from ...protocol.state.effects import Effect, Note, Send
from ...protocol.state.evidence import Proof
from ..invariants import inside
from ..world.observer import Observer
from .page import Page, PageLine
from .people import People
from .words import ABOUT, HIDDEN, about, words

if TYPE_CHECKING:
    from ..world.host import Host

LOST = "lost"
HELD = "held up"
NOBODY = "nobody is there"

ONCE = "once"
"""Marks what is no message, and not news when it is repeated."""


class Transcript(Observer):
    """Begins with ``begin``, or when the first process starts; ``str`` is the page so far.

    ``names``: member id -> name, by seniority; others are called as in the script. ``talk``: names of the types in ``HIDDEN``
    that are shown all the same; it and ``mute`` may be changed while the story goes on.
    """

    def __init__(self, names: Mapping[str, str] | None = None) -> None:
        self.people = People(names or {})
        self.page = Page(self.people)
        self.talk: frozenset[str] = frozenset()
        self.mute = False
        """Whether nothing is written down for now."""
        self._began: float | None = None
        self._at = 0.0
        self._entries: list[tuple[PageLine, str]] = []
        """Of this instant; and what, beside their text, makes two of them the same."""
        self._told: dict[tuple[str, str | None, str, str, str], str] = {}
        self._sent: tuple[Message, PageLine] | None = None
        self._addresses: dict[tuple[str, int], str] = {}
        self._address: tuple[str, int] = ("", 0)
        self._asked: set[tuple[str, str]] = set()
        """(member, joiner): who was asked to let whom in."""
        self._known: dict[str, inside.Opinion] = {}
        self._views: dict[str, str] = {}

    # The script's words

    def begin(self, hosts: Iterable[Host] = ()) -> None:
        """Time 0 is now; what ``hosts`` know already is no news."""
        self._began = self.world.now
        for host in hosts:
            self._meet(host)
            self._known[host.id] = inside.opinion(host.machine)
            self._views[host.id] = "" if host.machine.view is None else host.machine.view.view_id
        self.page.heading()

    def remark(self, text: str) -> None:
        """What the script does now."""
        self._write()
        self.page.remark(self._time, text)

    def beliefs(self, text: str) -> None:
        """A table: what everybody believes now, below ``text``."""
        self._write()
        self.page.remark(self._time, text)
        hosts = sorted(self.world.hosts.values(), key=lambda host: self.people.rank(host.id))
        states = [PageLine(host.id, None, _state(host, self.people)) for host in hosts]
        self.page.instant(self._time, states, timed=False)

    def __str__(self) -> str:
        self._write()
        return str(self.page)

    # What an observer sees

    def started(self, host: Host) -> None:
        """See ``Observer``."""
        if self._began is None:
            self.begin()
        self._meet(host)
        self._add(host, "starts")

    def killed(self, host: Host) -> None:
        """See ``Observer``."""
        self._add(host, "is killed" if host.stopped is None else "is gone")

    def paused(self, host: Host) -> None:
        """See ``Observer``."""
        self._add(host, "is stopped in the middle of what it does")

    def resumed(self, host: Host) -> None:
        """See ``Observer``."""
        self._add(host, "goes on")

    def sent(self, host: Host, target: Host | None, message: Message) -> None:
        """See ``Observer``."""
        there = self._addresses.get(self._address, "") if target is None else target.id
        self._tell(host, there, message, NOBODY if target is None else "")

    def told_itself(self, host: Host, message: Message) -> None:
        """See ``Observer``."""
        self._look(host)
        self._tell(host, host.id, message)

    def lost(self, host: Host, target: Host, message: Message) -> None:
        """See ``Observer``."""
        self._befell(host, target, message, LOST)

    def late(self, host: Host, target: Host, message: Message) -> None:
        """See ``Observer``."""
        self._befell(host, target, message, HELD)

    def effect(self, host: Host, effect: Effect) -> None:
        """See ``Observer``."""
        self._look(host)
        match effect:
            case Send(address, _):
                self._address = address
            case Freeze(epoch, _):
                self._add(host, f"freezes for epoch {epoch}")
            case BoundaryRequest(wanted):
                self._add(
                    host, "asks for a stop after a call, to let somebody in" if wanted else "waits for no such stop any more"
                )
            case Installed(view, _):
                self._add(host, f"builds the group of epoch {view.epoch}")
            case Activated(view):
                self._add(host, f"ACTS in epoch {view.epoch} {{{self.people.names(view.ids)}}}")
            case Stopped(error):
                self._add(host, f"stops: {type(error).__name__.removesuffix('Error')}: {self._clause(str(error))}")
            case Note(kind="suspect", about=accused):
                self._once(host, f"suspects {ABOUT}", accused)
            case Note(kind="blocked"):
                self._once(host, f"is blocked: {self._clause(effect.text)}")

    def settled(self, host: Host) -> None:
        """See ``Observer``."""
        self._look(host)

    # Inside

    @property
    def _time(self) -> float:
        return self.world.now - (self.world.now if self._began is None else self._began)

    def _meet(self, host: Host) -> None:
        self.people.meet(host.id, host.name)
        self._addresses[host.member.address] = host.id

    def _tell(self, host: Host, target: str, message: Message, fate: str = "") -> None:
        name = type(message).__name__
        if isinstance(message, JoinRequest):
            self._asked.add((target, host.id))
        beacon = isinstance(message, JoinReply) and (host.id, target) not in self._asked
        if (name not in HIDDEN and not beacon) or name in self.talk:
            entry = PageLine(host.id, target, words(message, self.people), about(message), fate)
            self._sent = (message, entry)
            self._push(entry, getattr(message, "parent_id", getattr(message, "view_id", "")))

    def _befell(self, host: Host, target: Host, message: Message, fate: str) -> None:
        if self._sent is None or self._sent[0] is not message or self._sent[1].target != target.id:
            self._tell(host, target.id, message, fate)  # it did not come to be sent
        else:
            self._sent[1].fate = fate

    def _look(self, host: Host) -> None:
        """What ``host`` believes now and did not before."""
        if self._began is None:
            return
        machine = host.machine
        before, now = self._known.get(host.id), inside.opinion(machine)
        self._known[host.id] = now
        for accused, proof in now.proofs.items():
            if before is None or accused not in before.proofs:
                self._add(host, self._verdict(accused, proof, now), accused)
        for accused in now.silent:
            if before is None or accused not in before.silent:
                self._once(host, f"takes {ABOUT} for silent", accused)
        for accused in sorted(now.shunned):
            if before is None or accused not in before.shunned:
                self._add(host, f"acks {ABOUT} no more in this epoch", accused)
        if now.waits and (before is None or not before.waits):
            self._add(host, "waits with its vote until T after its last ack to them")
        self._follow(host)

    def _clause(self, text: str) -> str:
        """The first of what a member says to people, with names; a view's id means nothing to them."""
        return self.people.translate(re.sub(r"\(\w{6}: ", "(", text.partition(";")[0]))

    def _verdict(self, accused: str, proof: Proof, now: inside.Opinion) -> str:
        told = " (says " in proof.detail  # who found it: see ``Accusations``
        found = f"hears that {ABOUT} is dead" if told else f"finds {ABOUT} dead ({self.people.translate(proof.detail)})"
        if accused in now.discounted:
            new = accused in now.newcomers and not proof.discounted
            return f"{found}, may discount it" + (": it is new" if new else "")
        return f"{found}, may not discount it: " + ("leaves itself" if proof.discounted else "no contact within T")

    def _follow(self, host: Host) -> None:
        view = host.machine.view
        if view is None or view.view_id == self._views.get(host.id):
            return
        self._views[host.id] = view.view_id
        listed = f"epoch {view.epoch} {{{self.people.names(view.ids)}}}"
        change = host.machine.last_change()
        if change["driver"] != host.id:
            self._add(host, f"follows {listed}")
        elif not view.parent_id:
            self._add(host, f"founds {listed}")
        else:
            without = f", {self.people.names(change['discounted'])} discounted" if change["discounted"] else ""
            self._add(host, f"counts the votes of {self.people.names(change['quorum'])}{without}: CHOSEN is {listed}")

    def _add(self, host: Host, text: str, accused: str = "") -> None:
        self._push(PageLine(host.id, None, text, accused))

    def _once(self, host: Host, text: str, accused: str = "") -> None:
        """What is news only once in a view."""
        self._push(PageLine(host.id, None, text, accused), f"{ONCE} {self._views.get(host.id)}")

    def _push(self, entry: PageLine, key: str = "") -> None:
        if self._began is None or self.mute:
            return
        if round(self._time, 3) != self._at:
            self._write()
            self._at = round(self._time, 3)
        self._entries.append((entry, key))

    def _write(self) -> None:
        """The instant is over: write it down, without what was said before."""
        news = []
        for entry, more in self._entries:
            if entry.target is not None or more.startswith(ONCE):
                key = (entry.actor, entry.target, entry.text, entry.about, more)
                before = self._told.get(key)
                if before == entry.fate or (before is not None and entry.fate == NOBODY):
                    continue
                self._told[key] = entry.fate
                if before is not None:
                    entry.text += " (again)"
            news.append(entry)
        self._entries.clear()
        self.page.instant(self._at, news)


def _state(host: Host, people: People) -> str:
    """What a member believes and does."""
    if not host.alive:
        return "is dead"
    if host.stopped is not None:
        return f"is out: {type(host.stopped).__name__.removesuffix('Error')}"
    machine = host.machine
    if machine.view is None:
        return "is in no view"
    active = machine.active_view
    parts = []
    if active is not None:
        parts.append(f"active in epoch {active.epoch} {{{people.names(active.ids)}}}")
    if active is not machine.view:
        parts.append(f"follows epoch {machine.view.epoch} {{{people.names(machine.view.ids)}}}, not active")
    if host.frozen_for > (0 if active is None else active.epoch):
        parts.append(f"frozen for epoch {host.frozen_for}")
    return ", ".join(parts)
