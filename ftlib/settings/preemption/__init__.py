"""Where a notice is published that a machine is about to be taken away: the values of the setting ``preemption``.

``sources`` says where there is something to look at, ``clouds`` how providers tell it (see ``docs/elasticity.md``).
"""

from __future__ import annotations

from .sources import Source, source_of

__all__ = ["Source", "source_of"]
