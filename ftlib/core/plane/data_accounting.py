"""The data that calls use up: notifies the registered sampler of every finished call and view change, in one order.

The sampler's state is replicated (see ``data.sampling``): a function of the shares in finished calls and of the reports at view
changes. The sampler gets them here: under the plane's lock, in the same transition in which a call is finished or a view
becomes active. So a flush report states what was drawn as of the finished call that the report names.

*Who has the sampler's state.* A founder, from the founding view on. A joiner, once it has loaded the registered state as of the
entry to a call; the events since then are replayed to its sampler. Until then it takes part in calls with no share.

*Which members the first deal is over* depends on the views before the first call, and a member may have missed one of them. So
each founder's report names the view that it assumes. If the reports differ, all founders begin again with the newest view. A
founder deals as soon as it can: whoever gets its state gets the first deal with it.

*A replica of several processes* draws under one name, and all shards deal alike: by the reports of all processes of a replica,
and by what they have agreed on about each call (``ftlib.data.mates``).

*Founders that register late* get all events since the founding view, which are few: what was drawn and given back before the
first step. Events are kept for them until then; afterwards only those that a newly loaded state may lack.
"""

from __future__ import annotations

import threading
import weakref
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from consensus import View

from ...data.mates import Drawing
from ...data.sampling import Sampling, Share
from ...errors import ConfigError, Excluded, FTLibError, JobEnded
from ..calls.call import Call, Kind, Results
from ..calls.session import Session
from ..replicas.whole import drawers_in
from ..tensors.trailer import Flag, Trailer
from .lag import Lag
from .phase import Phase

NOTHING = Share()
"""The share of a member that draws no samples."""
_PATIENT = 3
"""How often a newcomer waits for the next data epoch although it could come in."""
_CODE = 4
"""Bytes of a report that stand for the view of the first deal; zero: not a founder's, or a step has been granted."""
_START = -1
"""Used as a call's number: the state before the founding view."""


@dataclass(frozen=True, slots=True)
class _Founded:
    """Those among whom the first deal distributes the samples: the drawers in view ``view_id``."""

    drawers: tuple[str, ...]
    view_id: str

    @property
    def code(self) -> bytes:
        """A checksum, never zero."""
        return (zlib.crc32(self.view_id.encode()) | 1).to_bytes(_CODE, "little")


@dataclass(frozen=True, slots=True)
class _Done:
    """A finished call. ``step``: steps granted so far, this call's included."""

    number: int
    shares: Mapping[str, Share]
    step: int


@dataclass(frozen=True, slots=True)
class _Changed:
    """A view that became active after call ``call`` had finished. ``drawn``: its members' reports, by drawer."""

    call: int
    drawers: tuple[str, ...]
    drawn: Mapping[str, Sequence[bytes]]


_Event = _Founded | _Done | _Changed


class Counts(Protocol):
    """What ``DataAccounting`` reads of its plane (see ``Plane``)."""

    changed: threading.Condition
    phase: Phase
    current: Call | None
    session: Session | None
    finished: int
    step: int
    founder: bool
    newcomer: bool
    state_id: str
    current_state_id: str
    lag: Lag
    leaving: Callable[[], bool]
    member_id: str

    def blocking(self) -> str:
        """In words, the members that this one waits for."""


