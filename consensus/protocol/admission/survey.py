"""What a member without a view learns from the shared store: which cluster there is, and which other members look for one.

The newest record names the members of the cluster, and these are asked for admission. If all of them are certainly dead, the
cluster is *orphaned*, and another may be founded, at the next epoch. A member counts as dead if a check proves its death. A
host that vanished proves nothing; so a member also counts as dead if, while we watched for twice the length of its lease, it
neither renewed the lease nor accepted a connection. (An error in this costs a cluster, never agreement: of the old cluster's
next view and a founding one the store takes only one.)

With leases the store is also the list of introducers: a member that renews its lease lives, and the first of them by id may
found. All ask the first few, so the first meets all; and a member that asks is known to live before the store says so. Leases
of killed lifetimes look like those of new ones, until they are proven dead, or had time to be renewed.

An unreadable value (another secret, another release, garbage) names no member. But if it is in the place of a member's lease
and *changes*, by this member's own clock, that member may live, and is not taken for vanished; a value that stays the same is
forgotten like a lease that is not renewed. And if the newest record cannot be read, nobody founds: there is a cluster, and the
members that renew their leases may know it.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...config import Liveness
from ...member import Address, Member, format_address
from ...messages import ViewRecord
from ...store_requests import Away, LeaseList, ReadLeases, ReadViews, Recorded, StoreOp, StoreReply, Unread, UnreadLease, Wiped
from ..detection.leases import BEATS
from ..state.core import Core
from ..state.effects import Ask, Check
from ..state.join import Search
from ..state.member_table import NEVER

SOON = 0.25
"""Seconds between the first two looks; each pause is ``GROWTH`` times the one before, up to ``SELDOM``."""

GROWTH = 1.2

SELDOM = 1.0

ASKED = 4
"""So many living members, the first by id, are asked for a cluster."""

MEMBERS = 16
"""The most members of the newest record that are asked and checked at a time, of those that may live."""

MUTE = 0.3
"""A member that has not answered for so many seconds is checked."""

CHECK_EVERY = 1.0


@dataclass(slots=True)
class _Lessee:
    """A member with a lease. ``moved``: when the lease appeared, rose, or was withdrawn. ``proven``: the member certainly lived
    while we watched.
    """

    member: Member
    counter: int
    appeared: float
    moved: float
    proven: bool = False
    held: bool = True
    """Whether the lease is in the store, as far as we know."""
    alike: bool = True
    """Whether it may found a cluster with us: it has not asked us with other terms."""


@dataclass(slots=True)
class _Riddle:
    """An unreadable value in the place of a member's lease. ``moved``: when it appeared, or we last saw it change."""

    fingerprint: str
    moved: float


