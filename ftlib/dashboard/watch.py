"""One sampler for all viewers: it asks the members while somebody looks, and rests when nobody does.

It waits for one member only, the *entry*; the others answer when they do, and a page shows what they have told so far. The
entry may die: then all that are known are asked, and who answers first takes its place. If none does, the launcher is asked
for its workers.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from ..errors import FTLibError
from .model import Job, changes_of, check_own, difference, facts_of, known_addresses, rows_of, shown

VIEWERS = 16
"""The most viewers at a time."""
_QUEUE = 32
"""The most events that wait for a viewer; one that is further behind is let go, and comes back by itself."""
_EVERY = 0.6
"""Seconds between two samples of an agent while somebody is in trouble or the view changes. It shares the processors with the
training, and knows itself at once when something happens."""
_WELL = 1.0
"""The same while all are well."""
_LOOK = 0.25
"""The same where the entry is asked over a network."""
_TICK = 0.1
"""How often an agent compares its place with that of the last sample."""
_SETTLED = 0.06
"""Seconds for which its place stays the same before it looks, twice at most: first whoever recovers has the processors."""
_PATCHES = 2.0
"""Patches a second, at most; one more may follow at once when the view changes."""
_ASK_EVERY = 0.9
"""Seconds between two questions to the same member, at least, while it is in trouble or new."""
_ASK_WELL = 4.9
"""The same while it is well: then the one that is asked first knows nearly as much of it, by its pings."""
_FRESH = 1.5
"""Seconds after its answer for which a member's own word of its step and its call is shown; then what the first one says."""
_RESTARTS_EVERY = 10.0
"""Seconds between two questions to the launcher. It is also asked once the view has changed: little else costs a restart."""
_ASKED = 64
"""The most members that are asked at a time."""
_THREADS = 16
"""The most questions that are on the network at a time."""
_KNOWN = 256
_CHANGES = 200
"""The most view changes that are kept for viewers that come later."""
_TIMEOUT = 2.0

Fetch = Callable[[str, float], dict[str, Any]]
"""The status of the member at an address (see ``cli.status.fetch_status``)."""


@dataclass(frozen=True, slots=True)
class Sources:
    """Where a watch has its facts from. Blocking calls are made on threads."""

    fetch: Fetch
    restarts_left: Callable[[str], int | None] = lambda _job: None
    """Of a job, as its launcher says, if it has one here."""
    seek: Callable[[], list[str]] = list
    """Addresses of members now, where none that was known answers."""
    own: Callable[[], Awaitable[Mapping[str, Any]]] | None = None
    """The status of this very member, in its agent; None outside of one."""
    place: Callable[[], object] | None = None
    """There: what differs after each change of the view; cheap."""
    asked: int = _ASKED
    """How many members are asked at a time."""


@dataclass(slots=True)
class _Poll:
    """What one member has said of itself."""

    at: float = -_ASK_WELL
    """When it was asked."""
    status: dict[str, Any] = field(default_factory=dict)
    answered_at: float = 0.0
    """When it answered."""
    waiting: bool = False
    """Whether its answer is under way."""


class Viewer:
    """One open page: its events, as text. None: it is let go."""

    def __init__(self, first: int = 0) -> None:
        """``first``: the place of the first member that it shows."""
        self.first = first
        self.events: asyncio.Queue[str | None] = asyncio.Queue(_QUEUE)

    def tell(self, text: str) -> bool:
        """Queue an event; False if the viewer does not keep up."""
        try:
            self.events.put_nowait(text)
        except asyncio.QueueFull:
            return False
        return True


