"""A network that is cut on purpose, for a time: this agent neither hears nor is heard, as if its cable were out.

Packets are dropped both ways, connections are accepted by the kernel and not answered, and what this agent asks of others, of
a supervisor or of a store has no answer. Nothing else of it stops: it judges what it hears, and times what it does not.
"""

from __future__ import annotations

import asyncio


class Outage:
    """Whether the network is cut. Runs on the agent's loop."""

    def __init__(self) -> None:
        """It is not."""
        self._until = 0.0

    def begin(self, seconds: float) -> None:
        """The network is cut for so long; no shorter than an outage that is under way."""
        self._until = max(self._until, asyncio.get_running_loop().time() + seconds)

    @property
    def on(self) -> bool:
        """Whether it is cut now."""
        return bool(self._until) and asyncio.get_running_loop().time() < self._until
