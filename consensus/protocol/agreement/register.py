"""Policy ``storage``: the record of an epoch in a shared store, created exclusively, *is* the decision about its view.

A member asks the store to create the records that it proposes, reads those of others (often while it waits for one, seldom
otherwise, soon after a sign of change), and has old ones removed. An unanswered request may have been done or not, and may
still be done; so the only consequence of silence or a failure is the next request. Only a record that was read, or whose
creation was confirmed, counts. So a proposer may give up a proposal and make another: the next read shows which of the two the
store has.

A member that receives a record from another one that has read it (FLUSH-REQUEST, INSTALL, CHOSEN) follows it without reading it
again. So does the record's creator, even if it is the only member that the store did not answer.
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
"""The number of records that are kept: the newest and its parent."""

SOON = 0.2
"""Seconds between two reads while a record is awaited; growing up to ``SELDOM``."""

SELDOM = 2.0

STORE_CHANGED_DELAY = 0.03
"""Seconds from a notice that the store has changed to a read. By then the creator of a new record has usually sent it, so the
members need not all ask the store at once.
"""

AGAIN_AT_MOST = 1.0
"""Seconds up to which pauses grow while the store does not answer."""

WIPED_FOR = 3.0
"""Seconds for which a store has to say that its records are gone before a member believes it: a network file system may show an
old state, and believing it ends the job here."""

ROUTINE = (Beat, ReadViews)
"""Requests that every member repeats. A full store answers only one of the two: the store is back once it answers both."""

AWAY_EVERY = 10.0
"""Seconds from the first log line about a store that is away to the second; then twice as long each time."""


class Register:
    """One member's requests for records of views."""

    def __init__(
        self,
        core: Core,
        recorded: Callable[[ViewRecord, float], None],
        refused: Callable[[float, float], None],
        awaits: Callable[[], bool],
    ) -> None:
        """``recorded(record, now)``: a newer record stands. ``refused(now, until)``: the requested record may not have been
        created: try again at ``until``. ``awaits()``: whether this member needs a newer view than it has.
        """
        self._core = core
        self._recorded = recorded
        self._refused = refused
        self._awaits = awaits
        self._proposed: dict[str, ViewRecord] = {}
        """The records that this member has asked to be created as the successor of its view, by view id."""
        self._creating: set[int] = set()
        """The epochs whose creation is not answered yet."""
        self._reading = False
        self._look_again = False
        self._next_look = inf
        self._rest = SOON
        self._failures = 0
        self._away_since: float | None = None
        self._failing: set[type[StoreOp]] = set()
        """The requests of ``ROUTINE`` that were not answered the last time, and all requests that found an unreadable value."""
        self._wiped_since: float | None = None
        self._next_note = inf

    @property
    def used(self) -> bool:
        """Whether the policy uses records at all."""
        return self._core.config.policy is Policy.STORAGE

    # Questions

    def create(self, record: ViewRecord) -> None:
        """Ask the store to create ``record``, unless a creation for that epoch is under way."""
        if record.view.epoch not in self._creating:
            self._creating.add(record.view.epoch)
            self._proposed[record.view.view_id] = record
            self._core.outbox.emit(Ask(CreateView(record)))

    def told(self, view: View, now: float) -> None:
        """Others have read that this member recorded ``view``: their message suffices if the store did not answer this one."""
        record = self._proposed.get(view.view_id)
        if record is None:
            self.look()
        else:
            self._recorded(record, now)

    def store_changed(self, now: float) -> None:
        """Something in the store may have changed: look soon, unless a member sends the new view first."""
        if self.used and self._core.view is not None:
            self._next_look = min(self._next_look, now + STORE_CHANGED_DELAY)

    def look(self) -> None:
        """Read the newest record now, or once the read under way is answered."""
        if not self.used or self._core.stopped is not None:
            return
        self._next_look = inf  # planned again once this read is answered
        if self._reading:
            self._look_again = True
            return
        self._reading, self._look_again = True, False
        self._core.outbox.emit(Ask(ReadViews(self._core.epoch, self._core.view_id)))

    def clean(self, view: View) -> None:
        """``view`` is active: nobody needs the records long before it."""
        if self.used and view.epoch > KEPT:
            self._core.outbox.emit(Ask(Clean(view.epoch + 1 - KEPT)))

    def adopt(self, now: float) -> None:
        """Follow a newer view."""
        self._proposed.clear()
        self._failing.discard(CreateView)
        self._rest = SOON
        self._plan(now)

    def tick(self, now: float) -> None:
        """Read when it is time; sooner if a newer view is needed."""
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
            self._next_look = inf  # without a view ``survey`` reads
        elif self._awaits() or self._wiped_since is not None:
            self._next_look, self._rest = now + self._rest, min(2 * self._rest, SELDOM)
        else:
            self._next_look, self._rest = now + self._core.config.storage_poll, SOON

    # Answers

    def answered(self, request: StoreOp, answer: StoreReply, now: float) -> None:
        """The store answered a request of this member."""
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
        """Note the state of the store; returns the record in the answer."""
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
        self._wiped_since = None  # only here: a written lease says nothing about the records
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
