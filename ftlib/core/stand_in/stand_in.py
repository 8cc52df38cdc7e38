"""A call of the others as a deputy takes part in it."""

from __future__ import annotations

import math
from collections.abc import Callable

from ..calls.follow import Followed
from ..engine.waiting import WARN_AFTER, Patience


class StandIn(Followed):
    """One call, entered before anybody knows that the others are in it, or what it is.

    So it is not told that this member waits in it, before it is sure that the others do: it would be held against them.
    """

    stand_in = True

    def __init__(self, began: float, *, veto: bool, awaited: Callable[[], bool], present: Callable[[], None]) -> None:
        """``awaited``: whether the program waits for its end. ``present``: tells that this member is in it."""
        super().__init__(began, veto=veto)
        self.present = False
        self._awaited = awaited
        self._tell = present

    def patience(self, timeout: float, now: Callable[[], float]) -> Patience:
        """``timeout`` seconds from when the program waits for it; the others may compute as long as they like before that."""
        return _Unhurried(timeout, now, self._awaited, self._tell)


class _Unhurried(Patience):
    """It begins when somebody waits."""

    __slots__ = ("_awaited", "_present", "_timeout")

    def __init__(
        self, timeout: float, now: Callable[[], float], awaited: Callable[[], bool], present: Callable[[], None]
    ) -> None:
        Patience.__init__(self, math.inf, now)
        self._timeout, self._awaited, self._present = timeout, awaited, present

    def due(self) -> float | None:
        if self.deadline == math.inf:
            if not self._awaited():
                return None
            self.began = self.now()
            self.deadline, self.warn_at = self.began + self._timeout, WARN_AFTER
            self._present()
        return Patience.due(self)
