"""Who is alive, by leases: counters in a shared store that members raise, and that a few others watch on their own clocks.

Everybody raises its counter every third of ``lease``, and reads those of its next few successors in the view as often. That
one was *seen to rise* is a sign of life at that moment, and nothing else is: no time in the store counts, nor what a counter
was at first, nor a lower one (a write that the store had held back). Where none was seen for a little longer than a beat, be
it that the member or that the store does not answer, the member is pinged directly: the second opinion, with all that follows
from it (see ``probe``, ``suspicion``, ``verdict``). So who answers pings stays, whatever becomes of the store, and a store that
is away costs a few pings a beat. Leases tell who lives; they are no contact (see ``evidence``).

No pings go round by themselves, but for what they are good for besides. To find a broken link between living members all are
pinged while a view is on its way, after a failure of the data plane, and while a call does not end. And whose data plane stands
still reads everybody's lease, which tells who waits for it (see ``stall``).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from math import inf

from ...messages import Lease, Status
from ...progress import NOWHERE
from ...store_requests import Beat, Done, LeaseList, ReadLeases, StoreOp, StoreReply, Withdraw
from ...view import View
from ..state.core import Core
from ..state.effects import Ask
from ..state.links import KEEP
from .stall import Stall

BEATS = 3
"""Beats in the time of a lease."""

LATE = 1.15
"""Whose counter was not seen to rise for so many beats is pinged: it and its reader keep the same time, a little late."""

RECENT = 2.0
"""A counter that rose shows that its member lived after it was last read: a sign of life where that was so many beats ago."""

STEP = 0.25
"""Whoever reads at the moment at which another one writes comes so much of a beat later from then on."""

STILL = 2.0
"""Seconds for which a data plane has stood still before its agent reads everybody's lease."""

SUSPECTS = 16
"""The leases of so many suspects are read, too."""


def successors_watched(members: int) -> int:
    """How many successors each member watches in a view of so many: several can fall silent together."""
    return 1 if members <= 4 else 2 if members < 8 else 3


@dataclass(slots=True)
class _Book:
    """The highest ``counter`` seen of a member (-1: none), which is read ``since`` then; a watched one is pinged at ``due``."""

    counter: int = -1
    since: float = inf
    due: float = inf
    seen: float = -inf
    """When the lease was read last."""
    rose: bool = False
    """Whether the counter was higher then than a moment before."""


