"""Averages that wait to be replayed, in the order of their calls."""

from __future__ import annotations

from collections.abc import Sequence

from ..call import Results
from ..staging import Slot

__all__ = ["Pending"]


class Pending:
    """Of one recovery; its owner sees to it that one thread at a time is here."""

    def __init__(self, position: int) -> None:
        """``position``: the first call whose average has to be replayed."""
        self.position = position
        """What is here of the state is that on entry to this call."""
        self.held = 0
        """Bytes."""
        self.replayed = 0
        self._averages: dict[int, Results | None] = {}
        self._spare: list[Slot] = []

    def __len__(self) -> int:
        return len(self._averages)

    @property
    def there(self) -> bool:
        """Whether the next one is here."""
        return self.position in self._averages

    @property
    def next(self) -> Results | None:
        """The next one, which is here; None for nothing to apply."""
        return self._averages[self.position]

    def keep(self, number: int, results: Results | None) -> Sequence[Slot] | None:
        """That of call ``number``. Returns buffers to use instead of those of ``results``."""
        self._averages[number] = results
        if results is None:
            return None
        self.held += results.layout.nbytes
        spare, self._spare = self._spare, []
        return spare

    def done(self) -> None:
        """The next one has been applied."""
        results = self._averages.pop(self.position)
        self.position += 1
        if results is not None:
            self.held -= results.layout.nbytes
            self._spare += results.slots
            self.replayed += 1
