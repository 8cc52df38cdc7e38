"""How often a source that has failed to authenticate may try again: checked before anything is decrypted for it.

It applies only to sources with failures, so no other source waits because of them. It never applies to packets of senders that
are already known (see ``envelope``).
"""

from __future__ import annotations

from collections import OrderedDict


class Throttle:
    """A token bucket for each source that has failed, and one for all of them together."""

    def __init__(self, rate: float = 10.0, burst: float = 20.0, total: float = 1000.0, sources: int = 4096) -> None:
        """``rate``, ``total``: tries a second of one source and of all. ``sources``: the most that are remembered."""
        self._rate, self._burst, self._total_rate = rate, burst, total
        self._limit = sources
        self._failed: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._total = (total, 0.0)

    def __len__(self) -> int:
        return len(self._failed)

    def allow(self, source: str, now: float) -> bool:
        """Whether ``source`` may try now."""
        found = self._failed.get(source)
        if found is None:
            return True
        level = self._level(found, now, self._rate, self._burst)
        overall = self._level(self._total, now, self._total_rate, self._total_rate)
        if level < 1 or overall < 1:
            return False
        self._failed[source] = (level - 1, now)
        self._total = (overall - 1, now)
        return True

    def failed(self, source: str, now: float) -> None:
        """``source`` has failed to authenticate."""
        if source not in self._failed:
            self._failed[source] = (self._burst, now)
            if len(self._failed) > self._limit:
                self._failed.popitem(last=False)
        else:
            self._failed.move_to_end(source)

    def forgive(self, source: str) -> None:
        """``source`` is authentic."""
        self._failed.pop(source, None)

    @staticmethod
    def _level(bucket: tuple[float, float], now: float, rate: float, most: float) -> float:
        level, since = bucket
        return min(most, level + (now - since) * rate)