class DataAccounting:
    """The data accounting of one plane. Takes the plane's lock; within it the sampler's own lock, which is never waited for."""

    def __init__(
        self,
        plane: Counts,
        former: DataAccounting | None = None,
        *,
        rejoins: bool = False,
        patience: float = 600.0,
        replica: str = "",
    ) -> None:
        """``former``: the accounting of the previous lifetime, whose sampler is taken over. ``rejoins``: True if an excluded
        worker goes on in another lifetime, so that its loader must not fail meanwhile. ``patience``: seconds that a call may
        take. ``replica``: see ``Plane``.
        """
        self._plane = plane
        self._replica = replica
        self.sampler: Sampling | None = None if former is None else former.sampler
        """The registered sampler. None: this member draws no samples."""
        self._rejoins: bool = rejoins or (former is not None and former._rejoins)  # noqa: SLF001 - its like
        self._patience = patience
        self._bound = False
        self._here = False
        """True while the sampler's state is the job's, as of the last finished call."""
        self._lingered = 0
        """How often this newcomer stayed out only because of the samples that its loader has drawn ahead."""
        self._mixed = False
        """True once this member followed a call that is not an average."""
        self._events: list[_Event] = []
        """Past events, in order; the module's docstring says why they are kept."""

    # --- the program ---------------------------------------------------------------------------------------------------

    def register(self, sampler: Sampling) -> None:
        """Deal the samples by ``sampler``. ConfigError if it is too late, or another sampler is registered."""
        plane = self._plane
        with plane.changed:
            if sampler is self.sampler:
                return
            if self.sampler is not None:
                raise ConfigError("register_state: another ElasticSampler is registered already; register one, once")
            if plane.step > 0 and plane.state_id and plane.state_id == plane.current_state_id:
                raise ConfigError("register_state: an ElasticSampler has to be registered before the first average")
            self.sampler = sampler
            self._bind()
            self.start()

    @property
    def loops(self) -> int:
        """How many loops over the sampler have begun here."""
        return 0 if self.sampler is None else self.sampler.loops

    @property
    def closing(self) -> bool:
        """True while a data epoch is complete, and all members go on until their loops end together."""
        return self.sampler is not None and self.sampler.closing

    @property
    def complete(self) -> bool:
        """True while a data epoch is complete, and no other has begun."""
        return self.sampler is not None and self.sampler.complete

    def settle(self, timeout: float) -> None:
        """Wait until a founder's samples are dealt, which needs an active view; at most ``timeout`` seconds."""
        plane = self._plane
        with plane.changed:
            if self.sampler is not None and plane.founder and plane.step == 0:
                plane.changed.wait_for(lambda: plane.phase in (Phase.ACTIVE, Phase.STOPPED), timeout)

    def start(self) -> None:
        """Deal the samples, if this member is a founder whose own initial state is the job's. Idempotent."""
        plane = self._plane
        if not self._here and self._founding and plane.phase is Phase.ACTIVE and plane.state_id == plane.current_state_id:
            self._replay(_START)

    # --- a call --------------------------------------------------------------------------------------------------------

    def entered(self, call: Call) -> None:
        """A call is entered. If it is the program's, nothing is drawn until it ends."""
        if self.sampler is not None:
            self._bind()
            if not call.foreign and not call.changes_state:  # a unit's function may draw; its calls use up the samples
                self.sampler.begin(call.batches, beside=call.draws_beside, kept=call.keeps_batches)

    def weigh(self, call: Call, before: int = 0, former: float | None = None) -> float | None:
        """Set the weight of an average that counts samples, and return that weight.

        ``before``: batches of earlier calls of the same unit. ``former``: the weight of the previous average in that unit.
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
        """This member's share for the trailer of the attempt that begins. Sets the weight of an average that counts samples."""
        with self._plane.changed:
            sampler = self.sampler
            if sampler is None:
                return NOTHING
            if call.foreign:
                return sampler.late() if call.by_backup else sampler.follow()
            share = sampler.begin(call.batches, beside=call.draws_beside, kept=call.keeps_batches)
            self.weigh(call)
            # A newcomer may still have to stay out after the call. Its loader then holds fillers, which no other member counts.
            counts = self._here and (share.samples or not self._plane.newcomer)
            return share if counts else sampler.follow()

    def finished(self, call: Call, results: Results) -> bool:
        """A call has finished here, and the plane's counts include it.

        False if a newcomer does not come in with this call: the call was not the program's, or the others leave their loop and
        this member could not do the same. Then the state that was loaded for the call is void.
        """
        plane = self._plane
        out = plane.newcomer and (self._stays_out(call, results) if results.out is None else results.out)
        done = _Done(call.number, results.shares, plane.step)
        last = self._events[-1] if self._events else None
        adopted = isinstance(last, _Changed) and last.call == call.number
        self._note(done, before_last=adopted)
        self._mixed |= call.foreign and call.kind is not Kind.AVERAGE
        if self.sampler is not None and results.drawing is not None:
            self.sampler.level(results.drawing.ahead)
        if out:
            self._here = False
            return False
        if self._here:
            self._tell(done)
            if adopted and last is not None:
                self._tell(last)
        elif self.sampler is not None and not call.foreign:
            self.sampler.unfinished()
        return True

    def drawing(self, results: Results) -> Drawing:
        """What this process says to those of its replica of a call that it holds."""
        with self._plane.changed:
            if results.drawing is not None:  # agreed on in the view before
                return results.drawing
            own = results.shares.get(self._replica)
            ahead = () if self.sampler is None else tuple(self.sampler.ahead(own))
            return Drawing(ahead, tuple(results.shares.values()))

    def agree(self, results: Results, said: Sequence[Drawing]) -> None:
        """All processes of the replica have said so: the dealing goes by what follows."""
        with self._plane.changed:
            names = list(results.shares)
            results.agree(Drawing.agreed(said, names.index(self._replica) if self._replica in names else None))

    def stays_out(self, call: Call, results: Results) -> bool:
        """True if a newcomer would not come in with ``call``, which is about to finish (see ``finished``)."""
        with self._plane.changed:
            granted = int(call.counts_as_step and not call.void(results))
            return self._plane.newcomer and self._stays_out(call, results, granted)

    def unfinished(self) -> None:
        """The program leaves its call, which has not finished."""
        if self.sampler is not None:
            self.sampler.unfinished()

    def passed(self, call: Call) -> None:
        """The backup worker finished the program's call without the program's samples: the call does not use them up."""
        with self._plane.changed:
            if self.sampler is not None:
                self.sampler.begin(call.batches)
                self.sampler.unfinished()

    # --- the state -----------------------------------------------------------------------------------------------------

    def loaded(self) -> None:
        """Registered state was loaded: within a call the state on entry to that call, else a founder's initial state."""
        self._replay(_START if self._plane.current is None else self._plane.finished)

    def left_behind(self, batches: int) -> bool:
        """True if the others leave their loop now or after the next call, while this member would have to go on with its own.

        Asked when a call has just finished with which this newcomer could come in; the call would use up ``batches`` here. With
        very short epochs that is so every time. Then the newcomer comes in after ``_PATIENT`` times all the same, if the others
        only average: averages of fillers do no harm to those of the next epoch. Nobody is left behind by members that have all
        lost their state since: then the newcomers that have it go on from it.
        """
        plane = self._plane
        with plane.changed:
            done = [event for event in self._events if isinstance(event, _Done) and event.number == plane.finished]
            return any(self._lingers(event.shares, event.step, batches) for event in done)

    def caught_up(self) -> None:
        """This member loaded the state on entry to the call that has just finished, and that state is the job's."""
        self._replay(self._plane.finished - 1)

    def resumed(self, session: Session) -> None:
        """A founder loaded a checkpoint, as all of ``session`` do: the first deal is over them, whatever came before."""
        later = [event for event in self._events if not isinstance(event, _Founded)]
        self.founded(session.view, without=session.plan.blank)
        self._events += later
        self._replay(_START)

    def lost(self) -> None:
        """This member's state is about to be replaced."""
        with self._plane.changed:
            self._here = False

    # --- a view change -------------------------------------------------------------------------------------------------

    def founded(self, view: View, without: Sequence[str] = ()) -> None:
        """This member is a founder, and the first deal is over the members of ``view``, ``without`` some."""
        founders = [member for member in view.members if member.id not in without]
        self._events = [_Founded(drawers_in(founders), view.view_id)]

    def report(self) -> bytes:
        """For the flush report: the view of this founder's first deal, and what it has drawn; empty if it draws nothing."""
        drawn = self.sampler.report() if self.sampler is not None and self._here else b""
        first = self._events[0] if self._events else None
        return first.code + drawn if self._founding and isinstance(first, _Founded) else bytes(_CODE) + drawn if drawn else b""

    def activated(self, session: Session) -> None:
        """A view is active, and the plane's counts are those of its plan."""
        plane, plan = self._plane, session.plan
        self._here = self._here and plane.state_id == plane.current_state_id
        if plane.member_id in plan.blank:
            self._events.clear()  # calls were missed
        if not session.view.parent_id:
            return
        last = self._events[-1] if self._events else None
        if isinstance(last, _Changed) and last.call == plan.call:
            self._events.pop()  # no call has finished in that view, here or elsewhere: it does not count
        codes = {report[:_CODE] for _, report in plan.drawn} - {bytes(_CODE)}
        drawn: dict[str, list[bytes]] = {}
        for drawer, report in plan.drawn:
            if report[_CODE:]:
                drawn.setdefault(drawer, []).append(report[_CODE:])
        differ = plan.call == 0 and len(codes) > 1
        if not drawn or differ:  # no remaining member has the sampler's state, or they differ
            if self._founding:
                self.founded(session.view, without=plan.blank)
                if self._here:
                    self._tell(self._events[0])
            return
        changed = _Changed(plan.call, drawers_in(session.view.members), drawn)
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
        late = plane.lag.calls > 0 and plane.leaving()  # its backup worker has said goodbye: the program ends at its next call
        if late or (self._rejoins and isinstance(error, Excluded)):
            self.sampler.thawed(None)
        else:
            self.sampler.thawed(
                error if isinstance(error, FTLibError) else FTLibError("this worker has left the job: it draws no more samples")
            )

    # --- inside --------------------------------------------------------------------------------------------------------

    def _stays_out(self, call: Call, results: Results, granted: int = 0) -> bool:
        """``granted``: steps that are not in the plane's counts yet."""
        if call.foreign or not self._here:
            return call.foreign
        return self._lingers(results.shares, self._plane.step + granted, call.batches)

    def _lingers(self, shares: Mapping[str, Share], step: int, batches: int) -> bool:
        """See ``left_behind``; ``shares``: of the call with which this newcomer could come in, ``step``: counted after it."""
        plane = self._plane
        if self.sampler is None or plane.session is None:
            return False
        plan = plane.session.plan
        if all(holder in plan.newcomers for holder in plan.holders):
            return False
        if self._lingered >= _PATIENT and not self._mixed:
            return False
        lingers = self.sampler.left_behind(shares, step, batches)
        self._lingered += lingers
        return lingers

    @property
    def _founding(self) -> bool:
        return self._plane.founder and self._plane.step == 0

    def _bind(self) -> None:
        if self.sampler is not None and not self._bound:
            self._bound = True
            there = weakref.ref(self._plane)  # a sampler outlives lifetimes
            self.sampler.bind(
                self._replica or self._plane.member_id,
                patience=self._patience,
                together=bool(self._replica),
                blocking=lambda: "" if (plane := there()) is None else plane.blocking(),
            )

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
        """The sampler has the state on entry to call ``version + 1``: pass it the events since then."""
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
            self.sampler.found(event.drawers)
        elif isinstance(event, _Done):
            self.sampler.finished(event.shares, event.step)
        else:
            self.sampler.activated(event.drawers, event.drawn)


def shares_in(by_rank: Sequence[str], trailer: Trailer) -> Mapping[str, Share]:
    """Every member's share in a trailer, by drawer; empty if no member draws samples."""
    if not any(slot.data_epoch for slot in trailer.slots):
        return {}
    return {
        drawer: Share(
            slot.samples, slot.ahead, slot.dropped, slot.data_epoch, slot.deal, bool(slot.flags & Flag.LATE), slot.end
        )
        for drawer, slot in zip(by_rank, trailer.slots, strict=True)
    }
