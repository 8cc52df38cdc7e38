"""A sliding window over sequence numbers: each is accepted once, in any order within the last ``size``.

The window of RFC 4303 (IPsec), section 3.4.3. Asking (``fresh``) and noting (``note``) are separate, because only an authentic
packet may move the window.
"""

from __future__ import annotations


class ReplayWindow:
    """The sequence numbers that have arrived from one sender under one key."""

    __slots__ = ("_mask", "_seen", "_size", "top")

    def __init__(self, size: int = 1024) -> None:
        """``size``: how far behind the newest a packet may arrive."""
        self._size = size
        self._mask = (1 << size) - 1
        self._seen = 0  # bit i: top - i has arrived
        self.top = -1

    def fresh(self, number: int) -> bool:
        """Whether ``number`` has not arrived yet and is not too old to know."""
        behind = self.top - number
        return behind < 0 or (behind < self._size and not self._seen >> behind & 1)

    def note(self, number: int) -> None:
        """``number`` has arrived."""
        ahead = number - self.top
        if ahead > 0:
            self._seen = ((self._seen << ahead) | 1) & self._mask if ahead < self._size else 1
            self.top = number
        else:
            self._seen |= 1 << -ahead
