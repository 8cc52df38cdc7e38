"""Sources of a notice that a machine is about to be taken away: the values of the setting ``preemption``.

``sources`` has the kinds of sources, ``clouds`` the services of cloud providers (see ``docs/elasticity.md``).
"""

from __future__ import annotations

from .sources import Signal, Source, source_of

__all__ = ["Signal", "Source", "source_of"]
