"""What the calls use up of the data: the registered sampler is told of every finished call and view change, in one order.

The sampler's state is replicated (see ``data.sampling``): a function of the shares in finished calls and of the reports at view
changes. This is where it learns of them: under the plane's lock, in the very transition in which a call is finished or a view
becomes active. So a flush report tells what was drawn as of the call that it says was finished.

*Whose state is here.* A founder's is, from the founding view on. A joiner's is once the registered state is: that on entry to a
call, and it is told what has happened since. Until then it takes part in calls with no share.

*Which members the first deal is over* depends on the views before the first call, and a member may have missed one of them. So
each founder's report says which members it believes these are. Where reports differ, all begin again with the newest view.

*Founders that register late* are told all that has happened since the founding view, which is little: what was drawn and given
back before the first step. It is kept for them until then; afterwards only what a state that was just loaded may lack.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ...data.sampling import Sampling, Share
from ...errors import ConfigError, Excluded, FTLibError, JobEnded
from ..calls.call import Call, Kind, Results
from ..calls.session import Session
from ..tensors.trailer import Flag, Trailer
from .lag import Lag
from .phase import Phase

__all__ = ["NOTHING", "DataAccounting", "shares_in"]

NOTHING = Share()
"""Of a member that draws no samples."""
_PATIENT = 3
"""How often a newcomer waits for the next epoch, where it might do otherwise."""
_CODE = 4
"""Bytes in a report that stand for the members of the first deal; zero: no founder's, or a step has been granted."""
_START = -1
"""Instead of a call's number: the state before the founding view."""


@dataclass(frozen=True, slots=True)
class _Founded:
    """The members that the first deal is over."""

    ids: tuple[str, ...]

    @property
    def code(self) -> bytes:
        """A checksum, never zero."""
        return (zlib.crc32(repr(self.ids).encode()) | 1).to_bytes(_CODE, "little")


@dataclass(frozen=True, slots=True)
class _Done:
    """A finished call. ``step``: steps granted once it was."""

    number: int
    shares: Mapping[str, Share]
    step: int


@dataclass(frozen=True, slots=True)
class _Changed:
    """A view that became active once call ``call`` had finished. ``drawn``: what its members reported."""

    call: int
    ids: tuple[str, ...]
    drawn: Mapping[str, bytes]


_Event = _Founded | _Done | _Changed


class Counts(Protocol):
    """What the accounts read of the plane that they belong to (see ``Plane``)."""

    changed: threading.Condition
    phase: Phase
    current: Call | None
    finished: int
    step: int
    founder: bool
    newcomer: bool
    origin: str
    authority: str
    lag: Lag
    leaving: Callable[[], bool]
    member_id: str