class Watch:
    """Everything here runs on one loop; requests run on threads."""

    def __init__(self, address: str, sources: Sources) -> None:
        """``address``: of any member; empty: it is sought."""
        self._sources = sources
        self._known: OrderedDict[str, None] = OrderedDict({address: None} if address else {})
        self._viewers: set[Viewer] = set()
        self._pages: dict[int, dict[str, Any]] = {}
        """What was told last, by the place of the first member."""
        self._facts: dict[str, Any] = {}
        self._rows: dict[str, dict[str, Any]] = {}
        """Of all members."""
        self._changes: OrderedDict[int, dict[str, Any]] = OrderedDict()
        self._polls: dict[str, _Poll] = {}
        self._steps: dict[str, tuple[float, int]] = {}
        self._rates: dict[str, float] = {}
        self._restarts: int | None = None
        self._restarts_at = -_RESTARTS_EVERY
        self._restarts_epoch: int | None = None
        """Of the view in which the launcher was asked."""
        self._began: tuple[float, float] | None = None
        """When the first sample was taken, and the pauses until then."""
        self._patches, self._patched_at = _PATCHES, 0.0
        """How many patches may be told now, as of when."""
        self._task: asyncio.Task[None] | None = None
        self._asking: set[asyncio.Task[None]] = set()
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="ftlib-dashboard")
        self._entry_pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="ftlib-dashboard-entry")
        """The entry is not to wait behind others that do not answer."""
        self._silent = False
        """Whether the pages say that nobody answers."""
        self.trouble = ""
        """Why nobody answers, while nobody does."""

    # Viewers

    @property
    def viewers(self) -> int:
        """How many look."""
        return len(self._viewers)

    def enter(self, last_epoch: int, first: int = 0) -> Viewer | None:
        """A new viewer, who has seen the changes up to ``last_epoch``; None if there are too many.

        ``first``: the place of the first member that it shows.
        """
        if len(self._viewers) >= VIEWERS:
            return None
        viewer = Viewer(first)
        resting = self._task is None or self._task.done()
        if resting:
            self._pages = {}  # what was seen before is old: the first sample makes a snapshot
        if self._facts:
            if not resting:
                page = self._pages.setdefault(first, {**self._facts, **shown(self._rows, first)})
                viewer.tell(_event("snapshot", page))
            missed = [change for epoch, change in self._changes.items() if epoch > last_epoch]
            viewer.tell(_event("changes", missed, identity=max(self._changes, default=0)))
        self._viewers.add(viewer)
        if resting:
            self._task = asyncio.get_running_loop().create_task(self._sample())
        return viewer

    def leave(self, viewer: Viewer) -> None:
        """The page was closed."""
        self._viewers.discard(viewer)

    async def close(self) -> None:
        """Let all viewers go."""
        tasks = [*filter(None, [self._task]), *self._asking]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for viewer in list(self._viewers):
            self._let_go(viewer)
        for pool in (self._pool, self._entry_pool):
            pool.shutdown(wait=False, cancel_futures=True)

    def _let_go(self, viewer: Viewer) -> None:
        self._viewers.discard(viewer)
        while viewer.events.full():
            viewer.events.get_nowait()
        viewer.events.put_nowait(None)

    # What is known

    def address_of(self, member_id: str) -> str | None:
        """Where that member of the present page answers."""
        row = self._rows.get(member_id)
        return None if row is None else str(row["address"])

    @property
    def entry(self) -> str | None:
        """Where the member answers that was asked last; None if none has answered yet."""
        return next(iter(self._known), None) if self._facts else None

    @property
    def job(self) -> str:
        """Its name, once a member has answered."""
        return str(self._facts.get("job", ""))

    # The sampler

    async def _sample(self) -> None:
        place = self._sources.place
        while self._viewers:
            now = _now()
            seen = None if place is None else place()
            try:
                await self._look()
            except Exception as error:  # noqa: BLE001 - a member of another version may say anything; others are still there
                self._tell_silence(_unreadable(error))
                self._give_way(next(iter(self._known), ""))
            until = now + (_LOOK if place is None else _WELL if self._well() else _EVERY)
            # An agent's place is a few numbers on this very loop, which no event tells of.
            while (left := until - _now()) > 0 and (place is None or place() == seen):  # noqa: ASYNC110
                await asyncio.sleep(left if place is None else min(_TICK, left))
            if place is not None and (changed := place()) != seen:
                await asyncio.sleep(_SETTLED)
                if place() != changed:
                    await asyncio.sleep(_SETTLED)

    def _well(self) -> bool:
        """Whether nobody is in trouble, as far as is known, and no view change is under way."""
        return not self._facts.get("changing") and not any(row["trouble"] for row in self._rows.values())

    async def _look(self) -> None:
        entry = await self._entry()
        if entry is None:
            self._tell_silence(self.trouble)
            return
        self.trouble = ""
        self._ask(entry)
        self._note_steps(entry)
        job = Job(entry, self._others(entry), self._restarts, self._rates, self._goodput(entry))
        self._rows = rows_of(job)
        self._facts = facts_of(job, self._rows)
        if self._may_patch():
            if self._silent:
                self._silent, self._pages = False, {}  # a page says that nobody answers until it is told what is there
            self._tell_pages()
        self._note_changes(entry)

    def _tell_silence(self, why: str) -> None:
        self._silent = True
        self._tell(self._viewers, _event("silent", {"why": why}))

    def _tell_pages(self) -> None:
        """To each viewer what is new on its page."""
        pages = {}
        for first in {viewer.first for viewer in self._viewers}:
            old, new = self._pages.get(first), {**self._facts, **shown(self._rows, first)}
            pages[first] = new
            if old is None:
                text = _event("snapshot", new)
            elif patch := difference(old, new):
                text = _event("patch", patch)
            else:
                continue
            self._tell([viewer for viewer in self._viewers if viewer.first == first], text)
        self._pages = pages

    def _may_patch(self) -> bool:
        """Whether a patch may be told now, so that there are not too many."""
        now = _now()
        self._patches = min(_PATCHES, self._patches + (now - self._patched_at) * _PATCHES)
        self._patched_at = now
        known = next(iter(self._pages.values()), {})
        urgent = self._silent or any(known.get(key) != self._facts[key] for key in ("epoch", "changing", "size"))
        if self._patches < (_PATCHES - 1.1 if urgent else _PATCHES - 0.1):
            return False
        self._patches = max(0.0, self._patches - 1.0)
        return True

    async def _entry(self) -> dict[str, Any] | None:
        """The status of the member that is asked first; where it gives none, of another, which is the first from then on."""
        if self._sources.own is not None:
            status = dict(await self._sources.own())
            address = str(status.get("address"))
            self._known = OrderedDict({address: None})
            if status.get("member") in {str(member["id"]) for member in status.get("members") or ()}:
                return status
            self.trouble = "this member is in no view now"
            return None
        known = list(self._known)
        found = await self._first_of(known[:1])
        if found is None:
            found = await self._first_of(known[1 : 1 + _THREADS])
        if found is None:
            there = await asyncio.get_running_loop().run_in_executor(self._entry_pool, self._sources.seek)
            found = await self._first_of([address for address in there if address not in self._known][:_THREADS])
        return found

    async def _first_of(self, addresses: Sequence[str]) -> dict[str, Any] | None:
        """The status that comes first of a member in a view. All are asked at once, and who gives none is last from then on."""
        questions = [asyncio.ensure_future(self._status_of(address)) for address in addresses]
        try:
            for answer in asyncio.as_completed(questions):
                address, status = await answer
                if status is None:
                    self._give_way(address)
                    continue
                for each in (*reversed(known_addresses([status])), address):
                    self._known[each] = None
                    self._known.move_to_end(each, last=False)
                while len(self._known) > _KNOWN:
                    self._known.popitem()
                return status
        finally:
            for question in questions:
                question.cancel()
        return None

    async def _status_of(self, address: str) -> tuple[str, dict[str, Any] | None]:
        """The address with the status of the member there; None where nobody answers who is in a view."""
        try:
            status = await self._asked(address, self._entry_pool)
            ids = {str(member["id"]) for member in status.get("members") or ()}
        except FTLibError as error:
            self.trouble = self.trouble or str(error)
        except Exception as error:  # noqa: BLE001 - as in _sample
            self.trouble = _unreadable(error)
        else:
            if not status.get("stopped") and status.get("member") in ids:
                return address, status
            self.trouble = f"{address} is in no view now"
        return address, None

    def _give_way(self, address: str) -> None:
        """Ask there after all others that are known."""
        if address in self._known:
            self._known.move_to_end(address)

    def _ask(self, entry: Mapping[str, Any]) -> None:
        """Ask some members of themselves: those in trouble first, then those that a viewer sees, who was asked longest ago."""
        now = _now()
        there = {str(member["id"]): str(member["address"]) for member in entry.get("members") or ()}
        there.pop(str(entry.get("member")), None)
        self._polls = {member: self._polls.get(member) or _Poll() for member in there}
        seen = {member for page in self._pages.values() for member in page["rows"]} or set(there)
        due = [each for each, poll in self._polls.items() if each in seen and not poll.waiting and self._rested(each, now)]
        due.sort(key=lambda each: (not (self._rows.get(each) or {}).get("trouble"), self._polls[each].at))
        for member in due[: max(0, self._sources.asked - len(self._asking))]:
            self._polls[member].at, self._polls[member].waiting = now, True
            self._start(self._ask_one(member, there[member]))
        epoch = entry.get("active_epoch")
        if now - self._restarts_at >= _RESTARTS_EVERY or epoch != self._restarts_epoch:
            self._restarts_at, self._restarts_epoch = now, epoch
            self._start(self._ask_launcher(str(entry.get("job", ""))))

    def _rested(self, member: str, now: float) -> bool:
        """Whether that member may be asked again."""
        poll, row = self._polls[member], self._rows.get(member)
        well = bool(poll.status) and row is not None and not row["trouble"]
        return now - poll.at >= (_ASK_WELL if well else _ASK_EVERY)

    def _start(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    async def _ask_one(self, member: str, address: str) -> None:
        poll = self._polls[member]
        try:
            answer = await self._asked(address, self._pool)
            check_own(answer)  # here, where it is known whose it is: one that cannot be shown is to cost no other row
        except Exception:  # noqa: BLE001 - whatever is wrong with it, it is asked again later
            answer = {}
        poll.waiting, poll.answered_at = False, _now()
        poll.status = answer if answer.get("member") == member else {}

    async def _ask_launcher(self, job: str) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(FTLibError):
            self._restarts = await loop.run_in_executor(self._pool, self._sources.restarts_left, job)

    def _others(self, entry: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """What the members have said of themselves; of what is old only that which changes seldom, and the call that lasts."""
        now, peers = _now(), (entry.get("ftlib") or {}).get("peers") or {}
        found = {}
        for member, poll in self._polls.items():
            upper, age = poll.status.get("ftlib") or {}, now - poll.answered_at
            if age > _FRESH and "phase" in upper:
                kept = {key: upper.get(key) for key in ("phase", "checkpoint_step")}
                call = upper.get("in_call") or {}
                if call and (peers.get(member) or {}).get("current") == call.get("number"):  # by its pings it is still there
                    kept["in_call"] = {**call, "seconds": (call.get("seconds") or 0.0) + age}
                found[member] = {**poll.status, "ftlib": kept}
            elif poll.status:
                found[member] = poll.status
        return found

    async def _asked(self, address: str, pool: ThreadPoolExecutor) -> dict[str, Any]:
        return await asyncio.get_running_loop().run_in_executor(pool, self._sources.fetch, address, _TIMEOUT)

    def _note_steps(self, entry: Mapping[str, Any]) -> None:
        for at, status in ((_now(), entry), *((poll.answered_at, poll.status) for poll in self._polls.values())):
            step = (status.get("ftlib") or {}).get("step")
            member = str(status.get("member"))
            if step is None:
                continue
            then, before = self._steps.setdefault(member, (at, step))
            if at - then >= 2 * _EVERY:
                self._rates[member] = max(0.0, (step - before) / (at - then))
                self._steps[member] = at, step
        there = {str(member["id"]) for member in entry.get("members") or ()}
        self._rates = {member: rate for member, rate in self._rates.items() if member in there}
        self._steps = {member: seen for member, seen in self._steps.items() if member in there}

    def _goodput(self, entry: Mapping[str, Any]) -> float | None:
        """As the member itself counts it; else by its pauses, since this watch began."""
        upper = entry.get("ftlib") or {}
        if upper.get("goodput") is not None:
            return float(upper["goodput"])
        paused = (upper.get("pauses") or {}).get("sum")
        if paused is None:
            return None
        now = _now()
        if self._began is None or paused < self._began[1]:  # another member answers now
            self._began = now, paused
        elapsed = now - self._began[0]
        return None if elapsed < 1 else max(0.0, 1 - (paused - self._began[1]) / elapsed)

    def _note_changes(self, entry: Mapping[str, Any]) -> None:
        new = {
            epoch: change
            for epoch, change in changes_of(entry.get("history") or ()).items()
            if self._changes.get(epoch) is None or (change["active"] and not self._changes[epoch]["active"])
        }
        if not new:
            return
        self._changes.update(new)
        while len(self._changes) > _CHANGES:
            self._changes.popitem(last=False)
        self._tell(self._viewers, _event("changes", list(new.values()), identity=max(self._changes)))

    def _tell(self, viewers: Iterable[Viewer], text: str) -> None:
        for viewer in list(viewers):
            if not viewer.tell(text):
                self._let_go(viewer)


def _now() -> float:
    return asyncio.get_running_loop().time()


def _unreadable(error: Exception) -> str:
    return f"a status cannot be read ({type(error).__name__}: {error}): is there a member of another version?"


def _event(kind: str, value: Any, *, identity: int | None = None) -> str:
    """One server-sent event. JSON has no line break in it."""
    head = "" if identity is None else f"id: {identity}\n"
    return f"{head}event: {kind}\ndata: {json.dumps(value, separators=(',', ':'), default=str)}\n\n"