class Leases:
    """One member's lease, and its books about the others'. Asks the store; whom to ping and who lives is told to its caller."""

    def __init__(self, core: Core, stall: Stall, now: float) -> None:
        self._core = core
        self._stall = stall
        self.beat = core.config.lease / BEATS
        self._counter = 0
        self._under_way: dict[type[StoreOp], tuple[StoreOp, float]] = {}
        """The unanswered request of each kind, and when it was asked."""
        self._next_beat = now
        self._next_read = now
        self._read_all = -inf
        """When everybody's leases were read last."""
        self._books: dict[str, _Book] = {}
        self.watched: tuple[str, ...] = ()
        """Ids of the successors that are pinged where their leases were not renewed in time."""
        self._read: tuple[str, ...] = ()
        """Ids of all whose leases are read each time."""
        self._where = (0, 0)
        self._moved = now
        """Where the own data plane is, and when it was seen to move."""
        self._meshed = False
        self._mesh_until = -inf
        self._settled: View | None = None
        """The newest active view whose predecessor's leases were dealt with."""
        self._gone: list[str] = []
        """Whose leases are to be withdrawn."""
        self._next_withdrawal = now

    # Time

    def tick(self, now: float) -> None:
        """Ask the store for what is due."""
        core = self._core
        if self._due(Beat, self._next_beat) <= now:
            self._counter += 1
            self._next_beat = self._later(self._next_beat, now)
            self._ask(Beat(Lease(core.member, self._counter, core.epoch, core.progress.pack(now))), now)
        if core.view is None:
            return
        self._notice_progress(now)
        everybody = now >= self._next_all
        if (everybody or now >= self._next_read) and self._due(ReadLeases, now) <= now:
            self._watch(now)
            if now >= self._next_read:
                self._next_read = self._later(self._next_read, now)
            if everybody:
                self._read_all = now
                self._ask(ReadLeases(None), now)
            elif self._read:
                self._ask(ReadLeases(self._read), now)
        self._tidy(now)

    def deadline(self) -> float:
        """When ``tick`` is needed next."""
        times = [self._due(Beat, self._next_beat)]
        if self._core.view is not None:
            times.append(self._due(ReadLeases, min(self._next_read, self._next_all)))
            times += [self._books[key].due for key in self.watched]
            if self._gone:
                times.append(self._due(Withdraw, self._next_withdrawal))
        return min(times)

    def overslept(self, late: float) -> None:
        """Nothing could be seen for ``late`` seconds."""
        for book in self._books.values():
            book.due += late

    def adopt(self, view: View, now: float) -> None:
        """Follow a new view: other successors, perhaps."""
        self._books = {key: book for key, book in self._books.items() if key in view}
        self._next_read = min(self._next_read, now) if self._settled is None else self._next_read
        self._watch(now)

    def _due(self, kind: type[StoreOp], planned: float) -> float:
        """When a request can be asked that is planned for then: once the last of its kind is answered, or never will be."""
        if kind not in self._under_way:
            return planned
        return max(planned, self._under_way[kind][1] + 2 * self._core.config.storage_timeout)

    def _ask(self, request: StoreOp, now: float) -> None:
        self._under_way[type(request)] = (request, now)
        self._core.outbox.emit(Ask(request))

    def _later(self, planned: float, now: float) -> float:
        """The next beat, in step with the last one where that was nearly in time."""
        return planned + self.beat if planned + self.beat > now else now + self.beat

    # Whom to watch

    def _watch(self, now: float) -> None:
        """The next successors that nothing is held against."""
        core = self._core
        assert core.view is not None
        if core.member.id not in core.view:
            self.watched = self._read = ()
            return
        start = core.view.index(core.member.id) + 1
        ring = core.view.ids[start:] + core.view.ids[: start - 1]
        able = (key for key in ring if core.table.trusted(key))
        before, self.watched = self.watched, tuple(islice(able, successors_watched(len(core.view))))
        # A suspect's lease is read, too: it may yet tell that it lives.
        suspects = [peer.member.id for peer in core.table.suspected() if peer.status is Status.SUSPECT]
        self._read = tuple(dict.fromkeys((*self.watched, *suspects[:SUSPECTS])))
        for key in self._read:
            book = self._books.setdefault(key, _Book())
            book.since = min(book.since, now)
            if key not in before:
                book.due = now + LATE * self.beat
        for key, book in self._books.items():
            if key not in self._read:
                book.since = inf

    def watched_since(self, member_id: str) -> float:
        """Since when a member's lease has been read all the time; inf where it is not."""
        book = self._books.get(member_id)
        return inf if book is None else book.since

    def overdue(self, now: float) -> list[str]:
        """Whose counter was not seen to rise in time; each is returned once a beat."""
        late = [key for key in self.watched if now >= self._books[key].due]
        for key in late:
            self._books[key].due = now + self.beat
        return late

    # Answers

    def answered(self, request: StoreOp, answer: StoreReply, now: float) -> list[tuple[Lease, bool]]:
        """What came of a request: the leases of members of the view that were renewed since they were last read.

        True: as that was a moment ago, the member lives. (It may have died since, where it was long ago.)
        """
        if self._under_way.get(type(request), (None, 0.0))[0] == request:
            del self._under_way[type(request)]
        if isinstance(request, Withdraw) and isinstance(answer, Done):
            self._gone = [key for key in self._gone if key not in request.member_ids]
        if not isinstance(answer, LeaseList):
            return []
        rising = [key for key in self.watched if self._books[key].rose]
        renewed = [(lease, self._books[lease.member.id].rose) for lease in answer.leases if self._renewed(lease, now)]
        if not all(self._books[key].rose for key in rising):
            self._next_read += STEP * self.beat
        return renewed

    def _renewed(self, lease: Lease, now: float) -> bool:
        key = lease.member.id
        if self._core.table.get(key) is None:
            return False
        book = self._books.setdefault(key, _Book())
        renewed = 0 <= book.counter < lease.counter
        book.counter = max(book.counter, lease.counter)
        book.rose = renewed and now - book.seen <= RECENT * self.beat
        book.seen = now
        if book.rose:
            book.due = now + LATE * self.beat
        return renewed

    # Standing still

    def _notice_progress(self, now: float) -> None:
        where = self._core.progress.finished, self._core.progress.current
        if where != self._where:
            self._where, self._moved = where, now

    @property
    def _next_all(self) -> float:
        """When to read everybody's lease. A job that rests does not burden the store, as nobody waits for anybody."""
        core = self._core
        if core.progress == NOWHERE or not len(core.table):
            return inf
        patience = core.config.stall_timeout
        pause = max(1.0, min(patience / 4, 5.0))
        if not (self._in_call or self._stall.awaited):
            pause = max(pause, patience / 2)
        return max(self._moved + STILL, self._read_all + pause)

    @property
    def _in_call(self) -> bool:
        return self._core.progress.current > self._core.progress.finished

    # Pinging all

    def hinted(self, now: float) -> None:
        """The data plane failed: perhaps a link is broken."""
        self._mesh_until = now + self._linger

    @property
    def _linger(self) -> float:
        return self._core.config.link_timeout + KEEP

    def all_round(self, now: float) -> bool:
        """Whether everybody is to be pinged in this round, as without leases. A link is judged by such rounds alone."""
        core = self._core
        if core.active is not core.view:
            self._mesh_until = max(self._mesh_until, now + self._linger)
        hangs = self._in_call and now - self._moved >= STILL
        broken = core.links.any_broken
        meshed = not core.crowded and (now < self._mesh_until or hangs or broken)
        if meshed and not self._meshed:
            core.links.begin()
        self._meshed = meshed
        return meshed

    # Leaving the store

    def _tidy(self, now: float) -> None:
        """Once the next view is active its coordinator withdraws the leases of those who are not in it any more."""
        core = self._core
        if core.active is not None and core.active is not self._settled and core.active is core.view:
            before, self._settled = self._settled, core.active
            if before is not None and core.coordinates():
                self._gone += [key for key in before.ids if key not in core.active and key not in self._gone]
        if self._gone and self._due(Withdraw, self._next_withdrawal) <= now:
            self._next_withdrawal = now + self.beat
            self._ask(Withdraw(tuple(self._gone)), now)
