"""Notices that a machine is about to be taken away: where they are published, and who looks (see ``docs/leaving.md``).

``watch`` looks on a thread of its own; ``sources`` says where there is something to look at, ``clouds`` how providers tell it.
"""

from __future__ import annotations

from .sources import Source, source_of
from .watch import Watch

__all__ = ["Source", "Watch", "source_of"]
