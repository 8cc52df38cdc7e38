"""Failure detection by leases: counters in a shared store that members raise, and that a few others watch on their own clocks.

Each member raises its counter every third of ``lease``, and reads the counters of its next few successors in the view as often.
The only sign of life is that a counter was *seen to rise*, at that moment. No time in the store counts, nor the first value of
a counter, nor a lower one (a write that the store had held back). If no rise was seen for a little longer than a beat, because
the member or the store does not answer, the member is pinged directly. That is the second opinion, with all its consequences
(see ``probe``, ``lifeguard``, ``verdict``). So a member that answers pings stays, whatever happens to the store, and a store
that is away costs a few pings a beat. Leases are signs of life; they are no contact (see ``evidence``).

Without such a reason no pings are sent, except for other uses of pings. To find a broken link between living members all
members are pinged while a view change is under way, after a failure of the data plane, and while a call does not end. And a
member whose data plane stands still reads the leases of all, which say which members wait for it (see ``stall``).
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
"""Beats in the length of a lease."""

LATE = 1.15
"""A member whose counter was not seen to rise for so many beats is pinged. A little above 1: reads and writes may be late."""

RECENT = 2.0
"""A risen counter shows that its member lived after the previous read: a sign of life if that was at most so many beats ago."""

STEP = 0.25
"""A reader that reads at the moment at which another member writes shifts its reads by this share of a beat."""

STILL = 2.0
"""Seconds for which a data plane has stood still before its agent reads the leases of all."""

SUSPECTS = 16
"""The most suspects whose leases are read, too."""


def successors_watched(members: int) -> int:
    """The number of successors that each member watches in a view of ``members``: several can fall silent together."""
    return 1 if members <= 4 else 2 if members < 8 else 3


@dataclass(slots=True)
class _Book:
    """The highest ``counter`` seen of a member (-1: none). ``since``: when regular reads began; ``due``: when to ping a watched
    member.
    """

    counter: int = -1
    since: float = inf
    due: float = inf
    seen: float = -inf
    """When the lease was last read."""
    rose: bool = False
    """Whether the counter had risen then since a recent read."""


class Leases:
    """One member's lease, and its notes about the others'. Asks the store; returns to its caller whom to ping and who lives."""

    def __init__(self, core: Core, stall: Stall, now: float) -> None:
        self._core = core
        self._stall = stall
        self.beat = core.config.lease / BEATS
        self._counter = 0
        self._under_way: dict[type[StoreOp], tuple[StoreOp, float]] = {}
        """The unanswered request of each kind, and when it was sent."""
        self._next_beat = now
        self._next_read = now
        self._read_all = -inf
        """When the leases of all were last read."""
        self._books: dict[str, _Book] = {}
        self.watched: tuple[str, ...] = ()
        """Ids of the successors that are pinged if they do not renew their leases in time."""
        self._read: tuple[str, ...] = ()
        """Ids of all members whose leases are read each time."""
        self._where = (0, 0)
        self._moved = now
        """When this member's data plane last moved; ``_where``: its position."""
        self._meshed = False
        self._mesh_until = -inf
        self._settled: View | None = None
        """The newest active view for which the leases of departed members were dealt with."""
        self._gone: list[str] = []
        """The members whose leases are to be withdrawn."""
        self._next_withdrawal = now

    # Time

    def tick(self, now: float) -> None:
        """Send the due requests to the store."""
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
        """This member could read nothing for ``late`` seconds."""
        for book in self._books.values():
            book.due += late

    def adopt(self, view: View, now: float) -> None:
        """Follow a new view, perhaps with other successors."""
        self._books = {key: book for key, book in self._books.items() if key in view}
        self._watch(now)

    def _due(self, kind: type[StoreOp], planned: float) -> float:
        """When a request ``planned`` for then can be sent: not before the last of its kind is answered, or has timed out."""
        if kind not in self._under_way:
            return planned
        return max(planned, self._under_way[kind][1] + 2 * self._core.config.storage_timeout)

    def _ask(self, request: StoreOp, now: float) -> None:
        self._under_way[type(request)] = (request, now)
        self._core.outbox.emit(Ask(request))

    def _later(self, planned: float, now: float) -> float:
        """The next beat, in step with the last one if that was nearly in time."""
        return planned + self.beat if planned + self.beat > now else now + self.beat

    # Whom to watch

    def _watch(self, now: float) -> None:
        """Choose the watched members: the next successors that are neither suspected nor dead."""
        core = self._core
        assert core.view is not None
        if core.member.id not in core.view:
            self.watched = self._read = ()
            return
        start = core.view.index(core.member.id) + 1
        ring = core.view.ids[start:] + core.view.ids[: start - 1]
        able = (key for key in ring if core.table.trusted(key))
        before, self.watched = self.watched, tuple(islice(able, successors_watched(len(core.view))))
        # A suspect's lease is read, too: it may yet show that the suspect lives.
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
        """Since when a member's lease has been read regularly; inf if it is not."""
        book = self._books.get(member_id)
        return inf if book is None else book.since

    def overdue(self, now: float) -> list[str]:
        """Watched members whose counter was not seen to rise in time; each is returned once a beat."""
        late = [key for key in self.watched if now >= self._books[key].due]
        for key in late:
            self._books[key].due = now + self.beat
        return late

    # Answers

    def answered(self, request: StoreOp, answer: StoreReply, now: float) -> list[tuple[Lease, bool]]:
        """A request was answered: returns the leases of members of the view that were renewed since they were last read.

        True: the last read was a moment ago, so the member lives. (False: it was long ago, and the member may have died since.)
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
        """When to read the leases of all. A job at rest, in which no member waits for another, does not burden the store."""
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
        """Whether to ping all members in this round, as without leases. Only such rounds judge links."""
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
        """Once the next view is active, its coordinator withdraws the leases of the members that are not in it any more."""
        core = self._core
        if core.active is not None and core.active is not self._settled and core.active is core.view:
            before, self._settled = self._settled, core.active
            if before is not None and core.coordinates():
                self._gone += [key for key in before.ids if key not in core.active and key not in self._gone]
        if self._gone and self._due(Withdraw, self._next_withdrawal) <= now:
            self._next_withdrawal = now + self.beat
            self._ask(Withdraw(tuple(self._gone)), now)
