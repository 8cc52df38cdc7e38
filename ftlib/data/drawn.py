"""What one member has drawn and not used up."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from .dealing.ranges import Ranges


@dataclass(slots=True)
class Drawn:
    """Batches, oldest first."""

    items: deque[Ranges] = field(default_factory=deque)
    """The positions of each; none: a filler, or a batch that does not count any more."""
    stale: int = 0
    """How many of the oldest will never be used."""

    def void(self) -> None:
        """From now on none of the batches counts."""
        self.items = deque([()] * len(self.items))

    def discard(self, batches: int) -> None:
        """Mark the next ``batches`` as never to be used."""
        self.stale = min(len(self.items), self.stale + batches)

    def pop(self, batches: int) -> None:
        """Remove the batches that will never be used, and the next ``batches``."""
        for _ in range(min(len(self.items), self.stale + batches)):
            self.items.popleft()
        self.stale = 0

    def next(self, batches: int) -> list[Ranges]:
        """The next ``batches``, or as many as there are."""
        return list(itertools.islice(self.items, self.stale, self.stale + batches))

    def counting(self, batches: int) -> tuple[bool, ...]:
        """Of each batch after the next ``batches``: whether it counts."""
        return tuple(bool(batch) for batch in itertools.islice(self.items, self.stale + batches, None))

    def refuse(self, batches: int, ahead: Sequence[bool]) -> int:
        """After the next ``batches``, none counts from the first one on that does not according to ``ahead``. Returns how many
        did.
        """
        first, refused = self.stale + batches, 0
        for index in range(first, len(self.items)):
            agreed = index - first >= len(ahead) or ahead[index - first]
            if self.items[index] and (refused or not agreed):
                self.items[index] = ()
                refused += 1
        return refused

    @property
    def dropped(self) -> int:
        """How many batches that count will never be used."""
        return sum(1 for batch in itertools.islice(self.items, self.stale) if batch)

    @property
    def waiting(self) -> int:
        """How many batches will be used, fillers included."""
        return len(self.items) - self.stale

    @property
    def real(self) -> int:
        """How many batches count."""
        return sum(1 for batch in self.items if batch)
