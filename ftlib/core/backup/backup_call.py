"""A backup worker's part in a call of the others."""

from __future__ import annotations

import math
from collections.abc import Callable

from ..calls.follow import Followed
from ..engine.waiting import WARN_AFTER, Patience


class BackupCall(Followed):
    """One call, entered before this member knows which call it is, or whether the others are in it.

    So this member hides that it waits in the call until it is sure that the others do: its waiting would count as evidence
    against them.
    """

    by_backup = True

    def __init__(self, began: float, *, veto: bool, awaited: Callable[[], bool], present: Callable[[], None]) -> None:
        """``awaited``: True while the program waits for the call's end. ``present``: shows that this member is in the call."""
        super().__init__(began, veto=veto)
        self.present = False
        self._awaited = awaited
        self._tell = present

    def patience(self, timeout: float, now: Callable[[], float]) -> Patience:
        """``timeout`` seconds from when the program waits for this call; before that the others may compute without limit."""
        return _Unhurried(timeout, now, self._awaited, self._tell)


class _Unhurried(Patience):
    """A patience that begins when the program waits."""

    __slots__ = ("_awaited", "_present", "_timeout")

    def __init__(
        self, timeout: float, now: Callable[[], float], awaited: Callable[[], bool], present: Callable[[], None]
    ) -> None:
        Patience.__init__(self, math.inf, now(), now)
        self._timeout, self._awaited, self._present = timeout, awaited, present

    def due(self) -> float | None:
        if self.deadline == math.inf:
            if not self._awaited():
                return None
            self.began = self.now()
            self.deadline, self.warn_at = self.began + self._timeout, WARN_AFTER
            self._present()
        return Patience.due(self)
