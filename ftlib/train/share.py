"""What a program has said of its next average by ``weigh``: its weight, and how many batches it is of."""

from __future__ import annotations

import weakref
from collections.abc import Callable

from ..errors import ConfigError
from ..ftlib import FTLib
from ..training import checked_share


class NextShare:
    """Holds until an average has ended, as a step that failed before is done again; or until the program declines that average.
    Used by one thread.
    """

    def __init__(self, ft: FTLib, check: Callable[[], bytes]) -> None:
        """Nothing was said yet. ``check``: returns the ``Layout.check`` that the average has."""
        self._ft = ft
        self._check = check
        self._weight: float | None = None
        self._batches = 1

    def say(self, weight: float, batches: int) -> None:
        """The next average has that weight, and is of so many batches."""
        self._weight, self._batches = weight, batches
        if self._ft not in _SAID:
            _SAID[self._ft] = _Said(self._ft)
        _SAID[self._ft].add(self)

    def get(self) -> tuple[float | None, int]:
        """Weight and batches of the average that is made now; None: the default. ConfigError drops what is unusable."""
        try:
            checked_share(self._weight, self._batches)
        except ConfigError:  # else each step after this one would fail as well
            self.used()
            raise
        return self._weight, self._batches

    def used(self) -> None:
        """The average has ended: of the next one nothing was said."""
        if self._ft in _SAID:
            _SAID[self._ft].remove(self)
        self._weight, self._batches = None, 1

    def is_of(self, check: bytes) -> bool:
        """True if the average looks like the call with that ``Layout.check``."""
        try:
            return self._check() == check
        except ConfigError:  # it cannot be made
            return False


class _Said:
    """What was said of one worker's averages, in that order."""

    def __init__(self, ft: FTLib) -> None:
        self._shares: list[weakref.ref[NextShare]] = []
        ft.when_declined(self._declined)

    def add(self, share: NextShare) -> None:
        """Something was said of the average that ``share`` is for, instead of what was said before."""
        self.remove(share)
        self._shares.append(weakref.ref(share))

    def remove(self, share: NextShare) -> None:
        """That average has ended."""
        self._shares = [each for each in self._shares if each() not in (None, share)]

    def _declined(self, check: bytes) -> None:
        """A call was declined: what was said of it is gone, and of no other one. If nobody knows which call it was, as all have
        declined it, it was the one of which something was said first.
        """
        shares = [share for each in self._shares if (share := each()) is not None]
        found = next((share for share in shares if not check or share.is_of(check)), None)
        if found is not None:
            found.used()


_SAID: weakref.WeakKeyDictionary[FTLib, _Said] = weakref.WeakKeyDictionary()
