"""One sampler for all viewers: it asks the members while somebody looks, and rests when nobody does.

The member that was asked may die: then the next one that is known answers in its place.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ..errors import FTLibError
from .model import Job, changes_of, difference, known_addresses, page_of

__all__ = ["VIEWERS", "Viewer", "Watch"]

VIEWERS = 16
"""The most viewers at a time."""
_QUEUE = 32
"""The most events that wait for a viewer; one that is further behind is let go, and comes back by itself."""
_EVERY = 0.5
"""Seconds between two samples: at most two patches a second."""
_ALL_EVERY = 2
"""Every so many samples all members are asked, not only one."""
_ASKED = 64
"""The most members that are asked."""
_KNOWN = 256
_CHANGES = 200
"""The most view changes that are kept for viewers that come later."""
_TIMEOUT = 2.0

Fetch = Callable[[str, float], dict[str, Any]]
"""The status of the member at an address (see ``cli.status.fetch_status``)."""


class Viewer:
    """One open page: its events, as text. None: it is let go."""

    def __init__(self) -> None:
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

    def __init__(self, address: str, fetch: Fetch, restarts_left: Callable[[str], int | None]) -> None:
        """``address``: of any member. ``restarts_left(job)``: as its launcher says, if it has one here."""
        self._fetch = fetch
        self._restarts_left = restarts_left
        self._known: OrderedDict[str, None] = OrderedDict({address: None})
        self._viewers: set[Viewer] = set()
        self._page: dict[str, Any] = {}
        self._changes: OrderedDict[int, dict[str, Any]] = OrderedDict()
        self._others: dict[str, dict[str, Any]] = {}
        self._steps: dict[str, tuple[float, int]] = {}
        self._rates: dict[str, float] = {}
        self._restarts: int | None = None
        self._began: tuple[float, float] | None = None
        """When the first sample was taken, and the pauses until then."""
        self._count = 0
        self._task: asyncio.Task[None] | None = None
        self._pool = ThreadPoolExecutor(16, thread_name_prefix="ftlib-dashboard")
        self.trouble = ""
        """Why nobody answers, while nobody does."""

    # Viewers

    def enter(self, last_epoch: int) -> Viewer | None:
        """A new viewer, who has seen the changes up to ``last_epoch``; None if there are too many."""
        if len(self._viewers) >= VIEWERS:
            return None
        viewer = Viewer()
        if self._page:
            viewer.tell(_event("snapshot", self._page))
            missed = [change for epoch, change in self._changes.items() if epoch > last_epoch]
            viewer.tell(_event("changes", missed, identity=max(self._changes, default=0)))
        self._viewers.add(viewer)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._sample())
        return viewer

    def leave(self, viewer: Viewer) -> None:
        """The page was closed."""
        self._viewers.discard(viewer)

    async def close(self) -> None:
        """Let all viewers go."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for viewer in list(self._viewers):
            self._let_go(viewer)
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _let_go(self, viewer: Viewer) -> None:
        self._viewers.discard(viewer)
        while viewer.events.full():
            viewer.events.get_nowait()
        viewer.events.put_nowait(None)

    # What is known

    def address_of(self, member_id: str) -> str | None:
        """Where that member of the present page answers."""
        row = (self._page.get("rows") or {}).get(member_id)
        return None if row is None else str(row["address"])

    @property
    def entry(self) -> str | None:
        """Where the member answers that was asked last; None if none has answered yet."""
        return next(iter(self._known), None) if self._page else None

    @property
    def job(self) -> str:
        """Its name, once a member has answered."""
        return str(self._page.get("job", ""))

    # The sampler

    async def _sample(self) -> None:
        while self._viewers:
            began = time.monotonic()
            await self._look()
            await asyncio.sleep(max(0.0, _EVERY - (time.monotonic() - began)))

    async def _look(self) -> None:
        entry = await self._entry()
        if entry is None:
            self._tell(_event("silent", {"why": self.trouble}))
            return
        self.trouble = ""
        if self._count % _ALL_EVERY == 0:
            await self._ask_all(entry)
        self._count += 1
        self._note_steps(entry)
        page = page_of(Job(entry, self._others, self._restarts, self._rates, self._goodput(entry)))
        patch, self._page, first = difference(self._page, page), page, not self._page
        if first:
            self._tell(_event("snapshot", page))
        elif patch:
            self._tell(_event("patch", patch))
        self._note_changes(entry)

    async def _entry(self) -> dict[str, Any] | None:
        """The status of the first known member that is in a view; it stays the first."""
        for address in list(self._known):
            try:
                status = await self._asked(address)
            except FTLibError as error:
                self.trouble = self.trouble or str(error)
                continue
            ids = {str(member["id"]) for member in status.get("members") or ()}
            if status.get("stopped") or status.get("member") not in ids:
                self.trouble = f"{address} is in no view now"
                continue
            for each in (*reversed(known_addresses([status])), address):
                self._known[each] = None
                self._known.move_to_end(each, last=False)
            while len(self._known) > _KNOWN:
                self._known.popitem()
            return status
        return None

    async def _ask_all(self, entry: Mapping[str, Any]) -> None:
        members = [member for member in entry.get("members") or () if member["id"] != entry.get("member")][:_ASKED]
        answers = await asyncio.gather(*(self._asked(str(member["address"])) for member in members), return_exceptions=True)
        self._others = {
            str(member["id"]): answer
            for member, answer in zip(members, answers, strict=True)
            if isinstance(answer, dict) and answer.get("member") == member["id"]
        }
        loop = asyncio.get_running_loop()
        self._restarts = await loop.run_in_executor(self._pool, self._restarts_left, str(entry.get("job", "")))

    async def _asked(self, address: str) -> dict[str, Any]:
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._fetch, address, _TIMEOUT)

    def _note_steps(self, entry: Mapping[str, Any]) -> None:
        now = time.monotonic()
        for status in (entry, *self._others.values()):
            step = (status.get("ftlib") or {}).get("step")
            member = str(status.get("member"))
            if step is None:
                continue
            then, before = self._steps.get(member, (now, step))
            if now - then >= 2 * _EVERY:
                self._rates[member] = max(0.0, (step - before) / (now - then))
            if member not in self._steps or now - then >= 2 * _EVERY:
                self._steps[member] = now, step
        there = {str(member["id"]) for member in entry.get("members") or ()}
        self._rates = {member: rate for member, rate in self._rates.items() if member in there}
        self._steps = {member: seen for member, seen in self._steps.items() if member in there}

    def _goodput(self, entry: Mapping[str, Any]) -> float | None:
        paused = ((entry.get("ftlib") or {}).get("pauses") or {}).get("sum")
        if paused is None:
            return None
        now = time.monotonic()
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
        self._tell(_event("changes", list(new.values()), identity=max(self._changes)))

    def _tell(self, text: str) -> None:
        for viewer in list(self._viewers):
            if not viewer.tell(text):
                self._let_go(viewer)


def _event(kind: str, value: Any, *, identity: int | None = None) -> str:
    """One server-sent event. JSON has no line break in it."""
    head = "" if identity is None else f"id: {identity}\n"
    return f"{head}event: {kind}\ndata: {json.dumps(value, separators=(',', ':'), default=str)}\n\n"
