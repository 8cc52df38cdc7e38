"""Which complete checkpoints stay in a directory."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from .names import Name

Whole = Callable[[], Collection[Name]]
"""Returns the checkpoints that all shards have completed in the same place; nothing where there is one shard."""


@dataclass(frozen=True, slots=True)
class Stay:
    """Which complete checkpoints of a shard stay: the newest ones, and the newest one that all shards have.

    For as long as a shard cannot write, or lags behind, the job can begin again from that one alone.
    """

    keep: int
    whole: Whole = tuple

    def others(self, names: Sequence[Name]) -> list[Name]:
        """Those that may go. ``names``: the newest first."""
        if len(names) <= self.keep:
            return []
        needed = max(self.whole(), default=None)
        return [name for name in names[self.keep :] if name != needed]
