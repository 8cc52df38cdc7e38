"""Messages to addresses that this member is not introduced to yet (see ``envelope``): kept for a moment, then dropped.

Every message of the protocol may be lost; keeping the first few saves the time until they would be repeated.
"""

from __future__ import annotations

from collections import OrderedDict, deque

from ...member import Address
from ...messages import Message

_KEPT = 16
"""The most messages kept for an address; the oldest are dropped first."""
_PATIENCE = 1.0
"""Seconds after which a message is useless."""


class Waiting:
    """Messages by address, bounded."""

    def __init__(self, addresses: int = 1024) -> None:
        """Nothing waits. ``addresses``: the most addresses for which messages are kept."""
        self._addresses = addresses
        self._messages: OrderedDict[Address, deque[tuple[float, Message]]] = OrderedDict()

    def add(self, address: Address, message: Message, now: float) -> None:
        """Keep ``message``."""
        queue = self._messages.setdefault(address, deque(maxlen=_KEPT))
        queue.append((now, message))
        self._messages.move_to_end(address)
        while len(self._messages) > self._addresses or now - next(iter(self._messages.values()))[-1][0] > _PATIENCE:
            self._messages.popitem(last=False)

    def take(self, address: Address, now: float) -> list[Message]:
        """The messages that have waited for ``address`` and are not too old, in order."""
        return [message for since, message in self._messages.pop(address, ()) if now - since <= _PATIENCE]
