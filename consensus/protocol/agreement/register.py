"""Policy ``storage``: the record of an epoch in a shared store, created exclusively, *is* the decision about its view.

Here a member asks the store and is answered: it creates the records that it proposes, looks for those of others (often while
it waits for one, seldom else, at once when something stirs), and has old ones removed. What was not answered may have been done
or not, and may still be done; so nothing follows from silence, and nothing from a failure, but the next question. Only a record
counts that was read, or whose creation was confirmed. So a proposer may give up a proposal and make another: whichever of the
two the store has in the end is told to it when it asks again.

Whoever is told of a record by a member that has read it (FLUSH-REQUEST, INSTALL, CHOSEN) follows it without reading it again;
so does its creator, who may be the only one that the store did not answer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from math import inf

from ...config import Policy
from ...errors import StoreWipedError
from ...messages import ViewRecord
from ...store_requests import Away, Beat, Clean, CreateView, ReadViews, Recorded, StoreOp, StoreReply, Unread, Wiped
from ...view import View
from ..state.core import Core
from ..state.effects import Ask

KEPT = 2
"""So many records stay: the newest and its parent."""

SOON = 0.2
"""Seconds between two looks while something is awaited; ever more up to ``SELDOM``."""

SELDOM = 2.0

STIRRED = 0.03
"""Seconds from a sign of change to a look: by then the creator of a new record has told of it, and nobody need ask the store,
least of all all at once.
"""

AGAIN_AT_MOST = 1.0
"""Pauses after a store that did not answer grow up to this."""

WIPED_FOR = 3.0
"""Seconds for which a store has to say that its records are gone before that is believed: a network file system may show what
was there a moment ago, and believing it ends the job here."""

ROUTINE = (Beat, ReadViews)
"""Requests that every member asks again and again. A full store answers one of the two: it is back once it answers both."""

AWAY_EVERY = 10.0
"""Seconds from the first line that says that the store is away to the second; then twice as long each time."""


class Register:
    """One member's dealings with the records of views."""

    def __init__(
        self,
        core: Core,
        recorded: Callable[[ViewRecord, float], None],
        refused: Callable[[float, float], None],
        awaits: Callable[[], bool],
    ) -> None:
        """``recorded(record, now)``: a newer one stands. ``refused(now, until)``: what was to be created may not have been: try
        again at ``until``. ``awaits()``: whether this member needs a newer view than it has.
        """
        self._core = core
        self._recorded = recorded
        self._refused = refused
        self._awaits = awaits
        self._proposed: dict[str, ViewRecord] = {}
        """What this member has asked to be created as the successor of its view, by view id."""
        self._creating: set[int] = set()
        """The epochs whose creation is not answered yet."""
        self._reading = False
        self._look_again = False
        self._next_look = inf
        self._rest = SOON
        self._failures = 0
        self._away_since: float | None = None
        self._failing: set[type[StoreOp]] = set()
        """Which of ``ROUTINE`` were not answered the last time, and which found something that cannot be read."""
        self._wiped_since: float | None = None
        self._next_note = inf

    @property
    def used(self) -> bool:
        """Whether there are records at all."""
        return self._core.config.policy is Policy.STORAGE

    # Questions

    def create(self, record: ViewRecord) -> None:
        """Have ``record`` decided, unless one of that epoch is under way."""
        if record.view.epoch not in self._creating:
            self._creating.add(record.view.epoch)
            self._proposed[record.view.view_id] = record
            self._core.outbox.emit(Ask(CreateView(record)))

    def told(self, view: View, now: float) -> None:
        """Others have read that ``view`` was recorded by this member: their word will do where the store does not answer it."""
        record = self._proposed.get(view.view_id)
        if record is None:
            self.look()
        else:
            self._recorded(record, now)

    def stirred(self, now: float) -> None:
        """Something in the store may have changed: look soon, unless somebody tells first."""
        if self.used and self._core.view is not None:
            self._next_look = min(self._next_look, now + STIRRED)

    def look(self) -> None:
        """Something may have changed."""
        if not self.used or self._core.stopped is not None:
            return
        self._next_look = inf  # planned anew once this one is answered
        if self._reading:
            self._look_again = True
            return
        self._reading, self._look_again = True, False
        self._core.outbox.emit(Ask(ReadViews(self._core.epoch, self._core.view_id)))

    def clean(self, view: View) -> None:
        """``view`` is active: nobody needs what came long before it."""
        if self.used and view.epoch > KEPT:
            self._core.outbox.emit(Ask(Clean(view.epoch + 1 - KEPT)))

    def adopt(self, now: float) -> None:
        """A newer view is followed."""
        self._proposed.clear()
        self._failing.discard(CreateView)
        self._rest = SOON
        self._plan(now)

    def tick(self, now: float) -> None:
        """Look when it is time; sooner when a newer view is needed."""
        if not self.used:
            return
        if self._next_look != inf and self._awaits():
            self._next_look = min(self._next_look, now + self._rest)
        if now >= self._next_look:
            self.look()

    def deadline(self) -> float:
        """When ``tick`` is needed next."""
        return self._next_look

    def _plan(self, now: float) -> None:
        if not self.used or self._core.view is None:
            self._next_look = inf  # who has no view yet: see ``survey``
        elif self._awaits() or self._wiped_since is not None:
            self._next_look, self._rest = now + self._rest, min(2 * self._rest, SELDOM)
        else:
            self._next_look, self._rest = now + self._core.config.storage_poll, SOON

    # Answers

    def answered(self, request: StoreOp, answer: StoreReply, now: float) -> None:
        """What came of a question of this member."""
        core = self._core
        wanted = False
        if isinstance(request, CreateView):
            self._creating.discard(request.record.view.epoch)
            wanted = core.view is None or request.record.view.epoch == core.epoch + 1  # else we have moved on
        elif isinstance(request, ReadViews):
            self._reading = False
        if core.stopped is not None:
            return
        record = self._take(request, answer, now)
        if record is not None and record.view.epoch > core.epoch:
            self._recorded(record, now)
        elif wanted:
            self._refused(now, now + (0.0 if isinstance(answer, Recorded) else self._pause()))
        if core.stopped is None and isinstance(request, ReadViews):
            if self._look_again:
                self.look()
            else:
                self._plan(now)

    def _take(self, request: StoreOp, answer: StoreReply, now: float) -> ViewRecord | None:
        """Note how the store is; the record that it told of."""
        if isinstance(answer, Away | Unread):
            if isinstance(answer, Unread) or isinstance(request, ROUTINE):
                self._failing.add(type(request))
            self._away(answer, now)
            return None
        self._failing.discard(type(request))
        if isinstance(answer, Wiped):
            self._wiped(answer, now)
            return None
        self._failures = 0
        if not self._failing:
            self._back(now)
        if not isinstance(answer, Recorded):
            return None
        self._wiped_since = None  # a lease that could be written says nothing of the records
        return answer.record

    def _pause(self) -> float:
        config, rng = self._core.config, self._core.rng
        return min(AGAIN_AT_MOST, config.resend * 2.0 ** min(self._failures, 10)) * (0.75 + 0.5 * rng.random())

    def _away(self, answer: Away | Unread, now: float) -> None:
        core = self._core
        self._failures += 1
        unread = isinstance(answer, Unread)
        core.note_store(answer.detail if unread else f"{answer.detail}; bring it back")
        if self._away_since is None:
            self._away_since, self._next_note = now, now
        if now >= self._next_note:
            away = now - self._away_since
            self._next_note = now + max(AWAY_EVERY, away)
            calm = core.view is not None and not self._awaits()
            awaited = "that can be read, or was removed" if unread else "it answers"
            text = f"{answer.detail}; membership cannot change until {awaited} ({away:.0f} s so far)"
            core.outbox.note(logging.WARNING, "store", f"{text}{', training goes on' if calm else ''}")

    def _wiped(self, answer: Wiped, now: float) -> None:
        core = self._core
        self._failures += 1
        if self._wiped_since is None:
            self._wiped_since = now
            core.outbox.note(logging.ERROR, "store", f"{answer.detail}; looking again for {WIPED_FOR:g} s")
        elif now - self._wiped_since >= WIPED_FOR:
            core.stop(StoreWipedError(f"{answer.detail}: nobody can tell any more who acts in this job; start it anew"))

    def _back(self, now: float) -> None:
        self._core.note_store("")
        if self._away_since is not None:
            text = f"the store answers again, after {now - self._away_since:.1f} s"
            self._core.outbox.note(logging.INFO, "store", text)
            self._away_since = None