class DataAccounting:
    """One plane's. Takes the plane's lock; the sampler's own is taken within it and never waited for."""

    def __init__(
        self, plane: Counts, former: DataAccounting | None = None, *, rejoins: bool = False, patience: float = 600.0
    ) -> None:
        """``former``: that of the lifetime before, whose sampler is this one's. ``rejoins``: whether an excluded worker goes on
        in another lifetime: its loader must not fail meanwhile. ``patience``: seconds that a call may take.
        """
        self._plane = plane
        self.sampler: Sampling | None = None if former is None else former.sampler
        """The one that is registered. None: nothing is drawn here."""
        self._rejoins: bool = rejoins or (former is not None and former._rejoins)  # noqa: SLF001 - its like
        self._patience = patience
        self._bound = False
        self._here = False
        """Whether the sampler's state is the job's, as of the last finished call."""
        self._lingered = 0
        """How often this newcomer could have come in, but for what its loader has drawn ahead."""
        self._mixed = False
        """Whether it took part in another call than an average since it came."""
        self._events: list[_Event] = []
        """What has happened, in order: what it is kept for says the module."""

    # --- the program ---------------------------------------------------------------------------------------------------

    def register(self, sampler: Sampling) -> None:
        """Deal the samples by ``sampler``. ConfigError where that is too late, or another one is registered."""
        plane = self._plane
        with plane.changed:
            if sampler is self.sampler:
                return
            if self.sampler is not None:
                raise ConfigError("register_state: another ElasticSampler is registered already; register one, once")
            if plane.step > 0 and plane.origin and plane.origin == plane.authority:
                raise ConfigError("register_state: an ElasticSampler has to be registered before the first average")
            self.sampler = sampler
            self._bind()

    @property
    def samples(self) -> bool:
        """Whether a sampler is registered."""
        return self.sampler is not None

    @property
    def closing(self) -> bool:
        """Whether a data epoch is complete, and all go on until their loops end together."""
        return self.sampler is not None and self.sampler.closing

    def settle(self, timeout: float) -> None:
        """A founder's samples are dealt when this returns, unless no view is active within ``timeout`` seconds."""
        plane = self._plane
        with plane.changed:
            if self.sampler is not None and plane.founder and plane.step == 0:
                plane.changed.wait_for(lambda: plane.phase in (Phase.ACTIVE, Phase.STOPPED), timeout)
                self._start()

    # --- a call --------------------------------------------------------------------------------------------------------

    def entered(self, call: Call) -> None:
        """A call is entered: until it ends nothing is drawn, if it is the program's."""
        if self.sampler is not None:
            self._bind()
            if not call.foreign and not call.changes_state:  # a unit's function may draw, and makes the calls that use up
                self.sampler.begin(call.batches)

    def weigh(self, call: Call, before: int = 0, former: float | None = None) -> float | None:
        """Set the weight of an average that counts samples, and return how many it counts.

        ``before``: batches of calls of the same unit before it. ``former``: what the average before it in that unit counts.
        """
        sampler = self.sampler
        if sampler is None or call.kind is not Kind.AVERAGE:
            return former
        if call.batches:
            samples = sampler.weight(before + call.batches) - (sampler.weight(before) if before else 0.0)
        else:
            samples = sampler.weight(0) if former is None else former
        call.weigh(samples)
        return samples

    def share(self, call: Call) -> Share:
        """What this member's slot says in the attempt that begins. Sets the weight of an average that counts samples."""
        with self._plane.changed:
            sampler = self.sampler
            if sampler is None:
                return NOTHING
            if call.foreign:
                return sampler.late() if call.stand_in else sampler.follow()
            self._start()
            share = sampler.begin(call.batches)
            self.weigh(call)
            # A newcomer may yet have to stay out, after the call: what its loader holds are fillers, of which nobody need know.
            counts = self._here and (share.samples or not self._plane.newcomer)
            return share if counts else sampler.follow()

    def finished(self, call: Call, results: Results) -> bool:
        """A call has finished here; the plane's counts say so already.

        Whether a newcomer comes in with it: False where it was not the program's, or where the others leave their loop, and
        this member could not do the same. Then the state that was loaded for it is none any more.
        """
        plane = self._plane
        done = _Done(call.number, results.shares, plane.step)
        last = self._events[-1] if self._events else None
        adopted = isinstance(last, _Changed) and last.call == call.number
        self._note(done, before_last=adopted)
        self._mixed |= call.foreign and call.kind is not Kind.AVERAGE
        if plane.newcomer and (call.foreign or (self._here and self.left_behind(call.batches))):
            self._here = False
            return False
        if self._here:
            self._tell(done)
            if adopted and last is not None:
                self._tell(last)
        elif self.sampler is not None and not call.foreign:
            self.sampler.unfinished()
        return True

    def unfinished(self) -> None:
        """The program leaves its call, which has not finished."""
        if self.sampler is not None:
            self.sampler.unfinished()

    def passed(self, call: Call) -> None:
        """The program's call was finished by its deputy, without what it was made from: that is not used up by it."""
        with self._plane.changed:
            if self.sampler is not None:
                self.sampler.begin(call.batches)
                self.sampler.unfinished()

    # --- the state -----------------------------------------------------------------------------------------------------

    def loaded(self) -> None:
        """Registered state was loaded: within a call that on entry to it, else that of a founder at the start."""
        self._replay(_START if self._plane.current is None else self._plane.finished)

    def left_behind(self, batches: int) -> bool:
        """Whether the others leave their loop now, or after the next call, and this member would have to go on with it.

        A call has just been finished, and this newcomer could come in with it; the call would use up ``batches`` here. Where
        that is so every time, as epochs are that short, and the others make nothing but averages, it comes in all the same:
        averages of fillers do no harm to those of the next epoch.
        """
        plane = self._plane
        with plane.changed:
            if self.sampler is None:
                return False
            if self._lingered >= _PATIENT and not self._mixed:
                return False
            done = [event for event in self._events if isinstance(event, _Done) and event.number == plane.finished]
            lingers = any(self.sampler.left_behind(event.shares, event.step, batches) for event in done)
            self._lingered += lingers
            return lingers

    def caught_up(self) -> None:
        """The state on entry to the call that has just been finished was loaded before it, and is the job's."""
        self._replay(self._plane.finished - 1)

    def resumed(self) -> None:
        """A founder loaded a checkpoint."""
        self._replay(_START)

    def lost(self) -> None:
        """The state that is here is about to be replaced."""
        with self._plane.changed:
            self._here = False

    # --- a view change -------------------------------------------------------------------------------------------------

    def founded(self, ids: Sequence[str]) -> None:
        """This is a member of the founding view."""
        self._events = [_Founded(tuple(ids))]

    def report(self) -> bytes:
        """For the flush report: which members this founder's first deal is over, and what it has drawn, if anything."""
        drawn = self.sampler.report() if self.sampler is not None and self._here else b""
        first = self._events[0] if self._events else None
        return first.code + drawn if self._founding and isinstance(first, _Founded) else bytes(_CODE) + drawn if drawn else b""

    def activated(self, session: Session) -> None:
        """A view is active; the plane's counts are those that its plan grants."""
        plane, plan = self._plane, session.plan
        self._here = self._here and plane.origin == plane.authority
        if plane.member_id in plan.blank:
            self._events.clear()  # calls were missed
        if not session.view.parent_id:
            return
        last = self._events[-1] if self._events else None
        if isinstance(last, _Changed) and last.call == plan.call:
            self._events.pop()  # no call has finished in that view, here or elsewhere: it is as if it had not been
        codes = {report[:_CODE] for _, report in plan.drawn} - {bytes(_CODE)}
        drawn = {member_id: report[_CODE:] for member_id, report in plan.drawn if report[_CODE:]}
        differ = plan.call == 0 and len(codes) > 1
        if not drawn or differ:  # nobody who is left has the state of the data, or not all the same
            if self._founding:
                self.founded([member_id for member_id in session.view.ids if member_id not in plan.blank])
                if self._here:
                    self._tell(self._events[0])
            return
        changed = _Changed(plan.call, session.view.ids, drawn)
        self._note(changed)
        if self._here and plane.finished == plan.call:  # else the call's result is adopted first
            self._tell(changed)

    def stopped(self, error: Exception) -> None:
        """The lifetime is over because of ``error``."""
        self._here = False
        if self.sampler is None:
            return
        plane = self._plane
        if isinstance(error, JobEnded):
            self.sampler.thawed(None)  # the program's call ends the process
            return
        late = plane.lag.calls > 0 and plane.leaving()  # its deputy said goodbye: the program's next call ends it
        if late or (self._rejoins and isinstance(error, Excluded)):
            self.sampler.thawed(None)
        else:
            self.sampler.thawed(
                error if isinstance(error, FTLibError) else FTLibError("this worker has left the job: it draws no more samples")
            )

    # --- inside --------------------------------------------------------------------------------------------------------

    @property
    def _founding(self) -> bool:
        return self._plane.founder and self._plane.step == 0

    def _bind(self) -> None:
        if self.sampler is not None and not self._bound:
            self._bound = True
            self.sampler.bind(self._plane.member_id, patience=self._patience)

    def _start(self) -> None:
        """Where this is a founder whose own initial state is the job's: deal."""
        plane = self._plane
        if not self._here and self._founding and plane.phase is Phase.ACTIVE and plane.origin == plane.authority:
            self._replay(_START)

    def _note(self, event: _Done | _Changed, *, before_last: bool = False) -> None:
        events, last = self._events, self._events[-1] if self._events else None
        if self._founding:
            idle = isinstance(event, _Done) and not event.shares
            if not idle or isinstance(last, _Changed):
                events.insert(len(events) - before_last, event)
            return
        events.insert(len(events) - before_last, event)
        newest = self._plane.finished
        self._events = [
            event
            for event in events
            if (isinstance(event, _Done) and event.number >= newest)
            or (isinstance(event, _Changed) and event.call >= newest - 1)
        ]

    def _replay(self, version: int) -> None:
        """The sampler has the state on entry to call ``version + 1``: tell it what has happened since."""
        if self.sampler is None:
            return
        self._here = True
        for event in self._events:
            if isinstance(event, _Founded):
                since = version == _START
            elif isinstance(event, _Done):
                since = event.number > version
            else:
                since = event.call >= version
            if since:
                self._tell(event)

    def _tell(self, event: _Event) -> None:
        assert self.sampler is not None
        if isinstance(event, _Founded):
            self.sampler.found(event.ids)
        elif isinstance(event, _Done):
            self.sampler.finished(event.shares, event.step)
        else:
            self.sampler.activated(event.ids, event.drawn)


def shares_in(by_rank: Sequence[str], trailer: Trailer) -> Mapping[str, Share]:
    """What every member says in a trailer, by its id; empty where nobody draws samples."""
    if not any(slot.data_epoch for slot in trailer.slots):
        return {}
    return {
        member_id: Share(slot.samples, slot.ahead, slot.dropped, slot.data_epoch, slot.deal, bool(slot.flags & Flag.LATE))
        for member_id, slot in zip(by_rank, trailer.slots, strict=True)
    }
