"""A training thread that hangs while its agent lives: the others wait in a call that this member does not enter.

The hung member's own agent judges, from the pings or leases of its peers: it knows best that its own data plane has not entered
the call, and its statement about itself is proof (see ``Died``). At least half of the view must have waited for
``stall_timeout``: so a single fast member never declares all others hung, and of two members one suffices. A member that does
steps by itself (local training) hangs only if it has done none for so long.

Time in which the agent itself was held up does not count, as the program was held up then, too. It is left out of the wait, and
the wait goes on: on a busy machine an agent is held up every few seconds, and if each of these began the wait anew a program
that hangs would never be found. Only a host that slept for ``stall_timeout`` or longer gets all of that again as it wakes.
"""

from __future__ import annotations

from collections import deque
from math import inf

from ...progress import Progress
from ..state.core import Core

_REMEMBERED = 256
"""How many times in which this agent was held up are left out of a wait: the newest."""


class Stall:
    """The members that wait for this member's data plane, and since when."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._waiting: dict[str, tuple[int, float]] = {}
        """Members of the view: the call that each is in, and since when."""
        self._awake = -inf
        """When this host last woke from a long sleep, perhaps with the others: waiting counts from then at the earliest."""
        self._held_up: deque[tuple[float, float]] = deque(maxlen=_REMEMBERED)
        """From when until when this agent was held up since, in as far as it ended less than two ``stall_timeout`` before the
        last time: so a wait of four of them is found, however busy the machine is."""

    def received(self, member_id: str, progress: Progress) -> None:
        """The progress of a peer arrived."""
        if progress.current > progress.finished:
            self._waiting[member_id] = (progress.current, progress.since)
        else:
            self._waiting.pop(member_id, None)

    def overslept(self, late: float, now: float) -> None:
        """This agent was held up for ``late`` seconds, until ``now``."""
        patience, held_up = self._core.config.stall_timeout, self._held_up
        if late >= patience:
            self._awake = now
            held_up.clear()
            return
        held_up.append((now - late, now))
        while held_up[0][1] < now - 2 * patience:
            held_up.popleft()

    def forget(self) -> None:
        """A new view: members that wait have to report it again."""
        self._waiting.clear()

    @property
    def awaited(self) -> bool:
        """Whether any member is known to wait in a call that this member's data plane has not entered."""
        own = self._core.progress
        return any(call > max(own.finished, own.current) for call, _ in self._waiting.values())

    def since(self) -> float | None:
        """Since when half of the view or more has waited for this member, later by what does not count; None if it does not."""
        if not self._waiting:
            return None
        core = self._core
        own = core.progress
        wanted = own.finished + 1
        if core.view is None or core.active is not core.view or own.current >= wanted:
            return None
        if not own.finished and not own.current:  # before its first call a worker may load data and state for any time
            return None
        began = sorted(since for call, since in self._waiting.values() if call >= wanted)
        needed = (len(core.view) + 1) // 2
        if len(began) < needed:
            return None
        moved = own.since if own.inner else -inf  # a round of inner steps may take hours
        first = max(began[needed - 1], self._awake, moved)
        return first + sum(max(0.0, until - max(begun, first)) for begun, until in self._held_up)

    def deadline(self) -> float:
        """When the wait becomes a stall."""
        since = self.since()
        return inf if since is None else since + self._core.config.stall_timeout
