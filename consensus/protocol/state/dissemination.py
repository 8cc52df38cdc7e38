"""Rumours about members, spread epidemically on pings, acks and gossip (SWIM, section 4.1).

Each rumour is sent ``mult * ceil(log10(n + 1))`` times; the rumours sent least often go first. A newer rumour about a member
replaces older ones.
"""

from __future__ import annotations

import math
from collections.abc import Container

from ...messages import Update


class Dissemination:
    """The queue of rumours."""

    def __init__(self, retransmit_mult: int) -> None:
        self._mult = retransmit_mult
        self._queue: dict[tuple[str, str], tuple[int, Update]] = {}

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, update: Update) -> None:
        """Spread ``update``; older rumours about the same member with a lower incarnation are dropped."""
        for key, (_, old) in list(self._queue.items()):
            outdated = old.incarnation < update.incarnation or old.status is not update.status
            if old.member_id == update.member_id and outdated:
                del self._queue[key]
        self._queue[(update.member_id, update.by)] = (0, update)

    def forget(self, keep: Container[str]) -> None:
        """Drop rumours about members that are not in ``keep``."""
        for key in [key for key in self._queue if key[0] not in keep]:
            del self._queue[key]

    def take(self, limit: int, members: int, about: str | None = None) -> tuple[Update, ...]:
        """At most ``limit`` rumours to send now; rumours ``about`` the receiver come first (it may want to refute them)."""
        if not self._queue:
            return ()
        most = self._mult * math.ceil(math.log10(members + 1))
        order = sorted(self._queue.items(), key=lambda item: (item[0][0] != about, item[1][0], item[0]))
        chosen = []
        for key, (sent, update) in order[:limit]:
            chosen.append(update)
            if sent + 1 >= most:
                del self._queue[key]
            else:
                self._queue[key] = (sent + 1, update)
        return tuple(chosen)