class Survey:
    """One member's looks at the store, until it has a view."""

    def __init__(self, core: Core, search: Search, now: float) -> None:
        self._core = core
        self._search = search
        self._leases = core.config.liveness is Liveness.LEASES
        self._patience = 2 * core.config.lease
        self._next_look = now
        self._pause = SOON
        self._asked: dict[StoreOp, float] = {}
        """When each unanswered request was sent."""
        self._views_read = False
        self._first_read = NEVER
        self._last_read = NEVER
        """When the leases were first read, and when the request of the newest answer was sent."""
        self.detail = ""
        """Why the store did not answer, the last time."""
        self.newest: ViewRecord | None = None
        self._unread = ""
        """Why the newest record cannot be read; empty if it can."""
        self._taken = ""
        """Why this member's own record cannot be created, if an unreadable value is in its place."""
        self._lessees: dict[str, _Lessee] = {}
        self._riddles: dict[str, _Riddle] = {}
        """By member id; only for members of the newest record."""
        self._dead: set[str] = set()
        self._checked: dict[str, float] = {}
        self._signs: dict[str, float] = {}
        """When members of the newest record last gave us a sign of life."""
        self._learnt = now
        """When the newest record was first read."""
        self._last_set: tuple[tuple[Address, ...], bool] | None = None
        """The addresses that the search was last told to ask, and whether this member may found."""

    # Time

    def tick(self, now: float) -> None:
        """Read the store, and check the members that do not answer."""
        if now >= self._next_look:
            self._next_look = now + self._pause
            self._pause = min(SELDOM, GROWTH * self._pause)
            self._ask(ReadViews(), now)
            if self._leases:
                self._ask(ReadLeases(None), now)
        if self.answered:
            self._set_search(now)
            for member in self._doubtful(now):
                self._checked[member.id] = now
                self._core.outbox.emit(Check(member))

    def deadline(self) -> float:
        """When ``tick`` is needed next."""
        return self._next_look

    def store_changed(self, now: float) -> None:
        """Something in the store may have changed: look soon."""
        self._next_look = min(self._next_look, now + 0.1)

    def _ask(self, request: ReadViews | ReadLeases, now: float) -> None:
        if now >= self._asked.get(request, NEVER) + 2 * self._core.config.storage_timeout:
            self._asked[request] = now
            self._core.outbox.emit(Ask(request))

    # What is learnt

    def told(self, request: StoreOp, answer: StoreReply, now: float) -> None:
        """A request was answered; it may be another part's."""
        asked = self._asked.pop(request, now)
        if isinstance(answer, Unread) and isinstance(request, ReadViews):
            self._views_read, self._unread = True, answer.detail
        elif isinstance(answer, Unread):
            self._taken = answer.detail
        elif isinstance(answer, Away | Wiped):
            self.detail = answer.detail
        elif isinstance(answer, Recorded):
            self._views_read, self._unread = True, ""
            self._read(answer.record, now)
        elif isinstance(answer, LeaseList) and request == ReadLeases(None):
            self._count(answer, asked, now)

    def _read(self, record: ViewRecord | None, now: float) -> None:
        if record is None or (self.newest is not None and record.view.epoch <= self.newest.view.epoch):
            return
        self.newest = record
        self._learnt = now
        self._signs = {key: time for key, time in self._signs.items() if key in record.view}

    def _count(self, answer: LeaseList, asked: float, now: float) -> None:
        if self._first_read == NEVER:
            self._first_read = now
        self._last_read = asked
        found = {lease.member.id: lease for lease in answer.leases if lease.member.id != self._core.member.id}
        for key, lessee in list(self._lessees.items()):
            if key not in found and lessee.held and lessee.counter >= 0:
                lessee.held, lessee.moved = False, now
            if not lessee.held and not self._recorded(key):
                del self._lessees[key]
        for key, lease in found.items():
            known = self._lessees.get(key)
            if known is None:
                self._lessees[key] = _Lessee(lease.member, lease.counter, now, now)
            elif lease.counter > known.counter:
                known.proven = known.proven or known.counter >= 0
                known.counter, known.moved, known.held = lease.counter, now, True
        self._riddles = {
            lease.member_id: self._riddle(lease, now) for lease in answer.unread if self._recorded(lease.member_id)
        }

    def _riddle(self, lease: UnreadLease, now: float) -> _Riddle:
        known = self._riddles.get(lease.member_id)
        return known if known is not None and known.fingerprint == lease.fingerprint else _Riddle(lease.fingerprint, now)

    def _recorded(self, member_id: str) -> bool:
        """Whether the newest record names that member."""
        return self.newest is not None and member_id in self.newest.view

    def met(self, member: Member, now: float, *, alike: bool) -> None:
        """Another member that looks for a cluster asked us. ``alike``: with our terms."""
        if self._leases:
            known = self._lessees.setdefault(member.id, _Lessee(member, -1, now, now))
            known.proven, known.moved, known.alike = True, now, alike
            if self.answered:
                self._set_search(now)

    def received(self, member_id: str, now: float) -> None:
        """``member_id`` answered us."""
        self._dead.discard(member_id)  # a firewall may have refused the connection that proved it
        if member_id in self._lessees:
            self._lessees[member_id].proven = True
        if self._recorded(member_id):
            self._signs[member_id] = now

    def checked(self, member_id: str, alive: bool | None, now: float, *, listens: bool = False) -> None:
        """The result of a check. ``listens``: a connection was accepted there. That is no answer, but no vanished host either:
        a member that is stopped, or whose agent hangs, may go on, and its job must not be founded again meanwhile.
        """
        if alive:
            self.received(member_id, now)
        elif listens and alive is None:
            if self._recorded(member_id):
                self._signs[member_id] = now
        elif alive is False:
            self._dead.add(member_id)
            self._set_search(now)

    # What follows from it

    @property
    def answered(self) -> bool:
        """Whether the store has answered all needed requests at least once."""
        return self._views_read and (not self._leases or self._first_read != NEVER)

    @property
    def next_epoch(self) -> int:
        """The epoch of a view that is founded now."""
        return 1 if self.newest is None else self.newest.view.epoch + 1

    def orphaned(self, now: float) -> bool:
        """Whether all members of the newest record are gone; True if there is no record."""
        if self._unread:
            return False
        if self.newest is None:
            return True
        return all(self._gone(member.id, now) for member in self.newest.view.members)

    def _gone(self, member_id: str, now: float) -> bool:
        return member_id in self._dead or (self._leases and self._vanished(member_id, now))

    def _vanished(self, member_id: str, now: float) -> bool:
        """Whether the member neither renewed its lease nor answered while we watched and asked for long enough."""
        if member_id == self._core.member.id:
            return False
        lessee = self._lessees.get(member_id)
        riddle = self._riddles.get(member_id)
        moved = max(NEVER if lessee is None else lessee.moved, NEVER if riddle is None else riddle.moved)
        since = max(self._first_read, self._learnt, moved)
        silent = max(self._learnt, self._signs.get(member_id, NEVER))
        return self._last_read - since >= self._patience and now - silent >= self._patience

    def _living(self) -> list[_Lessee]:
        """Members like us with a lease that was renewed, or had no time to be renewed yet, by id."""
        lease = self._core.config.lease
        found = [
            each
            for key, each in self._lessees.items()
            if each.alike and each.held and key not in self._dead and self._last_read - each.moved < lease
        ]
        return sorted(found, key=lambda each: each.member.id)

    def _cluster(self, now: float) -> list[Member]:
        """Members of the newest record that may live."""
        if self.newest is None:
            return []
        return [member for member in self.newest.view.members if not self._gone(member.id, now)][:MEMBERS]

    def _set_search(self, now: float) -> None:
        """Make the search ask the members that the store names."""
        core, search = self._core, self._search
        cluster = tuple(member.address for member in self._cluster(now))
        if core.config.introducers or not self._leases:
            if cluster and self._last_set != (cluster, search.founder):
                self._last_set = (cluster, search.founder)
                search.add(cluster)
                search.ask_at(now)
            return
        living = self._living()
        founder = not living or core.member.id < living[0].member.id
        addresses = (*cluster, *(each.member.address for each in living[:ASKED]))
        if self._last_set != (addresses, founder):
            self._last_set = (addresses, founder)
            search.set(addresses, founder, "")
            search.ask_at(now)

    def _doubtful(self, now: float) -> list[Member]:
        """Members that should have answered by now: to be checked, each at most once a second."""
        found = {}
        if now - self._learnt >= MUTE:
            for member in self._cluster(now):
                if now - self._signs.get(member.id, NEVER) >= CHECK_EVERY:
                    found[member.id] = member
        for index, lessee in enumerate(self._living()):
            patience = MUTE if index < ASKED else 1.2 * self._core.config.lease / BEATS
            if not lessee.proven and now - lessee.appeared >= patience:
                found[lessee.member.id] = lessee.member
        due = [member for member in found.values() if now - self._checked.get(member.id, NEVER) >= CHECK_EVERY]
        return [member for member in due if member.id not in self._dead][: 2 * MEMBERS]

    def failure(self, patience: float, now: float) -> str | None:
        """Why this member is in no cluster after ``patience`` seconds; None if the store is not the reason."""
        within = f"within join_timeout={patience:g} s"
        if not self.answered:
            return f"the store did not answer {within}: {self.detail or 'no error was told'}"
        if self._unread:
            return f"there is a cluster in the store, and nobody let this member in {within}: {self._unread}"
        alive = self._cluster(now)
        if not alive and self._taken:
            return f"nothing can be founded {within}: {self._taken}"
        if self.newest is None or not alive:
            return None
        names = ", ".join(format_address(member.address) for member in alive[:4])
        return (
            f"the newest record in the store is {self.newest.view}, but its members at {names} neither let this one in "
            f"{within} nor are proven dead: are they in reach? If they are gone for good, remove the job's records"
        )
