"""The calls that a late program missed: its backup worker keeps them, and the program takes them over in its next call.

Meanwhile the others did steps, each of the same calls in the same order (see ``pattern``). Of all steps but the last, the
program takes over only the averages: they are applied as a joiner replays them, with the same bits. The first call of the last
step becomes the program's own call, and its further calls get the further results, until none is left. So the program missed
whole steps only, and is at the others' place. A call that the program declines has no tensors for that result, which is then
applied as the earlier ones are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from consensus import View

from ...errors import StepMismatch
from ...state.registry import Registered
from ...status import Status
from ..calls.call import Call, CallOutcome, Kind, Results
from ..calls.follow import Declined
from ..plane.plane import Plane
from ..tensors.layout import Layout
from .own_average import NotHere, OwnAverage, apply


@dataclass(slots=True)
class _Entry:
    """One call that the backup worker finished."""

    results: Results
    granted: int
    """Steps that the call granted."""
    views: tuple[View, ...]
    """Views whose first call it was: the program is notified of them before the call's result is applied."""


class Backlog:
    """The backlog of one program in one lifetime. Used in the program's turn only."""

    def __init__(
        self,
        plane: Plane,
        registered: Callable[[], Registered | None],
        own: OwnAverage,
        limit: int,
        tell: Callable[[View], None],
    ) -> None:
        """``limit``: bytes of results that may be kept. ``tell``: runs the program's callbacks for a view."""
        self._plane = plane
        self._registered = registered
        self._own = own
        self._limit = limit
        self._tell = tell
        self._entries: list[_Entry] = []
        self._step: tuple[Layout, ...] = ()
        """The calls of a step."""
        self._regular = 0
        """Number of entries, from the first on, that belong to such steps."""
        self._nbytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def begin(self, step: Sequence[Layout]) -> None:
        """The program is late for a step, no part of which it has begun."""
        assert not self._entries, "what was missed before has been taken over"
        self._step, self._regular = tuple(step), 0

    @property
    def open(self) -> bool:
        """True if the program may miss the next call as well: all missed calls belong to steps like the program's."""
        return self._regular == len(self._entries) and bool(self._step)

    @property
    def full(self) -> bool:
        """True if there is no room for the results of another call."""
        following = self._step[len(self._entries) % len(self._step)]
        return self._nbytes > 0 and self._nbytes + following.nbytes > self._limit

    def keep(self, results: Results, granted: int) -> None:
        """The backup worker finished a call; the backlog owns the slots of ``results`` from now on."""
        index = len(self._entries)
        expected = self._step[index % len(self._step)]
        if self.open and results.layout.signature == expected.signature:
            self._regular += 1
            if index % len(self._step) == 0:
                self._forget(index)
        with self._plane.changed:
            views = tuple(self._plane.news.due)
            self._plane.news.due.clear()
        self._entries.append(_Entry(results, granted, views))
        self._nbytes += results.layout.nbytes

    def clear(self) -> None:
        """Drop all entries: nobody will take them over."""
        with self._plane.changed:
            self._plane.news.due[:0] = [view for entry in self._entries for view in entry.views]
        self._entries.clear()
        self._step, self._nbytes = (), 0

    def take_over(self, call: Call) -> Status:
        """Finish the program's ``call`` with the kept results, after applying all earlier ones; returns its status.

        Raises StepMismatch, ``NotHere``, and what ``apply`` raises. ``call`` gets its number first: after a later failure
        this member has a state that no other member has.
        """
        last = max(0, self._regular - 1) // len(self._step) * len(self._step)
        entry = self._entries[last]
        call.overtaken(entry.results.number)
        if isinstance(call, Declined):
            return self._declined(call, last)
        void = call.void(entry.results)
        # A declined call fits any: not all members know which one it was.
        if entry.results.signature not in (b"", call.layout.signature):
            raise StepMismatch(
                f"{call}: the others did something else while this worker was late ({entry.results.layout.text}); derive what "
                "is called from ft.step, or unset straggler_deadline"
            )
        with self._own.untouched(call) if void and last else nullcontext():
            for former in self._entries[:last]:
                self._apply(former, call)
        with self._plane.changed:
            self._plane.lag.shrink(entry.granted)
            self._plane.news.due[:0] = entry.views
        self._drop(last + 1)
        call.reloaded()
        if void:
            return Status.FAIL
        call.reattach()
        call.deliver(entry.results)
        return Status.SUCCESS

    # --- inside --------------------------------------------------------------------------------------------------------

    def _declined(self, call: Declined, last: int) -> Status:
        """Finish ``call``, which has no tensors, with entry ``last``. What the others have averaged is applied to the end, so
        that there is nothing left that the program would have to do: FAIL.
        """
        taken = self._entries[: last + 1]
        newest = taken[-1]
        call.learn(newest.results.layout)
        call.hear(b"" if newest.results.outcome is CallOutcome.DECLINED_HERE else newest.results.layout.check)
        if not call.void(newest.results) and not newest.granted and call.kind is not Kind.BARRIER:
            raise NotHere(f"they have a result that is no average ({newest.results.layout.text})")
        granted = [entry for entry in taken if entry.granted]
        with self._own.untouched(self._own.like(granted[-1].results)) if granted else nullcontext(call) as own:
            for entry in taken:
                self._apply(entry, own)
        self._drop(last + 1)
        return Status.FAIL

    def _apply(self, entry: _Entry, call: Call) -> None:
        """Do what the program would have done with the call, and at its end."""
        for view in entry.views:
            self._tell(view)
        with self._plane.changed:
            self._plane.lag.shrink(entry.granted)
        if not entry.granted:
            return
        registered = self._registered()
        assert registered is not None, "a backup worker stands in only where averages can be replayed"
        apply(call, entry.results, registered)

    def _drop(self, count: int) -> None:
        """``count`` entries were taken over, the last of them as the program's own call."""
        del self._entries[:count]
        self._regular = 0  # the rest are further calls of the last step, for the program's next calls
        if self._entries:
            self._nbytes = sum(entry.results.layout.nbytes for entry in self._entries)
        else:
            self.clear()

    def _forget(self, index: int) -> None:
        """A step begins with entry ``index``: of the earlier calls only the averages will be needed."""
        for entry in self._entries[:index]:
            results = entry.results
            if results.slots and not entry.granted:
                self._nbytes -= results.layout.nbytes
                outcome = results.outcome
                given = (results.number, results.layout, (), results.weight, outcome is CallOutcome.INTACT)
                entry.results = Results(*given, assumed=results.assumed, declined=outcome is CallOutcome.DECLINED_HERE)
