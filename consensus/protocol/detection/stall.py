"""A training thread that hangs while its agent lives: the others wait in a call that this member does not enter.

The hung member's own agent judges, from the pings or leases of its peers: it knows best that its own data plane has not entered
the call, and its statement about itself is proof (see ``Died``). At least half of the view must have waited for
``stall_timeout``: so a single fast member never declares all others hung, and of two members one suffices. A member that does
steps by itself (local training) hangs only if it has done none for so long.
"""

from __future__ import annotations

from math import inf

from ...progress import Progress
from ..state.core import Core


class Stall:
    """The members that wait for this member's data plane, and since when."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._waiting: dict[str, tuple[int, float]] = {}
        """Members of the view: the call that each is in, and since when."""
        self.awake = -inf
        """Waiting counts from then at the earliest: this agent itself was held up until then, and perhaps the others with it.
        """

    def heard(self, member_id: str, progress: Progress) -> None:
        """The progress of a peer arrived."""
        if progress.current > progress.finished:
            self._waiting[member_id] = (progress.current, progress.since)
        else:
            self._waiting.pop(member_id, None)

    def overslept(self, now: float) -> None:
        """This agent was held up until ``now``."""
        self.awake = now

    def forget(self) -> None:
        """A new view: members that wait have to report it again."""
        self._waiting.clear()

    @property
    def awaited(self) -> bool:
        """Whether any member is known to wait in a call that this member's data plane has not entered."""
        own = self._core.progress
        return any(call > max(own.finished, own.current) for call, _ in self._waiting.values())

    def since(self) -> float | None:
        """Since when at least half of the view has waited for this member; None if it does not."""
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
        return max(began[needed - 1], self.awake, moved)

    def deadline(self) -> float:
        """When the wait becomes a stall."""
        since = self.since()
        return inf if since is None else since + self._core.config.stall_timeout
