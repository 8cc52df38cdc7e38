"""What a program has said of its next average by ``weigh``: its weight, and how many batches it is of."""

from __future__ import annotations

from ..errors import ConfigError
from ..ftlib import FTLib
from ..training import checked_share

__all__ = ["NextShare"]


class NextShare:
    """Holds until an average has ended, as a step that failed before is done again. Used by one thread."""

    def __init__(self, ft: FTLib) -> None:
        """Nothing was said yet."""
        self._ft = ft
        self._weight: float | None = None
        self._batches = 1
        self._declined = 0
        """How many calls the program had declined by then."""

    def say(self, weight: float, batches: int) -> None:
        """The next average has that weight, and is of so many batches."""
        self._weight, self._batches, self._declined = weight, batches, self._ft.declined

    def get(self) -> tuple[float | None, int]:
        """Weight and batches of the average that is made now; None: the default. ConfigError drops what is unusable."""
        if self._declined != self._ft.declined:  # that was the call it had been said of
            self.used()
        try:
            checked_share(self._weight, self._batches)
        except ConfigError:  # else each step after this one would fail as well
            self.used()
            raise
        return self._weight, self._batches

    def used(self) -> None:
        """The average has ended: of the next one nothing was said."""
        self._weight, self._batches, self._declined = None, 1, self._ft.declined
